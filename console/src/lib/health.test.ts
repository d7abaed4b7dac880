import { describe, expect, it } from 'vitest';

import type { Alert } from '../api/alerts';
import type { PoolStatus, Scan, Vdev } from '../api/types';
import { conditionOf, healthOf, scanSecondsLeft, scanShare, storyOf } from './health';

const scan: Scan = {
  function: 'scrub',
  state: 'finished',
  start_time_s: 1000,
  end_time_s: 2000,
  pause_time_s: 0,
  elapsed_s: 10,
  to_examine_bytes: 1000,
  examined_bytes: 1000,
  issued_bytes: 250,
  pass_issued_bytes: 250,
  repaired_bytes: 0,
  errors: 0,
};

function pool(over: Partial<PoolStatus>): PoolStatus {
  return {
    name: 'tank',
    guid: '1',
    health: 'online',
    condition: null,
    is_healthy: true,
    scan,
    checkpoint: null,
    tree: {} as Vdev,
    error_count: 0,
    damaged: [],
    ...over,
  };
}

describe('the sentence', () => {
  it('is quiet without pools', () => expect(healthOf([]).level).toBe('quiet'));

  it('says that all is well only where it is', () => {
    const well = healthOf([pool({}), pool({ name: 'vault' })], [], 2000 + 86_400 * 3);
    expect(well).toMatchObject({ level: 'ok', says: 'Both pools work as they should.' });
    expect(well.todo).toContain('3 days ago');
    expect(healthOf([pool({ scan: null })]).todo).toContain('scrubbed yet');
    const found = pool({ scan: { ...scan, errors: 2 } });
    expect(healthOf([found]).todo).not.toContain('nothing wrong');
  });

  it('mentions an alert of a pool that works', () => {
    const alert: Alert = {
      rule: 'space',
      severity: 'critical',
      pool: 'tank',
      pool_guid: '1',
      fact: { is: 'space', percent: 91, limit_percent: 90 },
      since_s: 1,
      told_s: 1,
      says: 'Pool tank is 91% full.',
    };
    expect(healthOf([pool({})], [alert])).toMatchObject({
      level: 'bad',
      says: 'Pool tank is 91% full.',
    });
    const told = healthOf([pool({})], [{ ...alert, severity: 'warning' }]);
    expect(told.level).toBe('warn');
  });

  it('says of a failed device what the mail says, and of one that was taken offline why', () => {
    const degraded = pool({
      health: 'degraded',
      is_healthy: false,
      condition: { condition: 'missing-devices' },
    });
    const says =
      'Device /dev/sda (serial Z1) of pool tank cannot be opened; the pool survives no further failure.';
    const alert: Alert = {
      rule: 'device-state',
      severity: 'critical',
      pool: 'tank',
      pool_guid: '1',
      fact: { is: 'device', device: '/dev/sda', state: 'unavailable', is_log: false },
      since_s: 1,
      told_s: 1,
      says,
    };
    expect(healthOf([degraded], [alert])).toMatchObject({ level: 'bad', says });
    expect(storyOf(degraded, [alert]).map((story) => story.says)).toEqual([says]);
    expect(storyOf(pool({ guid: '2' }), [alert])).toEqual([]);
    const unsaid: Alert = { ...alert, rule: 'pool-health', fact: { is: 'degraded' } };
    expect(storyOf(degraded, [unsaid])).toEqual([conditionOf(degraded)]);
  });

  it('is about the worst', () => {
    const sick = pool({
      name: 'sick',
      health: 'degraded',
      is_healthy: false,
      condition: { condition: 'faulted-devices' },
    });
    const lost = pool({
      name: 'lost',
      is_healthy: false,
      error_count: 1,
      condition: { condition: 'data-errors' },
    });
    expect(healthOf([pool({}), sick])).toMatchObject({ level: 'warn' });
    const worst = healthOf([sick, lost]);
    expect(worst.level).toBe('bad');
    expect(worst.says).toContain('lost has lost data: 1 error ');
  });

  it('is not well where the server says so without a condition', () => {
    const odd = pool({ health: 'faulted', is_healthy: false });
    expect(healthOf([odd])).toMatchObject({ level: 'bad', says: 'tank: Faulted' });
  });

  it('does not alarm about what is no fault', () => {
    const old = pool({ condition: { condition: 'features-disabled' } });
    expect(healthOf([old]).level).toBe('ok');
    expect(conditionOf(old)?.level).toBe('quiet');
  });
});

it('tells how far a scan is, and how long it takes still', () => {
  expect(scanShare(scan)).toBe(0.25);
  expect(scanSecondsLeft(scan)).toBe(30);
  expect(scanSecondsLeft({ ...scan, elapsed_s: 1 })).toBeUndefined();
  expect(scanSecondsLeft({ ...scan, pass_issued_bytes: 0 })).toBeUndefined();
});
