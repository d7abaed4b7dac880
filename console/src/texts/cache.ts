/** What the page of caches says; a part of `en.ts`. */
import type { CacheKind } from '../api/cache';

export const cache = {
  title: 'Cache',
  text: 'How many reads memory and cache devices answer, and what more of either would gain.',
  none: 'There is no pool yet.',
  limit: (limit: string) => `All pools together may have ${limit} in memory.`,
  limitShort: (limit: string, most: string) =>
    `All pools together may have ${limit} in memory now, as it is short or used beside the ` +
    `cache, and ${most} otherwise.`,
  pool: 'Pool',
  pools: 'Reads that memory answers',
  inMemory: 'In memory',
  minute: 'Last minute',
  hour: 'Hour',
  day: 'Day',
  week: 'Week',
  kinds: 'By kind of block',
  kindsOf: (pool: string) => `By kind of block: ${pool}`,
  kindsHint: 'Counted since the pool was imported.',
  kind: 'Kind',
  kindNames: {
    data: 'Data',
    metadata: 'Metadata',
    'dedup-table': 'Dedup tables',
  } satisfies Record<CacheKind, string>,
  blocks: 'Blocks',
  found: 'Found',
  missed: 'Not found',
  rate: 'Hit rate',
  allKinds: 'All blocks',
  noReads: 'Nothing was read yet.',
  noGain: (now: string) => `Twice as much memory would gain nothing: it answers ${now} now.`,
  gain: (then: string, now: string) =>
    `Twice as much memory would answer about ${then} instead of ${now}.`,
  devices: 'Cache devices',
  devicesOf: (pool: string) => `Cache devices: ${pool}`,
  noDevices:
    'This pool has none. One on an SSD answers reads that do not fit into memory; it is never needed, and may fail.',
  second: (rate: string, blocks: string, index: string) =>
    `They answer ${rate} of what memory has not. They hold ${blocks} blocks; the index of these takes ${index} of memory.`,
  leftOut: (blocks: string) =>
    `${blocks} blocks were not kept, as there is no memory for them in the index. It is a quarter of what the cache may have at most.`,
  device: 'Device',
  state: 'State',
  fill: 'In use',
  fillOf: (used: string, size: string) => `${used} of ${size} in use`,
  warmth: 'Warm',
  full: 'Full',
  fullIn: (time: string) => `Full in ${time}`,
  notFilling: 'Not filling',
  rebuilding: 'Reading what it holds',
  hits: 'Reads answered',
  wear: 'Written over, last day',
  times: (times: string) => `${times} times`,
  errors: 'Errors',
};
