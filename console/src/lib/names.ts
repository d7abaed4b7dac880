/** What ZFS takes as names (`zfs_component_namecheck`, `pool_namecheck`: module/zcommon). */

const NAME_MAX = 255;

/** One component of a dataset's name, or the name of a snapshot or hold. */
export function isComponent(name: string): boolean {
  return (
    /^[A-Za-z0-9_:.-][A-Za-z0-9_:. -]*$/.test(name) && !/^\.\.?$/.test(name) && !name.endsWith(' ')
  );
}

/** A dataset's full name. */
export function isDataset(name: string): boolean {
  return name.length <= NAME_MAX && name.includes('/') && name.split('/').every(isComponent);
}

/** Words that begin a vdev on the command line. */
const RESERVED = /^(mirror|raidz|draid|spare|log|cache|special|dedup)/;

export type PoolNameFault = 'wrong' | 'reserved';

export function poolNameFault(name: string): PoolNameFault | undefined {
  if (!/^[A-Za-z][A-Za-z0-9_:.-]*$/.test(name) || name.length > NAME_MAX) return 'wrong';
  return RESERVED.test(name) ? 'reserved' : undefined;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** A name for a snapshot taken now: `2026-11-25-1403`. */
export function snapshotNameOf(now: Date): string {
  const day = [now.getFullYear(), two(now.getMonth() + 1), two(now.getDate())].join('-');
  return `${day}-${two(now.getHours())}${two(now.getMinutes())}`;
}
