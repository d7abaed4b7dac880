import { expect, it } from 'vitest';

import type { Report, ReportValues } from '../api/reports';
import * as reports from './reports';

function values(figure: ReportValues['figure'], all: (number | null)[]): ReportValues {
  const highest = all.map((value) => (value ?? 0) * 2);
  return { figure, values: all, highest, value: 1, most: 2, total: 3 };
}

const report: Report = {
  subject: { of: 'pool', pool: 'tank' },
  label: null,
  times_s: [100, 110, 200],
  figures: [
    values('read-bytes', [1, null, 3]),
    values('written-bytes', [4, 5, 6]),
    values('log-bytes', [7, 8, 9]),
  ],
};

it('draws what there is, with a gap where nothing is known', () => {
  const charts = reports.charts(report, { step_s: 10 });
  expect(charts.map(({ kind }) => kind.id)).toEqual(['bytes', 'log']);
  const [bytes, log] = charts;
  expect(bytes?.times_s).toEqual([100, 110, 120, 200]);
  expect(bytes?.lines).toEqual([
    { name: 'Read', values: [1, null, null, 3] },
    { name: 'Written', values: [4, 5, null, 6] },
  ]);
  // The highest of one that is alone is what matters of a log device.
  expect(log?.lines[1]).toEqual({ name: 'In intent logs, highest', values: [14, 16, null, 18] });
  const rows = bytes ? reports.rows(bytes, 2) : [];
  expect(rows).toEqual([
    { time_s: 200, cells: [3, 6] },
    { time_s: 120, cells: [null, null] },
  ]);
});

it('draws how warm a cache is as parts of a whole', () => {
  const warm: Report = {
    ...report,
    subject: { of: 'cache', pool: 'tank' },
    figures: [
      values('cache-hit-rate', [0.2, 0.4, 0.5]),
      values('cache-answer-rate', [0.5, 0.9, 1]),
      values('cache-metadata-hits', [1, 2, 3]),
      values('cache-data-hits', [4, 5, 6]),
    ],
  };
  const charts = reports.charts(warm, { step_s: 10 });
  expect(charts.map(({ kind }) => [kind.id, kind.unit])).toEqual([
    ['warmth', 'share'],
    ['kindHits', 'rate'],
  ]);
  expect(charts[1]?.lines.map(({ name }) => name)).toEqual(['Data', 'Metadata']);
});

it('calls things as people do', () => {
  const client = {
    of: 'client',
    protocol: 'iscsi',
    dataset: 'tank/vol',
    share: 'iqn.x',
    client: 'iqn.y',
  } as const;
  const device = { of: 'device', pool: 'tank', guid: '7' } as const;
  expect(reports.nameOf({ subject: client, label: null })).toBe('iqn.y (tank/vol by iSCSI)');
  expect(reports.nameOf({ subject: device, label: '/dev/sda' })).toBe('/dev/sda');
  expect(reports.commandOf(device, '/dev/a b', 'week')).toBe(
    "millpond reports '/dev/a b' --last week --points",
  );
  expect(reports.commandOf(client, null, 'hour')).toBe(
    'millpond reports iqn.y --last hour --points',
  );
  const subjects = [client, device].map((subject) => ({ subject, label: null, seen_s: 0 }));
  const groups = reports.grouped(subjects);
  expect(groups.map(({ of }) => of)).toEqual(['device', 'client']);
  const portal = { of: 'portal', address: '10.0.0.1:3260' } as const;
  expect(reports.nameOf({ subject: portal, label: null })).toBe('10.0.0.1:3260');
  expect(reports.commandOf(portal, null, 'hour')).toBe(
    'millpond reports 10.0.0.1:3260 --last hour --points',
  );
  const both = [client, portal].map((subject) => ({ subject, label: null, seen_s: 0 }));
  expect(reports.grouped(both).map(({ of }) => of)).toEqual(['portal', 'client']);
  const cache = { of: 'cache', pool: 'tank' } as const;
  expect(reports.nameOf({ subject: cache, label: null })).toBe('tank');
  expect(reports.keyOf(cache)).not.toBe(reports.keyOf({ of: 'pool', pool: 'tank' }));
  expect(reports.commandOf(cache, null, 'day')).toBe('millpond reports tank --last day --points');
  expect(new Set([client, device].map(reports.keyOf)).size).toBe(2);
});

it('shows values in their units', () => {
  expect(reports.shown(null, 'time')).toBe('–');
  expect(reports.shown(1536, 'byteRate')).toBe('1.50 KiB/s');
  expect(reports.shown(2.25, 'rate')).toBe('2.3/s');
  expect(reports.shown(12_345.6, 'count')).toBe('12,346');
  expect(reports.shown(0.256, 'share')).toBe('26%');
  expect(reports.shown(0, 'share')).toBe('0%');
  expect(reports.time(999)).toBe('999 ns');
  expect(reports.time(1_250_000)).toBe('1.25 ms');
  expect(reports.time(25e9)).toBe('25.0 s');
  expect(reports.shownTotal(1 << 20, 'byteRate')).toBe('1 MiB');
  expect(reports.shownTotal(5, 'rate')).toBe('5');
  expect(reports.shownTotal(5, 'time')).toBe('–');
});
