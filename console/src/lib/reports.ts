/** Reports in words and as charts. Nothing here asks the server. */
import type {
  Report,
  ReportedSubject,
  ReportFigure,
  ReportReply,
  ReportSpan,
  ReportSubject,
  ReportValues,
} from '../api/reports';
import { t } from '../texts/en';
import { percent, rate, size } from './units';

export const SPANS = [
  'hour',
  'day',
  'week',
  'month',
  'year',
] as const satisfies readonly ReportSpan[];

/** What a subject is to the page: an address of a choice. */
export function keyOf(subject: ReportSubject): string {
  switch (subject.of) {
    case 'pool':
      return JSON.stringify(['pool', subject.pool]);
    case 'cache':
      return JSON.stringify(['cache', subject.pool]);
    case 'device':
      return JSON.stringify(['device', subject.pool, subject.guid]);
    case 'mount':
      return JSON.stringify(['mount', subject.dataset]);
    case 'portal':
      return JSON.stringify(['portal', subject.address]);
    case 'share':
      return JSON.stringify(['share', subject.protocol, subject.dataset, subject.share]);
    case 'client':
      return JSON.stringify([
        'client',
        subject.protocol,
        subject.dataset,
        subject.share,
        subject.client,
      ]);
  }
}

/** What people call a subject. */
export function nameOf({
  subject,
  label,
}: {
  subject: ReportSubject;
  label: string | null;
}): string {
  switch (subject.of) {
    case 'pool':
    case 'cache':
      return subject.pool;
    case 'device':
      return label ?? subject.guid;
    case 'mount':
      return subject.dataset;
    case 'portal':
      return subject.address;
    case 'share':
      return t.reports.by(subject.dataset, t.shares.protocols[subject.protocol]);
    case 'client':
      return t.reports.client(
        subject.client,
        subject.dataset,
        t.shares.protocols[subject.protocol],
      );
  }
}

/** Subjects by what they are, in an order in which they are looked for. */
export function grouped(
  subjects: readonly ReportedSubject[],
): { of: ReportSubject['of']; subjects: ReportedSubject[] }[] {
  const order = ['pool', 'cache', 'device', 'mount', 'portal', 'share', 'client'] as const;
  return order
    .map((of) => ({ of, subjects: subjects.filter(({ subject }) => subject.of === of) }))
    .filter((group) => group.subjects.length > 0);
}

/** What `millpond reports` is given to tell of a subject. */
export function commandOf(subject: ReportSubject, label: string | null, span: ReportSpan): string {
  const name = (): string => {
    switch (subject.of) {
      case 'pool':
      case 'cache':
        return subject.pool;
      case 'device':
        return label ?? subject.guid;
      case 'mount':
      case 'share':
        return subject.dataset;
      case 'portal':
        return subject.address;
      case 'client':
        return subject.client;
    }
  };
  const word = /^[\w@%+=:,./-]+$/.test(name()) ? name() : `'${name().replaceAll("'", "'\\''")}'`;
  return `millpond reports ${word} --last ${span} --points`;
}

export type Unit = 'bytes' | 'byteRate' | 'rate' | 'time' | 'count' | 'share';

/** Nanoseconds as `1.25 ms`. */
export function time(nanoseconds: number): string {
  const units = [
    [1e9, 's'],
    [1e6, 'ms'],
    [1e3, 'µs'],
  ] as const;
  for (const [unit, word] of units) {
    if (nanoseconds >= unit) {
      const value = nanoseconds / unit;
      return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${word}`;
    }
  }
  return `${Math.round(nanoseconds)} ns`;
}

function plain(value: number): string {
  const digits = value > 0 && value < 10 ? 1 : 0;
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}

/** A value as people read it. */
export function shown(value: number | null, unit: Unit): string {
  if (value === null) return t.none;
  switch (unit) {
    case 'bytes':
      return size(value);
    case 'byteRate':
      return rate(value);
    case 'rate':
      return t.reports.perSecond(plain(value));
    case 'time':
      return time(value);
    case 'count':
      return plain(value);
    case 'share':
      return percent(value, 1);
  }
}

/** A total: of what is per second, how much it was. */
export function shownTotal(value: number | null, unit: Unit): string {
  if (unit === 'byteRate') return shown(value, 'bytes');
  return unit === 'rate' ? shown(value, 'count') : t.none;
}

export interface Kind {
  id: keyof typeof t.reports.charts;
  unit: Unit;
  figures: readonly ReportFigure[];
}

/** The charts that there may be of a subject. */
export const KINDS: readonly Kind[] = [
  { id: 'bytes', unit: 'byteRate', figures: ['read-bytes', 'written-bytes'] },
  { id: 'operations', unit: 'rate', figures: ['reads', 'writes'] },
  { id: 'times', unit: 'time', figures: ['read-time-p50', 'read-time-p90', 'read-time-p99'] },
  {
    id: 'writeTimes',
    unit: 'time',
    figures: ['write-time-p50', 'write-time-p90', 'write-time-p99'],
  },
  { id: 'meanTimes', unit: 'time', figures: ['read-time', 'write-time'] },
  { id: 'hits', unit: 'rate', figures: ['cache-hits', 'cache-misses'] },
  { id: 'cache', unit: 'bytes', figures: ['cache-bytes'] },
  { id: 'warmth', unit: 'share', figures: ['cache-hit-rate', 'cache-answer-rate'] },
  { id: 'fill', unit: 'bytes', figures: ['cache-device-bytes'] },
  {
    id: 'kindHits',
    unit: 'rate',
    figures: ['cache-data-hits', 'cache-metadata-hits', 'cache-dedup-table-hits'],
  },
  {
    id: 'kindMisses',
    unit: 'rate',
    figures: ['cache-data-misses', 'cache-metadata-misses', 'cache-dedup-table-misses'],
  },
  { id: 'ghosts', unit: 'rate', figures: ['cache-ghost-hits'] },
  { id: 'second', unit: 'rate', figures: ['cache-device-hits', 'cache-device-misses'] },
  { id: 'index', unit: 'bytes', figures: ['cache-index-bytes'] },
  { id: 'log', unit: 'bytes', figures: ['log-bytes'] },
  { id: 'queue', unit: 'count', figures: ['queue'] },
];

/** A line of a chart. */
export interface Line {
  name: string;
  values: (number | null)[];
}

export interface Chart {
  kind: Kind;
  figures: ReportValues[];
  times_s: number[];
  lines: Line[];
}

/**
 * The charts of a report. Where the server did not run there is a gap; one with one figure has its
 * highest values, too.
 */
export function charts(report: Report, { step_s }: Pick<ReportReply, 'step_s'>): Chart[] {
  return KINDS.flatMap((kind) => {
    const figures = kind.figures.flatMap((name) =>
      report.figures.filter(({ figure }) => figure === name),
    );
    if (figures.length === 0) return [];
    const lines = figures.flatMap(({ figure, values, highest }): Line[] => {
      const line = { name: t.reports.figures[figure], values };
      const isAlone = figures.length === 1 && highest.length > 0;
      return isAlone ? [line, { name: t.reports.highest(line.name), values: highest }] : [line];
    });
    const [times_s, places] = withGaps(report.times_s, step_s);
    const spread = lines.map(({ name, values }) => ({
      name,
      values: places.map((at) => (at === null ? null : (values[at] ?? null))),
    }));
    return [{ kind, figures, times_s, lines: spread }];
  });
}

/** Times with one more wherever some are missing, and which point is at each. */
function withGaps(times_s: readonly number[], step_s: number): [number[], (number | null)[]] {
  const times: number[] = [];
  const places: (number | null)[] = [];
  times_s.forEach((time_s, at) => {
    const before = times_s[at - 1];
    if (before !== undefined && time_s - before > step_s) {
      times.push(before + step_s);
      places.push(null);
    }
    times.push(time_s);
    places.push(at);
  });
  return [times, places];
}

/** Rows of a table: the newest first, no more than a person reads. */
export function rows(
  { times_s, lines }: Chart,
  most = 60,
): { time_s: number; cells: (number | null)[] }[] {
  const all = times_s.map((time_s, at) => ({
    time_s,
    cells: lines.map(({ values }) => values[at] ?? null),
  }));
  return all.reverse().slice(0, most);
}
