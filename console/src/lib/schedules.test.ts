import { describe, expect, it } from 'vitest';

import type { Schedule, ScheduleResult, ScheduleWhen } from '../api/types';
import * as actions from './actions';
import * as schedules from './schedules';

describe('how often', () => {
  it('is told in words, and as the command line has it', () => {
    const cases: [ScheduleWhen, string, string][] = [
      [{ every: 'hour', minute: 5 }, 'Each hour at :05', '--every hour --at :05'],
      [{ every: 'day', hour: 2, minute: 0 }, 'Each day at 02:00', '--every day --at 02:00'],
      [
        { every: 'week', day: 'sunday', hour: 23, minute: 59 },
        'Each Sunday at 23:59',
        '--every week --on sun --at 23:59',
      ],
      [
        { every: 'month', day: 31, hour: 0, minute: 0 },
        'Each month on day 31 at 00:00',
        '--every month --on 31 --at 00:00',
      ],
      [{ every: 'interval', seconds: 900 }, 'Every 15 min', '--every 15m'],
      [{ every: 'interval', seconds: 90 }, 'Every 1 min 30 s', '--every 90s'],
    ];
    for (const [when, words, options] of cases) {
      expect(schedules.every(when)).toBe(words);
      expect(schedules.whenWords(when).join(' ')).toBe(options);
    }
  });

  it('takes times of day and nothing else', () => {
    expect(schedules.parseTime('02:05')).toEqual({ hour: 2, minute: 5 });
    expect(schedules.parseTime('7:30')).toEqual({ hour: 7, minute: 30 });
    for (const wrong of ['24:00', '02:60', '2', '', '02:5', 'noon']) {
      expect(schedules.parseTime(wrong)).toBeUndefined();
    }
  });
});

it('names schedules by what they do', () => {
  expect(schedules.defaultName('snapshot', 'tank/my films')).toBe('tank-my-films');
  expect(schedules.defaultName('scrub', 'tank')).toBe('scrub-tank');
  expect(schedules.defaultName('smart-long', '')).toBe('smart-long');
  expect(schedules.defaultName('smart-short', 'tank')).toBe('smart-short-tank');
  expect(schedules.isName('a-b_c.1') && !schedules.isName('a/b') && !schedules.isName('')).toBe(
    true,
  );
});

it('makes command lines that do the same', () => {
  const made = actions.setSchedule({
    name: 'home',
    task: 'snapshot',
    target: 'tank/home',
    recursive: true,
    when: { every: 'hour', minute: 0 },
    keep: { hourly: 24, daily: 30, weekly: 0, monthly: 0 },
  });
  expect(made.command).toBe(
    'millpond schedule set snapshot tank/home -r --every hour --at :00 ' +
      '--keep hourly=24,daily=30 --name home',
  );
  const scrub = actions.setSchedule({
    name: 'scrub-tank',
    task: 'scrub',
    target: 'tank',
    recursive: false,
    when: { every: 'month', day: 1, hour: 2, minute: 0 },
    keep: null,
  });
  expect(scrub.command).toBe(
    'millpond schedule set scrub tank --every month --on 1 --at 02:00 --name scrub-tank',
  );
  const limited = actions.setSchedule({
    name: 'nights',
    task: 'scrub',
    target: 'tank',
    recursive: false,
    when: { every: 'month', day: 1, hour: 2, minute: 0 },
    keep: null,
    hours: { from: { hour: 22, minute: 0 }, until: { hour: 6, minute: 30 } },
    share: 25,
  });
  expect(limited.command).toBe(
    'millpond schedule set scrub tank --every month --on 1 --at 02:00 ' +
      '--hours 22:00-06:30 --share 25 --name nights',
  );
  const tests = actions.setSchedule({
    name: 'smart-long',
    task: 'smart-long',
    target: '',
    recursive: false,
    when: schedules.usual('smart-long'),
    keep: null,
  });
  expect(tests.command).toBe(
    'millpond schedule set smart-long --every month --on 15 --at 02:00 --name smart-long',
  );
  expect(schedules.rule(null)).toBe('all');
  expect(actions.pauseSchedule('a', false)).toMatchObject({
    command: 'millpond schedule resume a',
    body: { name: 'a', is_paused: false },
  });
});

it('tells how a schedule is', () => {
  const last: ScheduleResult = {
    begin_s: 1,
    end_s: 2,
    state: 'finished',
    skipped: null,
    snapshot: null,
    destroyed: 0,
    left: [],
    tested: 0,
    untested: [],
    failure: null,
  };
  const schedule: Schedule = {
    name: 'a',
    task: 'scrub',
    target: 'tank',
    recursive: false,
    when: { every: 'hour', minute: 0 },
    keep: null,
    is_paused: false,
    job: null,
    next_s: 3,
    waits: null,
    last,
    success_s: 2,
    failures: 0,
  };
  expect(schedules.stateOf(schedule)).toBe('done');
  expect(schedules.stateOf({ ...schedule, last: null })).toBe('new');
  expect(schedules.stateOf({ ...schedule, last: { ...last, state: 'failed' } })).toBe('failed');
  expect(schedules.stateOf({ ...schedule, last: { ...last, skipped: 'scrubbing' } })).toBe(
    'skipped',
  );
  expect(schedules.stateOf({ ...schedule, waits: 'not-imported' })).toBe('waits');
  expect(schedules.stateOf({ ...schedule, waits: 'suspended', is_paused: true })).toBe('paused');
});
