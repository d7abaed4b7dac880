/** Schedules in words, and what a form of one says. Nothing here asks the server. */
import type {
  Keep,
  Schedule,
  ScheduleHours,
  ScheduleTask,
  ScheduleWhen,
  Weekday,
} from '../api/types';
import { t } from '../texts/en';
import type { Level } from './health';
import { duration } from './units';

const DAY_S = 86_400;

export const TASKS = [
  'snapshot',
  'scrub',
  'trim',
  'smart-short',
  'smart-long',
] as const satisfies readonly ScheduleTask[];
export const PERIODS = ['hour', 'day', 'week', 'month', 'interval'] as const;
export type Period = ScheduleWhen['every'];
export const WEEKDAYS = [
  'monday',
  'tuesday',
  'wednesday',
  'thursday',
  'friday',
  'saturday',
  'sunday',
] as const satisfies readonly Weekday[];

/** What stays of snapshots unless something else is said. */
export const KEEP: Keep = { hourly: 24, daily: 30, weekly: 8, monthly: 12 };

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** A time of day: `02:05`. */
export function timeOf(hour: number, minute: number): string {
  return `${two(hour)}:${two(minute)}`;
}

/** Hour and minute of a time of day; undefined where it is none. */
export function parseTime(text: string): { hour: number; minute: number } | undefined {
  const found = /^(\d{1,2}):(\d{2})$/.exec(text.trim());
  if (!found) return undefined;
  const [hour, minute] = [Number(found[1]), Number(found[2])];
  return hour < 24 && minute < 60 ? { hour, minute } : undefined;
}

/** Whether disks test themselves: those of a pool, or all of the host where there is no target. */
export function isTest(task: ScheduleTask): boolean {
  return task === 'smart-short' || task === 'smart-long';
}

/** What something does usually: scrubs monthly, trims weekly, snapshots hourly. */
export function usual(task: ScheduleTask): ScheduleWhen {
  switch (task) {
    case 'scrub':
      return { every: 'month', day: 1, hour: 2, minute: 0 };
    case 'trim':
      return { every: 'week', day: 'sunday', hour: 2, minute: 0 };
    case 'snapshot':
      return { every: 'hour', minute: 0 };
    case 'smart-short':
      return { every: 'week', day: 'wednesday', hour: 2, minute: 0 };
    case 'smart-long':
      return { every: 'month', day: 15, hour: 2, minute: 0 };
  }
}

/** How often, in words. */
export function every(when: ScheduleWhen): string {
  switch (when.every) {
    case 'interval':
      return t.schedules.each(duration(when.seconds));
    case 'hour':
      return t.schedules.atMinute(two(when.minute));
    case 'day':
      return t.schedules.dailyAt(timeOf(when.hour, when.minute));
    case 'week':
      return t.schedules.weeklyAt(t.schedules.weekdays[when.day], timeOf(when.hour, when.minute));
    case 'month':
      return t.schedules.monthlyAt(when.day, timeOf(when.hour, when.minute));
  }
}

/** Hours of the day: `22:00-06:00`. */
export function hoursOf({ from, until }: ScheduleHours): string {
  return `${timeOf(from.hour, from.minute)}-${timeOf(until.hour, until.minute)}`;
}

/** The hours of a scrub, and its share of the disks' time; empty where there are none. */
export function limits({ hours, share }: Schedule): string {
  return [hours && hoursOf(hours), share && `${share} %`].filter(Boolean).join(', ');
}

/** The rule as the command line has it: `hourly=24,daily=30`. */
export function rule(keep: Keep | null): string {
  if (keep === null) return 'all';
  const parts = Object.entries(keep).filter(([, count]) => count > 0);
  return parts.length === 0
    ? 'hourly=0'
    : parts.map(([period, count]) => `${period}=${count}`).join(',');
}

/** An interval as the command line has it: `15m`, `6h`. */
export function intervalWords(seconds: number): string {
  const units = [
    [7 * DAY_S, 'w'],
    [DAY_S, 'd'],
    [3600, 'h'],
    [60, 'm'],
  ] as const;
  for (const [unit, letter] of units) {
    if (seconds % unit === 0) return `${seconds / unit}${letter}`;
  }
  return `${seconds}s`;
}

/** The options of `millpond schedule set` that say how often. */
export function whenWords(when: ScheduleWhen): string[] {
  switch (when.every) {
    case 'interval':
      return ['--every', intervalWords(when.seconds)];
    case 'hour':
      return ['--every', 'hour', '--at', `:${two(when.minute)}`];
    case 'day':
      return ['--every', 'day', '--at', timeOf(when.hour, when.minute)];
    case 'week':
    case 'month': {
      const day = when.every === 'week' ? when.day.slice(0, 3) : String(when.day);
      const at = timeOf(when.hour, when.minute);
      return ['--every', when.every, '--on', day, '--at', at];
    }
  }
}

/** What a schedule is called that is given no name. */
export function defaultName(task: ScheduleTask, target: string): string {
  const name =
    task === 'snapshot' ? target : [task, target].filter((word) => word !== '').join('-');
  return name.replace(/[^\w.-]/g, '-').slice(0, 64);
}

export function isName(name: string): boolean {
  return /^[\w.-]{1,64}$/.test(name);
}

export type State = keyof typeof t.schedules.states;

/** How a schedule is. */
export function stateOf(schedule: Schedule): State {
  if (schedule.job !== null) return 'running';
  if (schedule.is_paused) return 'paused';
  if (schedule.waits !== null) return 'waits';
  if (schedule.last === null) return 'new';
  if (schedule.last.state === 'failed') return 'failed';
  if (schedule.last.state === 'canceled') return 'stopped';
  return schedule.last.skipped === null ? 'done' : 'skipped';
}

export const LEVELS: Record<State, Level | 'accent'> = {
  running: 'accent',
  paused: 'warn',
  waits: 'warn',
  failed: 'bad',
  stopped: 'quiet',
  skipped: 'quiet',
  done: 'ok',
  new: 'quiet',
};
