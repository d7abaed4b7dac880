/** Disks: what to say of them, and what can be done. Nothing here asks the server. */
import type { DiskSample, DiskState } from '../api/types';
import { disks as t } from '../texts/disks.en';
import { quote, type Action } from './actions';
import type { Level } from './health';

/** How a disk is, in a word, and how bad that is. */
export function healthOf(disk: DiskState): { level: Level; text: string } {
  const text = t.conditions[disk.condition];
  switch (disk.condition) {
    case 'failing':
    case 'missing':
      return { level: 'bad', text };
    case 'warning':
      return { level: 'warn', text: disk.smart_state.state === 'no-answer' ? t.noAnswer : text };
    case 'good':
    case 'unknown':
      if (disk.smart_state.state === 'standby') return { level: 'quiet', text: t.asleep };
      return { level: disk.condition === 'good' ? 'ok' : 'quiet', text };
  }
}

/**
 * What a disk is called in requests and commands: by its path, but one that a pool lacks by the
 * device's GUID, as another disk may have its path now.
 */
export function wordOf(disk: DiskState): string {
  const [member] = disk.members;
  return disk.condition === 'missing' && member ? member.guid : disk.path;
}

export function locate(disk: DiskState, on: boolean): Action<'/v1/disks/locate'> {
  const word = wordOf(disk);
  const off = on ? '' : ' --off';
  return {
    path: '/v1/disks/locate',
    body: { disk: word, on },
    command: `millpond disks locate${off} ${quote(word)}`,
  };
}

export function test(disk: DiskState, kind: 'short' | 'long'): Action<'/v1/disks/test'> {
  const word = wordOf(disk);
  return {
    path: '/v1/disks/test',
    body: { disk: word, kind },
    command: `millpond disks test ${quote(word)} ${kind}`,
  };
}

export function lightsTest(seconds: number): Action<'/v1/disks/lights-test'> {
  return {
    path: '/v1/disks/lights-test',
    body: { seconds },
    command: `millpond disks lights-test --seconds ${seconds}`,
  };
}

export interface Curve {
  /** Points of a line in a box of 100 by 40. */
  points: string;
  least: number;
  most: number;
  days: number;
}

/** How warm a disk was; nothing where there are less than two samples. */
export function curve(history: readonly DiskSample[]): Curve | undefined {
  const known = history.flatMap(({ time_s: at, temperature_c: degrees }) =>
    degrees === undefined || degrees === null ? [] : [{ at, degrees }],
  );
  const [first] = known;
  const last = known.at(-1);
  if (!first || !last || last.at <= first.at) return undefined;
  const all = known.map(({ degrees }) => degrees);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  // A steady disk is a line in the middle.
  const [low, high] = least === most ? [least - 1, most + 1] : [least, most];
  const points = known.map(({ at, degrees }) => {
    const x = ((at - first.at) / (last.at - first.at)) * 100;
    const y = 38 - ((degrees - low) / (high - low)) * 36;
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const days = Math.max(1, Math.round((last.at - first.at) / 86_400));
  return { points: points.join(' '), least, most, days };
}
