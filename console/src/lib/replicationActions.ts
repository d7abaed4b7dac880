/** What can be done with replications, each with its command line. */
import type {
  Keep,
  Replication,
  ReplicationRule,
  ReplicationSpec,
  ReplicationTarget,
} from '../api/replications';
import { action, line, type Action } from './actions';
import { bytes } from './units';

/** What `millpond replicate` keeps unless told otherwise. */
export const KEEP: Keep = { hourly: 24, daily: 7, weekly: 4, monthly: 12 };
const PERIODS = ['hourly', 'daily', 'weekly', 'monthly'] as const;
const UNITS: readonly [string, number][] = [
  ['w', 7 * 86_400],
  ['d', 86_400],
  ['h', 3600],
  ['m', 60],
  ['s', 1],
];

/** Seconds of `15m`, `1h`, `1d`; nothing where that makes no sense. */
export function parseEvery(text: string): number | undefined {
  const found = /^\s*(\d+)\s*([smhdw])\s*$/.exec(text);
  const unit = UNITS.find(([letter]) => letter === found?.[2]);
  const total = Number(found?.[1]) * (unit?.[1] ?? Number.NaN);
  return total > 0 && Number.isSafeInteger(total) ? total : undefined;
}

/** `1h` of 3600: the longest unit that tells it exactly. */
export function everyText(seconds: number): string {
  const unit = UNITS.find(([letter, of]) => letter !== 'w' && seconds % of === 0);
  return unit ? `${seconds / unit[1]}${unit[0]}` : `${seconds}s`;
}

export function keepText(keep: Keep | null): string {
  if (keep === null) return 'all';
  return PERIODS.map((period) => `${period}=${keep[period]}`).join(',');
}

/** `DATASET`, `USER@HOST:DATASET` or `https://HOST/DATASET`, as the command understands it. */
export function parseTarget(
  text: string,
  command = 'zfs',
  fingerprint: string | null = null,
): ReplicationTarget | undefined {
  const typed = text.trim();
  const isDataset = (name: string): boolean => /^[^\s@#/][^\s@#]*$/.test(name);
  if (typed.startsWith('https://')) {
    const found = /^https:\/\/((?:\[[^\]\s]+\]|[^\s:/@[\]]+)(?::\d+)?)\/(.+)$/.exec(typed);
    const [, host, dataset] = found ?? [];
    if (!host || !dataset || !isDataset(dataset)) return undefined;
    return { tls: { host, dataset, fingerprint } };
  }
  const at = typed.indexOf('@');
  if (at < 0) return isDataset(typed) ? { local: { dataset: typed } } : undefined;
  const rest = typed.slice(at + 1);
  const found = /^(\[[^\]\s]+\]|[^\s:[\]]+):(.+)$/.exec(rest);
  const [, host, dataset] = found ?? [];
  if (at === 0 || !host || !dataset || !isDataset(dataset)) return undefined;
  return { ssh: { host: `${typed.slice(0, at)}@${host}`, dataset, command } };
}

export function targetText(target: ReplicationTarget): string {
  if ('local' in target) return target.local.dataset;
  if ('tls' in target) return `https://${target.tls.host}/${target.tls.dataset}`;
  return `${target.ssh.host}:${target.ssh.dataset}`;
}

/** Whether this is SHA-256 of a certificate, as programs print it. */
export function isFingerprint(text: string): boolean {
  const digits = text.trim().replace(/^sha256:/i, '');
  return /^[0-9a-f]{64}$/i.test(digits.replaceAll(':', ''));
}

function limitText(value: number): string {
  const short = bytes(value).replace(/B$/, '');
  return /^\d+[KMGTPE]?$/.test(short) ? short : String(value);
}

function ruleWords(rule: ReplicationRule): string[] {
  const keep = keepText(rule.keep);
  return [
    ...(rule.every_s === null ? [] : ['--every', everyText(rule.every_s)]),
    ...(keep === keepText(KEEP) ? [] : ['--keep', keep]),
    ...(rule.limit_bytes === null ? [] : ['--limit', limitText(rule.limit_bytes)]),
  ];
}

const REPLICATE = ['millpond', 'replicate'] as const;

export function createReplication(spec: ReplicationSpec): Action<'/v1/replications/create'> {
  const { target } = spec;
  const isOther = 'ssh' in target && target.ssh.command !== 'zfs';
  const command = line(
    ...REPLICATE,
    spec.recursive && '-r',
    ...ruleWords(spec),
    ...(spec.name === null ? [] : ['--name', spec.name]),
    ...(isOther ? ['--remote-command', target.ssh.command] : []),
    ...('tls' in target && target.tls.fingerprint ? ['--fingerprint', target.tls.fingerprint] : []),
    spec.source,
    targetText(target),
  );
  return action('/v1/replications/create', command, { spec });
}

/** Nothing where it does not change. */
export function changeReplication(
  of: Replication,
  rule: ReplicationRule,
): Action<'/v1/replications/change'> | undefined {
  const words = [rule.recursive && '-r', ...ruleWords(rule)];
  const isSame =
    of.recursive === rule.recursive &&
    of.every_s === rule.every_s &&
    of.limit_bytes === rule.limit_bytes &&
    keepText(of.keep) === keepText(rule.keep);
  if (isSame) return undefined;
  const command = line(...REPLICATE, '--change', of.name, ...words);
  return action('/v1/replications/change', command, { name: of.name, ...rule });
}

export function runReplication(name: string): Action<'/v1/replications/run'> {
  return action('/v1/replications/run', line(...REPLICATE, '--run', name), { name });
}

export function pauseReplication(name: string, isPaused: boolean): Action {
  const command = line(...REPLICATE, isPaused ? '--pause' : '--resume', name);
  return action('/v1/replications/pause', command, { name, is_paused: isPaused });
}

export function removeReplication(name: string): Action<'/v1/replications/remove'> {
  return action('/v1/replications/remove', line(...REPLICATE, '--remove', name), { name });
}
