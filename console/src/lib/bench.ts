/** Measurements: what a form means, what is said before, and what comes of them. */
import type {
  BenchCompared,
  BenchKept,
  BenchLook,
  BenchMeasured,
  BenchNote,
  BenchProfile,
  BenchReport,
  BenchStep,
  BenchWanted,
} from '../api/bench';
import { bench as t } from '../texts/bench';
import { action, line, type Action } from './actions';
import { decimalRate, operations, parseRate } from './planner';
import type { Line } from './reports';
import { count, duration, parseSize, percent, size } from './units';

/** As it is typed. */
export interface BenchForm {
  dataset: string;
  profile: BenchProfile;
  isVolume: boolean;
  size: string;
  depths: string;
  block: string;
  compression: string;
  seconds: string;
  warmUp: string;
  hours: string;
  rate: string;
}

export function newForm(dataset: string): BenchForm {
  return {
    dataset,
    profile: 'iometer',
    isVolume: false,
    size: '',
    depths: '',
    block: '',
    compression: '',
    seconds: '',
    warmUp: '',
    hours: '',
    rate: '',
  };
}

const SIZE_MIN = 1 << 20;
const [BLOCK_MIN, BLOCK_MAX] = [512, 16 << 20];
// As crate `bench` has them (`limits`).
const [SECONDS_MAX, STREAM_SECONDS_MAX] = [3600, 600];
const [DEPTH_MAX, DEPTHS_MAX] = [1024, 16];
const HOURS_MAX = 48;
const RATE_MAX = 2 ** 40;

/** A whole number within bounds; undefined where it is none. */
function whole(text: string, least: number, most: number): number | undefined {
  if (!/^\s*\d+\s*$/.test(text)) return undefined;
  const value = Number(text);
  return value >= least && value <= most ? value : undefined;
}

export function parseBytes(text: string): number | undefined {
  const value = parseSize(text);
  return value !== undefined && value >= SIZE_MIN ? value : undefined;
}

export function parseBlock(text: string): number | undefined {
  const value = parseSize(text);
  if (value === undefined || value < BLOCK_MIN || value > BLOCK_MAX) return undefined;
  return Number.isInteger(Math.log2(value)) ? value : undefined;
}

/** The most seconds that each of these loads may be measured for. */
export function secondsMax(profile: BenchProfile): number {
  return profile === 'streams' ? STREAM_SECONDS_MAX : SECONDS_MAX;
}

export function parseSeconds(text: string, profile: BenchProfile): number | undefined {
  return whole(text, 1, secondsMax(profile));
}

export function parseWarmUp(text: string): number | undefined {
  return whole(text, 0, SECONDS_MAX);
}

/** Seconds of so many hours. */
export function parseHours(text: string): number | undefined {
  if (!/^\s*\d+(\.\d+)?\s*$/.test(text)) return undefined;
  const seconds = Math.round(Number(text) * 3600);
  return seconds >= 1 && seconds <= HOURS_MAX * 3600 ? seconds : undefined;
}

export function parseStreamRate(text: string): number | undefined {
  const value = parseRate(text);
  return value !== undefined && value >= 1 && value <= RATE_MAX ? Math.round(value) : undefined;
}

export function parseDepths(text: string): number[] | undefined {
  const words = text.split(/[\s,]+/).filter((word) => word !== '');
  const depths = words.map((word) => whole(word, 1, DEPTH_MAX));
  if (depths.length > DEPTHS_MAX || depths.includes(undefined)) return undefined;
  return depths as number[];
}

/** Null where nothing is typed; undefined where it is not understood. */
function optional<T>(text: string, parse: (text: string) => T | undefined): T | null | undefined {
  return text.trim() === '' ? null : parse(text);
}

/** Which fields count for loads. */
export function fieldsOf(profile: BenchProfile): ReadonlySet<keyof BenchForm> {
  switch (profile) {
    case 'bonnie':
      return new Set(['seconds', 'warmUp']);
    case 'warm-up':
      return new Set(['depths', 'hours']);
    case 'streams':
      return new Set(['seconds', 'rate']);
    default:
      return new Set(['depths', 'seconds', 'warmUp']);
  }
}

/** What is wanted; undefined while something of it is not understood. */
export function wantedOf(form: BenchForm): BenchWanted | undefined {
  const fields = fieldsOf(form.profile);
  const text = (field: 'depths' | 'seconds' | 'warmUp' | 'hours' | 'rate'): string =>
    fields.has(field) ? form[field] : '';
  const wanted = {
    size_bytes: optional(form.size, parseBytes),
    block_bytes: optional(form.block, parseBlock),
    depths: parseDepths(text('depths')),
    seconds: optional(text('seconds'), (typed) => parseSeconds(typed, form.profile)),
    warm_up_seconds: optional(text('warmUp'), parseWarmUp),
    total_seconds: optional(text('hours'), parseHours),
    stream_rate: optional(text('rate'), parseStreamRate),
  };
  if (form.dataset === '') return undefined;
  const { size_bytes, block_bytes, depths, seconds } = wanted;
  const { warm_up_seconds, total_seconds, stream_rate } = wanted;
  if (size_bytes === undefined || block_bytes === undefined || depths === undefined) {
    return undefined;
  }
  if (seconds === undefined || warm_up_seconds === undefined) return undefined;
  if (total_seconds === undefined || stream_rate === undefined) return undefined;
  return {
    dataset: form.dataset,
    profile: form.profile,
    is_volume: form.isVolume,
    block_bytes,
    compression: form.compression === '' ? null : form.compression,
    size_bytes,
    depths,
    seconds,
    warm_up_seconds,
    total_seconds,
    stream_rate,
  };
}

/** Measures this. `millpond bench` has no words for a dataset of its own, so the API is asked. */
export function measure(wanted: BenchWanted): Action<'/v1/bench/run'> {
  const socket = '/var/lib/millpond/millpond.sock';
  const body = { wanted };
  const words = ['curl', '--unix-socket', socket, 'http://localhost/v1/bench/run', '-d'];
  return action('/v1/bench/run', line(...words, JSON.stringify(body)), body);
}

/** What it will do to the pool, a sentence each. */
export function willOf(wanted: BenchWanted, look: BenchLook): string[] {
  const space = size(look.space_bytes);
  const told = [
    t.will.written(size(look.size_bytes), wanted.dataset),
    t.will.space(
      space,
      percent(look.space_bytes, look.available_bytes),
      size(look.available_bytes),
    ),
  ];
  if (look.pool_available_bytes > look.available_bytes) {
    const part = percent(look.space_bytes, look.pool_available_bytes);
    told.push(t.will.pool(part, size(look.pool_available_bytes)));
  }
  if (look.quota) {
    const left = Math.max(0, look.quota.quota_bytes - look.quota.used_bytes);
    told.push(t.will.quota(look.quota.dataset, percent(look.space_bytes, left), size(left)));
  }
  const writes =
    wanted.profile === 'streams' || look.tests.some(({ reads_percent }) => reads_percent < 100);
  told.push(writes ? t.will.writing(duration(look.writing_seconds)) : t.will.reading);
  told.push(t.will.longest(duration(look.seconds_max)), t.will.slower, t.will.stop);
  return told;
}

export function stepWords(step: BenchStep): string {
  switch (step.step) {
    case 'load':
      return t.steps.load(step.number, step.count, step.name);
    case 'streams':
      return t.steps.streams(step.count);
    case 'warming':
      return t.steps.warming(duration(step.done_seconds), duration(step.total_seconds));
    default:
      return t.steps[step.step];
  }
}

/** A load's name with its depth, as the server writes it. */
export function nameOf(
  test: Pick<BenchCompared, 'name' | 'depth' | 'workers' | 'is_whole'>,
): string {
  if (test.is_whole) return test.name;
  const many = test.workers === 1 ? t.depth(test.depth) : t.workers(test.workers);
  return `${test.name}, ${many}`;
}

/** Milliseconds with three digits: `0.123`, `4.56`, `78.9`. */
export function milliseconds(value: number): string {
  return t.ms(Number(value.toPrecision(3)).toLocaleString('en', { maximumFractionDigits: 3 }));
}

/** A load as a row of the table. */
export interface Row {
  name: string;
  iops: string;
  error: string | null;
  rate: string;
  mean: string;
  p99: string | null;
  planned: string | null;
  isMoving: boolean;
}

/** The mean time of reads and writes together, in milliseconds. */
export function meanMs({ reads, writes }: Pick<BenchMeasured, 'reads' | 'writes'>): number {
  const ways = [reads, writes].filter((way) => way !== null);
  const all = ways.reduce((sum, { iops }) => sum + iops, 0);
  return all > 0 ? ways.reduce((sum, { iops, mean_ms }) => sum + iops * mean_ms, 0) / all : 0;
}

export function rowOf(one: BenchMeasured): Row {
  const slowest = [one.reads?.p99_ms, one.writes?.p99_ms].filter(
    (value) => typeof value === 'number',
  );
  return {
    name: nameOf(one),
    iops: t.perSecond(operations(one.iops)),
    error: one.iops_error === null ? null : t.error(operations(one.iops_error)),
    rate: decimalRate(one.rate),
    mean: milliseconds(meanMs(one)),
    p99: slowest.length === 0 ? null : milliseconds(Math.max(...slowest)),
    planned: one.planned_iops === null ? null : t.perSecond(operations(one.planned_iops)),
    isMoving: one.is_steady === false,
  };
}

/** A load over time, in seconds since it began. */
export interface Curve {
  name: string;
  times_s: number[];
  lines: Line[];
  to_s: number;
}

export function curveOf(one: BenchMeasured): Curve {
  // Until it is steady, and what counts, each have a time of their own.
  const times_s = [
    ...one.before.map(({ at_seconds }) => at_seconds),
    ...one.points.map(({ at_seconds }) => at_seconds + one.warm_up_seconds),
  ];
  const [before, points] = [one.before, one.points].map((list) => list.map(({ iops }) => iops));
  const none = (list: readonly unknown[]): null[] => list.map(() => null);
  const lines = [{ name: t.measured, values: [...none(one.before), ...(points ?? [])] }];
  if (one.before.length > 0) {
    lines.push({ name: t.before, values: [...(before ?? []), ...none(one.points)] });
  }
  return { name: nameOf(one), times_s, lines, to_s: Math.max(1, ...times_s) };
}

/** Hours of reading over time. */
export function warmUpCurve(report: BenchReport): Curve | undefined {
  const parts = report.warm_up?.parts ?? [];
  if (parts.length === 0) return undefined;
  const times_s = parts.map(({ at_seconds }) => at_seconds);
  const lines = [{ name: t.reading, values: parts.map(({ iops }) => iops) }];
  return { name: t.reading, times_s, lines, to_s: Math.max(1, ...times_s) };
}

/** All that there are of a report. */
export function curvesOf(report: BenchReport): Curve[] {
  const warm = warmUpCurve(report);
  if (warm) return [warm];
  return report.tests.map(curveOf).filter(({ times_s }) => times_s.length > 1);
}

export function streamWords(streams: NonNullable<BenchReport['streams']>): string {
  const { rate, recordings, playbacks } = streams.wanted;
  const of = (many: number): string => t.pairs(recordings * many, playbacks * many);
  const told =
    streams.most === 0
      ? [t.mostNone(decimalRate(rate))]
      : [t.most(of(streams.most), decimalRate(rate))];
  if (streams.most > 0 && streams.is_at_limit) told.push(t.atLimit);
  if (streams.planned !== null) told.push(t.plannedStreams(of(streams.planned)));
  return told.join(' ');
}

/** A note as a sentence; none of what cannot be here. */
export function noteWords(note: BenchNote): string | undefined {
  switch (note.note) {
    case 'in-memory':
      return t.note.inMemory(size(note.size_bytes), size(note.memory_bytes));
    case 'page-cache':
      return t.note.pageCache;
    case 'not-steady':
      return t.note.notSteady(note.tests.join('; '));
    case 'unsure':
      return t.note.unsure(note.tests.join('; '));
    default:
      return undefined;
  }
}

/** What was best in a report that is kept. */
export function bestOf(kept: BenchKept): string {
  if (kept.streams !== null) return t.bestStreams(count(kept.streams));
  const told: string[] = [];
  if (kept.iops_max !== null) told.push(t.perSecond(operations(kept.iops_max)));
  if (kept.rate_max !== null) told.push(decimalRate(kept.rate_max));
  return told.join(', ');
}

/** How many times as much: `1.50×`. */
export function ratio(value: number): string {
  return `${value.toFixed(2)}×`;
}

/** Whether a difference counts. */
export function sureness({ is_sure }: Pick<BenchCompared, 'is_sure'>): string {
  if (is_sure === null) return t.unknown;
  return is_sure ? t.sure : t.unsure;
}
