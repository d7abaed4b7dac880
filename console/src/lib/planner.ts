/** The page "Plan": from its form to a question, and from the answer to rows. */
import type { Disk } from '../api/types';
import type {
  DiskKind,
  Limit,
  PlanBus,
  PlanDisks,
  PlannedLayout,
  PlanQuestion,
  PlanReply,
  Purpose,
  RateName,
} from '../api/plan';
import { plan as t } from '../texts/plan';
import { line } from './actions';
import type { Layout } from './capacity';

/** Disks as they are typed; what is empty is usual for the kind. */
export interface DisksForm {
  count: string;
  size: string;
  kind: DiskKind;
  seeks: string;
  rate: string;
  price: string;
}

export interface BusForm {
  name: string;
  rate: string;
  disks: string;
}

/** What clients do, where it is not what they usually do. */
export interface LoadForm {
  isOwn: boolean;
  block: string;
  depth: string;
  reads: string;
  streams: string;
  streamRate: string;
}

export interface PlanForm {
  disks: DisksForm[];
  spares: string;
  purpose: Purpose;
  layouts: string;
  load: LoadForm;
  buses: BusForm[];
  network: string;
  memory: string;
}

export const PURPOSES = ['random', 'stream', 'vm', 'backup'] as const satisfies readonly Purpose[];
export const KINDS = ['hdd', 'ssd', 'nvme'] as const satisfies readonly DiskKind[];

export function newDisks(count = '', size = '', kind: DiskKind = 'hdd'): DisksForm {
  return { count, size, kind, seeks: '', rate: '', price: '' };
}

export function newForm(): PlanForm {
  return {
    disks: [newDisks('6', '4TB')],
    spares: '0',
    purpose: 'random',
    layouts: '',
    load: { isOwn: false, block: '128K', depth: '32', reads: '70', streams: '0', streamRate: '' },
    buses: [],
    network: '',
    memory: '',
  };
}

const POWERS = 'KMGTPE';

/**
 * Bytes of a size as the planner reads it: `500GB` and `1.5TB` in powers of 1,000, as disks are
 * sold; `128K`, `4G` and `4GiB` in powers of 1,024, as `zpool` counts.
 */
export function parseAmount(text: string): number | undefined {
  const found = /^(\d+(?:\.\d+)?)\s*(?:b|([kmgtpe])(b|ib)?)?$/i.exec(text.trim());
  if (!found?.[1]) return undefined;
  const base = found[3]?.toLowerCase() === 'b' ? 1000 : 1024;
  const power = found[2] ? POWERS.indexOf(found[2].toUpperCase()) + 1 : 0;
  const value = Math.round(Number(found[1]) * base ** power);
  return Number.isSafeInteger(value) ? value : undefined;
}

/** Bytes a second: a size, or bits as `10Gbit`; with or without `/s`. */
export function parseRate(text: string): number | undefined {
  const plain = text.trim().replace(/\s*\/s$/i, '');
  const bits = /^(.*\S)\s*bit$/i.exec(plain);
  if (!bits?.[1]) return parseAmount(plain);
  const value = parseAmount(`${bits[1]}B`);
  return value === undefined ? undefined : Math.ceil(value / 8);
}

export function parseNumber(text: string): number | undefined {
  return /^\s*\d+(?:\.\d+)?\s*$/.test(text) ? Number(text) : undefined;
}

export function parseCount(text: string): number | undefined {
  const value = parseNumber(text);
  return Number.isSafeInteger(value) ? value : undefined;
}

/** What may be left empty: nothing then, and undefined where it is not understood. */
function optional(
  text: string,
  parse: (text: string) => number | undefined,
): number | null | undefined {
  return text.trim() === '' ? null : parse(text);
}

function disksOf(form: DisksForm): PlanDisks | undefined {
  const [count, size] = [parseCount(form.count), parseAmount(form.size)];
  const seeks = optional(form.seeks, parseNumber);
  const rate = optional(form.rate, parseRate);
  const price = optional(form.price, parseNumber);
  if (!count || !size) return undefined;
  if (seeks === undefined || rate === undefined || price === undefined) return undefined;
  return {
    count,
    size_bytes: size,
    kind: form.kind,
    ...(seeks === null ? {} : { accesses_per_second: seeks }),
    ...(rate === null ? {} : { rate }),
    ...(price === null ? {} : { price }),
  };
}

function busOf(form: BusForm): PlanBus | undefined {
  const rate = parseRate(form.rate);
  const disks = optional(form.disks, parseCount);
  if (!rate || disks === undefined) return undefined;
  const name = form.name.trim() === '' ? form.rate.trim() : form.name.trim();
  return { name, read_rate: rate, write_rate: rate, disks: disks ?? 0 };
}

function loadOf(form: LoadForm): PlanQuestion['load'] | undefined {
  if (!form.isOwn) return null;
  const [block, depth] = [parseAmount(form.block), parseCount(form.depth)];
  const [reads, streams] = [parseNumber(form.reads), parseCount(form.streams)];
  const rate = optional(form.streamRate, parseRate);
  if (!block || !depth || reads === undefined || reads > 100) return undefined;
  if (streams === undefined || rate === undefined) return undefined;
  return {
    block_bytes: block,
    depth,
    read_share: reads / 100,
    streams,
    stream_rate: rate ?? 0,
  };
}

function whole<T>(list: (T | undefined)[]): T[] | undefined {
  return list.every((one) => one !== undefined) ? (list as T[]) : undefined;
}

export function layoutWords(text: string): string[] {
  return text.split(/[\s,]+/).filter((word) => word !== '');
}

/** What is asked; undefined while something in the form is not understood. */
export function questionOf(form: PlanForm): PlanQuestion | undefined {
  const disks = whole(form.disks.map(disksOf));
  const buses = whole(form.buses.map(busOf));
  const load = loadOf(form.load);
  const spares = optional(form.spares, parseCount);
  const network = optional(form.network, parseRate);
  const memory = optional(form.memory, parseAmount);
  if (!disks || disks.length === 0 || !buses || load === undefined) return undefined;
  if (spares === undefined || network === undefined || memory === undefined) return undefined;
  return {
    disks,
    spares: spares ?? 0,
    layouts: layoutWords(form.layouts),
    purposes: [form.purpose],
    load,
    buses,
    network_rate: network,
    memory_bytes: memory,
  };
}

/** Without the spaces that people put between a number and its unit. */
function tight(text: string): string {
  return text.replace(/\s+/g, '');
}

/** The command line that asks the same; none where it has no words for what clients do. */
export function commandOf(form: PlanForm): string | undefined {
  if (form.load.isOwn) return undefined;
  const options = form.disks.flatMap(({ count, size, kind, seeks, rate, price }) => {
    const figures = [
      kind === 'hdd' ? '' : `:${kind}`,
      seeks.trim() === '' ? '' : `:${tight(seeks)}seeks`,
      rate.trim() === '' ? '' : `:${tight(rate).replace(/\/s$/i, '')}/s`,
      price.trim() === '' ? '' : `:price=${tight(price)}`,
    ];
    return ['--disks', `${tight(count)}x${tight(size)}${figures.join('')}`];
  });
  const spares = parseCount(form.spares) ?? 0;
  if (spares > 0) options.push('--spares', String(spares));
  for (const layout of layoutWords(form.layouts)) options.push('--layout', layout);
  options.push('--use', form.purpose);
  for (const { rate, disks } of form.buses) {
    const on = disks.trim() === '' ? '' : `:${tight(disks)}`;
    options.push('--bus', `${parseRate(rate) ?? 0}${on}`);
  }
  if (form.network.trim() !== '') options.push('--network', tight(form.network));
  if (form.memory.trim() !== '') options.push('--memory', tight(form.memory));
  return line('millpond', 'plan', ...options);
}

/** The host's disks that nothing uses, alike ones together. */
export function freeDisks(disks: readonly Disk[]): DisksForm[] {
  const counts = new Map<string, { count: number; size: number; kind: DiskKind }>();
  for (const disk of disks) {
    if (disk.in_use !== null) continue;
    const kind = kindOf(disk);
    const key = `${kind} ${disk.size_bytes}`;
    const known = counts.get(key);
    counts.set(key, { count: (known?.count ?? 0) + 1, size: disk.size_bytes, kind });
  }
  return [...counts.values()].map(({ count, size, kind }) =>
    newDisks(String(count), String(size), kind),
  );
}

export function kindOf(disk: Pick<Disk, 'name' | 'is_rotational'>): DiskKind {
  if (disk.is_rotational) return 'hdd';
  return disk.name.startsWith('nvme') ? 'nvme' : 'ssd';
}

/** The planner's word for a layout of the wizard. */
export function wordOf({ kind, parity, groups, width }: Layout): string {
  if (kind === 'stripe') return `stripe:${groups * width}`;
  return `${kind}${parity > 1 ? parity : ''}:${groups}x${width}`;
}

// Figures

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'] as const;

/** Bytes with three digits in powers of 1,000, as disks are sold: `6.00 TB`. */
export function decimal(bytes: number): string {
  let rest = bytes;
  let unit = 0;
  while (rest >= 999.5 && unit < UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || rest >= 99.95 ? 0 : rest < 9.995 ? 2 : 1;
  return `${rest.toFixed(digits)} ${UNITS[unit]}`;
}

export function decimalRate(bytesPerSecond: number): string {
  return `${decimal(bytesPerSecond)}/s`;
}

/** A chance as people read it. Two digits are all that such an estimate knows. */
export function chance(value: number): string {
  if (value < 1e-9) return t.chanceTiny;
  if (value >= 0.01) return `${(value * 100).toFixed(1)}%`;
  const times = 1 / value;
  const step = 10 ** Math.max(0, Math.floor(Math.log10(times)) - 1);
  return t.chance((Math.round(times / step) * step).toLocaleString('en'));
}

/** Operations a second with three digits. */
export function operations(value: number): string {
  return Number(value.toPrecision(3)).toLocaleString('en', { maximumFractionDigits: 1 });
}

export function money(value: number): string {
  return value.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

/** What limits a rate, in words. */
export function limitWords(limit: Limit): string {
  if (typeof limit === 'string') return t.limits[limit];
  return 'bus' in limit ? t.limitBus(limit.bus) : t.limitParity(limit.parity);
}

// The table

export type SortKey =
  | 'layout'
  | 'usable_bytes'
  | 'loss_per_year'
  | RateName
  | 'scrub_seconds'
  | 'rebuild_seconds'
  | 'per_terabyte'
  | 'per_read_iops';

export interface Sorting {
  key: SortKey;
  descending: boolean;
}

/** Of these more is better, so the biggest come first. */
const MORE_IS_BETTER: ReadonlySet<SortKey> = new Set([
  'usable_bytes',
  'read_iops',
  'write_iops',
  'read_rate',
  'write_rate',
]);

/** The best first, and when it is so already the other way round. */
export function sortBy(key: SortKey, before: Sorting | undefined): Sorting {
  const best = MORE_IS_BETTER.has(key);
  return { key, descending: before?.key === key ? !before.descending : best };
}

function valueOf(of: PlannedLayout, key: Exclude<SortKey, 'layout'>): number | null {
  if (key === 'per_terabyte' || key === 'per_read_iops') return of.cost?.[key] ?? null;
  return of[key];
}

/** The layouts in this order; what has no figure comes last, either way. */
export function sorted(
  layouts: readonly PlannedLayout[],
  sorting: Sorting | undefined,
): PlannedLayout[] {
  if (sorting === undefined) return [...layouts];
  const { key, descending } = sorting;
  const sign = descending ? -1 : 1;
  return [...layouts].sort((a, b) => {
    if (key === 'layout') return sign * a.layout.localeCompare(b.layout, 'en', { numeric: true });
    const [one, other] = [valueOf(a, key), valueOf(b, key)];
    if (one === null || other === null) return Number(one === null) - Number(other === null);
    return sign * (one - other);
  });
}

export interface Told {
  /** Which layout, and why. */
  recommended: string[];
  /** What cannot be changed once the pool is made. */
  fixed: string[];
  /** What chances are computed from. */
  assumed: string[];
  others: string[];
}

/** The sentences of an answer by what they are about. */
export function toldOf({ answer, sentences }: PlanReply): Told {
  const out: Told = { recommended: [], fixed: [], assumed: [], others: [] };
  answer.notes.forEach(({ note }, index) => {
    const sentence = sentences[index];
    if (sentence === undefined) return;
    const place =
      note === 'recommended' || note === 'fixed' || note === 'assumed' ? note : 'others';
    out[place].push(sentence);
  });
  return out;
}

// The plot

export interface Spot {
  layout: string;
  /** 0 to 1 of each axis. */
  x: number;
  y: number;
  isRecommended: boolean;
}

export interface Plot {
  spots: Spot[];
  most: { x: number; y: number };
}

/** Layouts by space and a rate; both axes begin at zero. */
export function plotOf(reply: PlanReply, rate: RateName): Plot {
  const { layouts, recommended } = reply.answer;
  const best = new Set(recommended.map(({ layout }) => layout));
  const most = {
    x: Math.max(...layouts.map((of) => of.usable_bytes), 1),
    y: Math.max(...layouts.map((of) => of[rate]), 1),
  };
  const spots = layouts.map((of) => ({
    layout: of.layout,
    x: of.usable_bytes / most.x,
    y: of[rate] / most.y,
    isRecommended: best.has(of.layout),
  }));
  return { spots, most };
}

/** The rate that counts for a purpose. */
export function rateFor(purpose: Purpose): RateName {
  switch (purpose) {
    case 'random':
    case 'vm':
      return 'read_iops';
    case 'stream':
      return 'read_rate';
    case 'backup':
      return 'write_rate';
  }
}
