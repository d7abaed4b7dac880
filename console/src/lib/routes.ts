/** Pages and their addresses. */

export type Page =
  | { page: 'overview' }
  | { page: 'pools' }
  | { page: 'pool'; name: string; tab: PoolTab }
  | { page: 'datasets' }
  | { page: 'dataset'; name: string; tab: DatasetTab }
  | { page: 'shares' }
  | { page: 'disks' }
  | { page: 'plan' }
  | { page: 'bench' }
  | { page: 'setup' }
  | { page: 'schedules' }
  | { page: 'alerts' }
  | { page: 'replication' }
  | { page: 'reports' }
  | { page: 'cache' }
  | { page: 'jobs' }
  | { page: 'events' }
  | { page: 'users' }
  | { page: 'audit' }
  | { page: 'certificate' }
  | { page: 'account' }
  | { page: 'missing' };

export const POOL_TABS = ['devices', 'properties', 'history'] as const;
export type PoolTab = (typeof POOL_TABS)[number];
export const DATASET_TABS = ['snapshots', 'sharing', 'permissions', 'properties'] as const;
export type DatasetTab = (typeof DATASET_TABS)[number];

const SIMPLE = [
  'pools',
  'datasets',
  'shares',
  'disks',
  'plan',
  'bench',
  'setup',
  'schedules',
  'alerts',
  'replication',
  'reports',
  'cache',
  'jobs',
  'events',
  'users',
  'audit',
  'certificate',
  'account',
] as const;

function isIn<T extends string>(list: readonly T[], value: string): value is T {
  return (list as readonly string[]).includes(value);
}

function named(rest: string): [string, string] {
  const [path = '', query = ''] = rest.split('?');
  let name: string;
  try {
    name = path.split('/').map(decodeURIComponent).join('/');
  } catch {
    name = path;
  }
  return [name, query];
}

/** The page that an address is of. */
export function pageOf(path: string): Page {
  const [, first = '', rest] = /^\/([^/?]*)(?:\/(.+))?/.exec(path) ?? [];
  if (first === '' && rest === undefined) return { page: 'overview' };
  if (first === 'pools' && rest !== undefined) {
    const [name, tab] = named(rest);
    return { page: 'pool', name, tab: isIn(POOL_TABS, tab) ? tab : 'devices' };
  }
  if (first === 'datasets' && rest !== undefined) {
    const [name, tab] = named(rest);
    return { page: 'dataset', name, tab: isIn(DATASET_TABS, tab) ? tab : 'snapshots' };
  }
  if (rest === undefined && isIn(SIMPLE, first)) return { page: first };
  return { page: 'missing' };
}

function encoded(name: string): string {
  return name.split('/').map(encodeURIComponent).join('/');
}

export function poolLink(name: string, tab?: PoolTab): string {
  return `#/pools/${encoded(name)}${tab && tab !== 'devices' ? `?${tab}` : ''}`;
}

export function datasetLink(name: string, tab?: DatasetTab): string {
  return `#/datasets/${encoded(name)}${tab && tab !== 'snapshots' ? `?${tab}` : ''}`;
}
