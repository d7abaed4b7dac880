import { describe, expect, it } from 'vitest';

import type { DiskState } from '../api/types';
import { curve, healthOf, lightsTest, locate, test, wordOf } from './disks';

const disk: DiskState = {
  id: 'Z1',
  name: 'sda',
  path: '/dev/disk/by-id/ata-ST4000_Z1',
  model: 'ST4000',
  serial: 'Z1',
  size_bytes: 4e12,
  is_rotational: true,
  transport: 'sata',
  enclosure: null,
  bay: null,
  members: [],
  condition: 'good',
  smart_state: { state: 'known' },
  smart: null,
  new_bad_sectors: 0,
  lights: null,
};

describe('a disk', () => {
  it('is well, bad, or asleep', () => {
    expect(healthOf(disk)).toEqual({ level: 'ok', text: 'Good' });
    expect(healthOf({ ...disk, smart_state: { state: 'standby' } }).text).toBe('Asleep');
    expect(healthOf({ ...disk, condition: 'failing' }).level).toBe('bad');
    const silent = { ...disk, condition: 'warning', smart_state: { state: 'no-answer' } } as const;
    expect(healthOf(silent)).toEqual({ level: 'warn', text: 'No answer' });
  });

  it('that is missing goes by what the pool calls it', () => {
    const member = {
      pool: 'tank',
      guid: '17',
      path: disk.path,
      vdev: 'mirror-0',
      state: 'removed',
    } as const;
    const missing: DiskState = { ...disk, condition: 'missing', members: [member] };
    expect(wordOf(missing)).toBe('17');
    expect(locate(missing, true).command).toBe('millpond disks locate 17');
  });

  it('has commands that do what its buttons do', () => {
    expect(locate(disk, false)).toMatchObject({
      command: 'millpond disks locate --off /dev/disk/by-id/ata-ST4000_Z1',
      body: { on: false },
    });
    expect(test(disk, 'long').command).toBe(`millpond disks test ${disk.path} long`);
    expect(lightsTest(10).command).toBe('millpond disks lights-test --seconds 10');
  });

  it('has a curve of temperature where there is one', () => {
    expect(curve([])).toBeUndefined();
    expect(curve([{ time_s: 1, temperature_c: 30 }])).toBeUndefined();
    const found = curve([
      { time_s: 0, temperature_c: 30 },
      { time_s: 3600, temperature_c: null },
      { time_s: 86_400, temperature_c: 40 },
      { time_s: 172_800, temperature_c: 35 },
    ]);
    expect(found).toEqual({ points: '0.0,38.0 50.0,2.0 100.0,20.0', least: 30, most: 40, days: 2 });
    const steady = [0, 3600].map((time_s) => ({ time_s, temperature_c: 30 }));
    expect(curve(steady)?.points).toBe('0.0,20.0 100.0,20.0');
  });
});
