/**
 * What a pool of disks gives: space, failures survived, and how many disks' work it does. Facts
 * are those of OpenZFS: labels and the boot region (include/sys/vdev_impl.h), what RAID-Z adds to
 * a block (`vdev_raidz_psize_to_asize`, module/zfs/vdev_raidz.c), space in whole metaslabs
 * (`vdev_metaslab_set_size`, module/zfs/vdev.c), slop (`spa_get_slop_space`,
 * module/zfs/spa_misc.c).
 */
import type { VdevLayout, VdevSpec } from '../api/types';

export type LayoutKind = 'stripe' | 'mirror' | 'raidz';

/** Disks in `groups` vdevs of `width` each. */
export interface Layout {
  kind: LayoutKind;
  /** Of RAID-Z, else zero. */
  parity: number;
  groups: number;
  width: number;
}

export interface Estimate {
  /** What filesystems can hold, in bytes, roughly: blocks of 128 KiB that do not compress. */
  usableBytes: number;
  /** What the disks have, in bytes. */
  rawBytes: number;
  /** Bytes of bigger disks that stay unused, since all of a vdev count as its smallest. */
  unusedBytes: number;
  /** So many disks may fail, whichever they are. */
  survives: number;
  /** So many may fail where it hits the right ones. */
  survivesAtBest: number;
  /** Big reads and writes go as fast as so many disks, and small ones as so many. */
  streamDisks: number;
  smallDisks: number;
}

const K = 1024;
const M = K * K;
const G = K * M;
/** Two labels and the boot region in front, two labels behind. */
const LABELS_BYTES = 4 * M + 512 * K;
const LABEL_BYTES = 256 * K;
/** The block that space is reckoned with (`vdev_deflate_ratio`). */
const BLOCK_BYTES = 128 * K;

function down(value: number, step: number): number {
  return value - (value % step);
}

/** Space of a device of so many bytes, without its labels. */
export function deviceBytes(sizeBytes: number): number {
  return Math.max(0, down(sizeBytes, LABEL_BYTES) - LABELS_BYTES);
}

/** Sectors that RAID-Z allocates for a block of so many, parity and padding included. */
export function raidzSectors(sectors: number, width: number, parity: number): number {
  const total = sectors + parity * Math.ceil(sectors / (width - parity));
  return Math.ceil(total / (parity + 1)) * (parity + 1);
}

/** The share of a vdev's space that holds data. */
export function dataShare(layout: Layout, ashift: number): number {
  switch (layout.kind) {
    case 'stripe':
    case 'mirror':
      return 1;
    case 'raidz': {
      const sectors = BLOCK_BYTES / 2 ** ashift;
      return sectors / raidzSectors(sectors, layout.width, layout.parity);
    }
  }
}

/** Space of a vdev comes in metaslabs of this size: 16 to 200 of 512 MiB, or more in bigger ones. */
export function metaslabBytes(vdevBytes: number): number {
  const above = (value: number): number => 2 ** (Math.floor(Math.log2(Math.max(value, 1))) + 1);
  const count = Math.floor(vdevBytes / (512 * M));
  if (count < 16) return Math.max(above(vdevBytes / 16), 16 * M);
  if (count > 200) return Math.min(above(vdevBytes / 200), 16 * G);
  return 512 * M;
}

/** What is kept free so that a full pool can still be tidied up. */
export function slopBytes(poolBytes: number): number {
  const slop = Math.min(poolBytes / 32, 128 * G);
  return Math.max(slop, Math.min(poolBytes / 2, 128 * M));
}

/**
 * Cuts disks, in the order given, into groups. There have to be as many as the layout takes.
 */
export function groupsOf<T>(layout: Layout, disks: readonly T[]): T[][] {
  const out: T[][] = [];
  for (let index = 0; index < layout.groups; index += 1) {
    out.push(disks.slice(index * layout.width, (index + 1) * layout.width));
  }
  return out;
}

/** What a layout gives on disks of these sizes, in bytes, in the order in which they are used. */
export function estimate(layout: Layout, sizes: readonly number[], ashift = 12): Estimate {
  const { kind, parity, groups, width } = layout;
  let usable = 0;
  let unused = 0;
  for (const group of groupsOf(layout, sizes)) {
    const least = Math.min(...group);
    unused += group.reduce((sum, size) => sum + size - least, 0);
    const device = deviceBytes(least);
    const vdev = kind === 'raidz' ? device * width : device;
    usable += down(vdev, metaslabBytes(vdev)) * dataShare(layout, ashift);
  }
  const survives = kind === 'mirror' ? width - 1 : parity;
  const data = kind === 'raidz' ? width - parity : 1;
  return {
    usableBytes: Math.max(0, Math.floor(usable - slopBytes(usable))),
    rawBytes: sizes.reduce((sum, size) => sum + size, 0),
    unusedBytes: unused,
    survives,
    survivesAtBest: survives * groups,
    streamDisks: data * groups,
    smallDisks: groups,
  };
}

/**
 * The layouts worth a thought for so many disks, safest kinds first. Which one to propose is the
 * first: it survives one failure at least wherever there is more than one disk.
 */
export function layoutsFor(disks: number): Layout[] {
  const raidz = (parity: number, groups = 1): Layout => ({
    kind: 'raidz',
    parity,
    groups,
    width: disks / groups,
  });
  const mirror = (groups: number): Layout => ({
    kind: 'mirror',
    parity: 0,
    groups,
    width: disks / groups,
  });
  const out: Layout[] = [];
  if (disks === 2 || disks === 3) out.push(mirror(1));
  if (disks >= 3 && disks < 5) out.push(raidz(1));
  if (disks >= 5 && disks <= 12) out.push(raidz(2));
  if (disks > 12 && disks % 2 === 0) out.push(raidz(2, 2));
  if (disks > 12 && disks % 3 === 0) out.push(raidz(2, 3));
  if (disks === 4) out.push(raidz(2));
  if (disks >= 4 && disks % 2 === 0) out.push(mirror(disks / 2));
  if (disks >= 6 && disks % 3 === 0) out.push(mirror(disks / 3));
  if (disks >= 8 && disks <= 12 && disks % 2 === 0) out.push(raidz(2, 2));
  if (disks > 12) out.push(raidz(2));
  if (disks >= 7) out.push(raidz(3));
  if (disks >= 5) out.push(raidz(1));
  if (disks >= 1) out.push({ kind: 'stripe', parity: 0, groups: disks, width: 1 });
  return out;
}

/** A name for it that tells it from others: `raidz2-1x6`. */
export function layoutId({ kind, parity, groups, width }: Layout): string {
  return `${kind}${parity > 0 ? parity : ''}-${groups}x${width}`;
}

/** The vdevs to ask the server for. */
export function vdevsOf(layout: Layout, paths: readonly string[]): VdevSpec[] {
  return groupsOf(layout, paths).map((group) => {
    const devices = group.map((path) => ({ path }));
    const vdev = (layout: VdevLayout): VdevSpec => ({ layout });
    const [first] = devices;
    if (layout.kind === 'mirror') return vdev({ mirror: { devices } });
    if (layout.kind === 'raidz') return vdev({ raidz: { parity: layout.parity, devices } });
    if (!first) throw new Error('a vdev without a device');
    return vdev({ device: first });
  });
}

/** The words of a command line for them. */
export function vdevWords(vdevs: readonly VdevSpec[]): string[] {
  return vdevs.flatMap(({ layout }) => {
    if ('device' in layout) return [layout.device.path];
    if ('mirror' in layout) return ['mirror', ...layout.mirror.devices.map(({ path }) => path)];
    const { parity, devices } = layout.raidz;
    return [`raidz${parity}`, ...devices.map(({ path }) => path)];
  });
}
