/** Which properties can be set where, and what they can be set to (docs/properties.md). */
import type { DatasetKind } from '../api/types';
import { bytes, moment } from './units';

export type Owner = DatasetKind | 'pool';

interface Setting {
  of: readonly Owner[];
  /** Whether children have it of their parents. */
  inherits?: boolean;
  values?: readonly string[];
  /** Shown as a size, and typed as one. */
  isSize?: boolean;
  /** What zero means: no limit. */
  zero?: string;
}

const FS = ['filesystem'] as const;
const VOLUME = ['volume'] as const;
const BOTH = ['filesystem', 'volume'] as const;
const POOL = ['pool'] as const;
const ON_OFF = ['on', 'off'] as const;

export const SETTINGS: Readonly<Record<string, Setting>> = {
  quota: { of: FS, isSize: true, zero: 'none' },
  refquota: { of: FS, isSize: true, zero: 'none' },
  reservation: { of: BOTH, isSize: true, zero: 'none' },
  refreservation: { of: BOTH, isSize: true, zero: 'none' },
  volsize: { of: VOLUME, isSize: true },
  recordsize: {
    of: FS,
    inherits: true,
    isSize: true,
    values: [
      '4K',
      '8K',
      '16K',
      '32K',
      '64K',
      '128K',
      '256K',
      '512K',
      '1M',
      '2M',
      '4M',
      '8M',
      '16M',
    ],
  },
  compression: {
    of: BOTH,
    inherits: true,
    values: ['on', 'off', 'lz4', 'zstd', 'zstd-3', 'zstd-9', 'zstd-19', 'zstd-fast', 'gzip', 'zle'],
  },
  checksum: {
    of: BOTH,
    inherits: true,
    values: ['on', 'off', 'fletcher4', 'sha256', 'sha512', 'skein', 'edonr', 'blake3'],
  },
  dedup: { of: BOTH, inherits: true, values: ['off', 'on', 'verify', 'sha256', 'blake3'] },
  copies: { of: BOTH, inherits: true, values: ['1', '2', '3'] },
  sync: { of: BOTH, inherits: true, values: ['standard', 'always', 'disabled'] },
  logbias: { of: BOTH, inherits: true, values: ['latency', 'throughput'] },
  primarycache: { of: BOTH, inherits: true, values: ['all', 'metadata', 'none'] },
  prefetch: { of: BOTH, inherits: true, values: ['all', 'metadata', 'none'] },
  redundant_metadata: { of: BOTH, inherits: true, values: ['all', 'most', 'some', 'none'] },
  special_small_blocks: { of: BOTH, inherits: true, isSize: true },
  atime: { of: FS, inherits: true, values: ON_OFF },
  relatime: { of: FS, inherits: true, values: ON_OFF },
  readonly: { of: BOTH, inherits: true, values: ON_OFF },
  exec: { of: FS, inherits: true, values: ON_OFF },
  setuid: { of: FS, inherits: true, values: ON_OFF },
  devices: { of: FS, inherits: true, values: ON_OFF },
  canmount: { of: FS, values: ['on', 'off', 'noauto'] },
  mountpoint: { of: FS, inherits: true },
  overlay: { of: FS, inherits: true, values: ON_OFF },
  snapdir: { of: FS, inherits: true, values: ['hidden', 'visible', 'disabled'] },
  snapdev: { of: BOTH, inherits: true, values: ['hidden', 'visible'] },
  volmode: { of: VOLUME, inherits: true, values: ['default', 'full', 'geom', 'dev', 'none'] },
  xattr: { of: FS, inherits: true, values: ['sa', 'dir', 'on', 'off'] },
  acltype: { of: FS, inherits: true, values: ['off', 'posix'] },
  aclinherit: {
    of: FS,
    inherits: true,
    values: ['discard', 'noallow', 'restricted', 'passthrough', 'passthrough-x'],
  },
  aclmode: {
    of: FS,
    inherits: true,
    values: ['discard', 'groupmask', 'passthrough', 'restricted'],
  },
  dnodesize: { of: FS, inherits: true, values: ['legacy', 'auto', '1k', '2k', '4k', '8k', '16k'] },
  filesystem_limit: { of: FS },
  snapshot_limit: { of: BOTH },
  autoexpand: { of: POOL, values: ON_OFF },
  autoreplace: { of: POOL, values: ON_OFF },
  autotrim: { of: POOL, values: ON_OFF },
  comment: { of: POOL },
  delegation: { of: POOL, values: ON_OFF },
  failmode: { of: POOL, values: ['wait', 'continue'] },
  listsnapshots: { of: POOL, values: ON_OFF },
  multihost: { of: POOL, values: ON_OFF },
};

/** Others that are sizes, or moments, and are only shown. */
const SIZES = new Set([
  ...['used', 'available', 'referenced', 'written', 'logicalused', 'logicalreferenced'],
  ...['usedbysnapshots', 'usedbydataset', 'usedbychildren', 'usedbyrefreservation'],
  ...['volblocksize', 'size', 'free', 'allocated', 'freeing', 'leaked', 'expandsize', 'checkpoint'],
  ...['bcloneused', 'bclonesaved', 'dedup_table_size'],
]);
const MOMENTS = new Set(['creation', 'snapshots_changed']);
const PERCENTS = new Set(['capacity', 'fragmentation']);

/** How a property can be set; nothing where it cannot be. */
export function settingOf(name: string, owner: Owner): Setting | undefined {
  const setting = SETTINGS[name];
  return setting?.of.includes(owner) ? setting : undefined;
}

/** A value as people read it: the API's are exact. */
export function shown(name: string, value: string): string {
  const setting = SETTINGS[name];
  const isNumber = /^\d+$/.test(value);
  if (setting?.zero !== undefined && value === '0') return setting.zero;
  if (isNumber && (setting?.isSize || SIZES.has(name))) return bytes(Number(value));
  if (isNumber && MOMENTS.has(name)) return value === '0' ? '-' : moment(Number(value));
  if (isNumber && PERCENTS.has(name)) return `${value}%`;
  if (name.endsWith('ratio') && /^[\d.]+$/.test(value)) return `${value}x`;
  return value;
}
