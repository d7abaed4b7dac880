/** Events as people read them. */
import type { ServerEvent } from '../api/types';
import { t } from '../texts/en';

/** What happened. */
export function eventTitle(event: ServerEvent): string {
  const job = event.job;
  if (job) {
    const kind = t.jobs.kinds[job.kind] ?? job.kind;
    return event.class === 'job.started'
      ? `${kind}: ${t.jobs.states.running}`
      : `${kind}: ${t.jobs.states[job.state]}`;
  }
  return t.events.classes[event.class] ?? event.class;
}

/** Jobs that events of their own tell of, which would begin and end twice. */
const TWICE = new Set(['scrub', 'resilver']);

/** Whether an event is one for people: of a job its end alone, as in the server's history. */
export function isTold({ class: name, job }: ServerEvent): boolean {
  if (name === 'job.started' || name === 'job.progress') return false;
  return !(job && TWICE.has(job.kind));
}

/** What makes two events the same one; numbers begin anew with the server. */
export function keyOf(event: ServerEvent): string {
  return `${event.time_ns} ${event.sequence}`;
}

/** Names that are told of an event. */
const TOLD = 3;

/** What it is about: a pool, or datasets. */
export function eventAbout(event: ServerEvent): string {
  if (event.names) {
    const told = event.names.slice(0, TOLD).join(', ');
    const rest = event.names.length - TOLD;
    return rest > 0 ? `${told} ${t.events.more(rest)}` : told;
  }
  if (event.says !== undefined) return event.says;
  if (event.pool !== undefined) return event.pool;
  if (event.job) return event.job.pool ?? '';
  const pair = event.pairs?.find(({ name }) => name === 'pool');
  return typeof pair?.value === 'string' ? pair.value : '';
}

/** When, in seconds since 1970. */
export function eventTime(event: ServerEvent): number {
  return Number(BigInt(event.time_ns) / 1_000_000n) / 1000;
}
