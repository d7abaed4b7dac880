/** Caches in numbers that people read. Nothing here asks the server. */
import type { CacheDevice, CacheLookups, PoolCache, SecondLevel } from '../api/cache';
import type { ReportFigure } from '../api/reports';
import { t } from '../texts/en';
import { duration, percent } from './units';

/** How many of the reads found their block; a dash where nothing was read, or nothing is known. */
export function hitRate(lookups: CacheLookups | null): string {
  const reads = lookups ? lookups.hits + lookups.misses : 0;
  return lookups && reads > 0 ? percent(lookups.hits, reads) : t.none;
}

/** All kinds of blocks together. */
export function total({ kinds }: Pick<PoolCache, 'kinds'>): CacheLookups & { ghost_hits: number } {
  const sum = (of: 'hits' | 'misses' | 'ghost_hits'): number =>
    kinds.reduce((all, kind) => all + kind[of], 0);
  return { hits: sum('hits'), misses: sum('misses'), ghost_hits: sum('ghost_hits') };
}

/** What twice as much memory would have been good for, in a sentence. */
export function gain(pool: Pick<PoolCache, 'kinds'>): string {
  const { hits, misses, ghost_hits: ghosts } = total(pool);
  if (hits + misses === 0) return t.cache.noReads;
  const now = percent(hits, hits + misses);
  const then = percent(Math.min(hits + ghosts, hits + misses), hits + misses);
  return now === then ? t.cache.noGain(now) : t.cache.gain(then, now);
}

/** Bytes in memory: blocks, objects, files and indexes. */
export function inMemory({ kinds, charged_bytes: charged }: PoolCache): number {
  return kinds.reduce((all, { size_bytes: bytes }) => all + bytes, charged);
}

/** How many of the reads that memory could not answer cache devices did. */
export function deviceRate({ devices, misses }: SecondLevel): string {
  const hits = devices.reduce((all, device) => all + device.hits, 0);
  return hitRate({ hits, misses });
}

/** How often a device was written over in the last day: `0.25 times`. */
export function wear({ day_written_bytes: written, size_bytes: size }: CacheDevice): string {
  if (written === null || size === 0) return t.none;
  const times = written / size;
  return t.cache.times(times > 0 && times < 0.01 ? '<0.01' : times.toFixed(2));
}

/** Whether a device is warm, or when it is. */
export function warmth(device: CacheDevice): string {
  if (device.is_rebuilding) return t.cache.rebuilding;
  if (device.is_filled) return t.cache.full;
  if (device.full_in_s === null) return t.cache.notFilling;
  return t.cache.fullIn(duration(device.full_in_s));
}

/** The figures of the page's charts: those of cache devices where there are some. */
export function figuresOf({ second }: PoolCache): ReportFigure[] {
  const memory: ReportFigure[] = [
    'cache-hit-rate',
    'cache-data-hits',
    'cache-metadata-hits',
    'cache-dedup-table-hits',
    'cache-data-misses',
    'cache-metadata-misses',
    'cache-dedup-table-misses',
    'cache-ghost-hits',
  ];
  const devices: ReportFigure[] = [
    'cache-answer-rate',
    'cache-device-hits',
    'cache-device-misses',
    'cache-device-bytes',
    'cache-index-bytes',
  ];
  return second ? [...memory, ...devices] : memory;
}
