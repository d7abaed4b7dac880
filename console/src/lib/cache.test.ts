import { expect, it } from 'vitest';

import type { CacheDevice, CacheKindReport, PoolCache } from '../api/cache';
import * as cache from './cache';

function kind(of: CacheKindReport['kind'], hits: number, misses: number, ghosts = 0) {
  return { kind: of, size_bytes: 100, blocks: 1, hits, misses, ghost_hits: ghosts };
}

const device: CacheDevice = {
  guid: '7',
  name: '/dev/ssd',
  state: 'online',
  is_rebuilding: false,
  is_filled: false,
  size_bytes: 1000,
  used_bytes: 500,
  hits: 30,
  read_bytes: 0,
  written_bytes: 0,
  read_errors: 0,
  write_errors: 0,
  checksum_errors: 0,
  fill_bytes_per_s: 5,
  full_in_s: 100,
  day_written_bytes: 250,
};

const pool: PoolCache = {
  pool: 'tank',
  charged_bytes: 50,
  kinds: [kind('data', 40, 60, 20), kind('metadata', 100, 0), kind('dedup-table', 0, 0)],
  minute: null,
  hour: { hits: 1, misses: 3 },
  day: { hits: 0, misses: 0 },
  week: null,
  second: { blocks: 9, index_bytes: 160, left_out: 0, misses: 10, devices: [device] },
};

it('tells how many reads found their block, where there were any', () => {
  expect(cache.hitRate(pool.hour)).toBe('25%');
  expect(cache.hitRate(pool.day)).toBe('–');
  expect(cache.hitRate(null)).toBe('–');
  expect(cache.total(pool)).toEqual({ hits: 140, misses: 60, ghost_hits: 20 });
  expect(cache.inMemory(pool)).toBe(350);
  expect(cache.deviceRate({ blocks: 0, index_bytes: 0, left_out: 0, misses: 0, devices: [] })).toBe(
    '–',
  );
  expect(pool.second && cache.deviceRate(pool.second)).toBe('75%');
});

it('tells what twice as much memory would gain', () => {
  expect(cache.gain(pool)).toBe('Twice as much memory would answer about 80% instead of 70%.');
  const cold = { kinds: [kind('data', 1, 1, 9)] };
  expect(cache.gain(cold)).toContain('about 100% instead of 50%');
  expect(cache.gain({ kinds: [kind('data', 7, 3)] })).toBe(
    'Twice as much memory would gain nothing: it answers 70% now.',
  );
  expect(cache.gain({ kinds: [] })).toBe('Nothing was read yet.');
});

it('tells of a device how warm it is, and how it wears', () => {
  expect(cache.warmth(device)).toBe('Full in 1 min 40 s');
  expect(cache.warmth({ ...device, full_in_s: null })).toBe('Not filling');
  expect(cache.warmth({ ...device, is_filled: true })).toBe('Full');
  expect(cache.warmth({ ...device, is_filled: true, is_rebuilding: true })).toBe(
    'Reading what it holds',
  );
  expect(cache.wear(device)).toBe('0.25 times');
  expect(cache.wear({ ...device, day_written_bytes: 1 })).toBe('<0.01 times');
  expect(cache.wear({ ...device, day_written_bytes: 0 })).toBe('0.00 times');
  expect(cache.wear({ ...device, day_written_bytes: null })).toBe('–');
});

it('asks for figures of cache devices where there are some', () => {
  expect(cache.figuresOf(pool)).toContain('cache-answer-rate');
  const without = cache.figuresOf({ ...pool, second: null });
  expect(without).toContain('cache-hit-rate');
  expect(without.filter((figure) => /device|answer|index/.test(figure))).toEqual([]);
});
