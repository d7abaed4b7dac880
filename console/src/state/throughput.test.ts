import { expect, it } from 'vitest';

import type { Pool } from '../api/types';
import { counters, rates } from './throughput.svelte';

function pool(guid: string, uptime_ns: number, read: number, written: number): Pool {
  const tree = { reads: { count: 0, bytes: read }, writes: { count: 0, bytes: written } };
  return { guid, uptime_ns, tree } as Pool;
}

it('is what counters grew by, of pools that were there all the time', () => {
  const before = counters([pool('1', 5, 1000, 0), pool('2', 5, 10, 10)], 10_000);
  const now = counters([pool('1', 9, 5000, 2000), pool('2', 1, 0, 5), pool('3', 9, 7, 7)], 12_000);
  expect(rates(before, now)).toEqual({ read: 2000, written: 1000 });
  expect(rates(now, now)).toEqual({ read: 0, written: 0 });
});
