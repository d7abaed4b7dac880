import { expect, it } from 'vitest';

import type { Report, ReportValues } from '../api/reports';
import type { Pool } from '../api/types';
import { counters, drawn, filled, fromReports, rates, type Sample } from './throughput';

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

function sample(time_s: number, span_s: number, read: number): Sample {
  return { time_s, span_s, read, written: 0 };
}

it('draws nothing across a time of which nothing is known', () => {
  const samples = [sample(103, 3, 5), sample(106, 3, 6), sample(160, 3, 7)];
  expect(drawn(samples).slice(0, 2)).toEqual([
    [100, 103, 106, 106.75, 157, 160],
    [5, 5, 6, null, 7, 7],
  ]);
});

it('takes from reports what it did not see itself, and nothing twice', () => {
  const values = (figure: ReportValues['figure'], all: (number | null)[]): ReportValues => ({
    figure,
    values: all,
    highest: [],
    value: null,
    most: null,
    total: null,
  });
  const of = (name: string, read: number[]): Report => ({
    subject: { of: 'pool', pool: name },
    label: null,
    times_s: [100, 110, 120, 130],
    figures: [values('read-bytes', read), values('written-bytes', [1, 1, null, 1])],
  });
  const reported = fromReports([of('a', [1, 2, 3, 4]), of('b', [10, 20, 30, 40])], 10, 135);
  expect(reported.map(({ time_s, read }) => [time_s, read])).toEqual([
    [110, 11],
    [120, 22],
    [130, 33],
  ]);
  expect(reported[2]?.written).toBe(0);
  const own = [sample(112, 3, 9), sample(134, 3, 8)];
  const all = filled(own, reported);
  // The report until 110 overlaps with the look that began at 109; that until 120 with it as well.
  expect(all.map(({ time_s }) => time_s)).toEqual([112, 130, 134]);
  const apart = filled([sample(115, 3, 9)], reported);
  expect(apart.map(({ time_s }) => time_s)).toEqual([110, 115, 130]);
});
