/** What is said of the UPS; a part of `en.ts`. */
import type { Ups, UpsCondition } from '../api/ups';
import { duration } from '../lib/units';

const CONDITIONS = {
  unknown: 'has told nothing yet',
  online: 'has power',
  'replace-battery': 'wants another battery',
  'no-answer': 'does not answer',
  'on-battery': 'runs on its battery',
  'low-battery': 'has a battery that is nearly empty',
} satisfies Record<UpsCondition, string>;

export const ups = {
  title: 'Power',

  /** How it is, in a sentence. */
  says(
    of: Pick<Ups, 'name' | 'condition' | 'charge_percent' | 'runtime_s' | 'are_pools_exported'>,
  ): string {
    const parts = [
      ...(of.charge_percent === null ? [] : [`${of.charge_percent}%`]),
      ...(of.runtime_s === null ? [] : [`${duration(of.runtime_s)} left`]),
    ];
    const left = parts.length === 0 ? '' : ` (${parts.join(', ')})`;
    const rests = of.are_pools_exported
      ? '; all pools are exported until there is power'
      : of.condition === 'low-battery'
        ? '; all pools are being exported'
        : '';
    return `The UPS ${of.name} ${CONDITIONS[of.condition]}${left}${rests}.`;
  },

  /** What to do about it. */
  todo(condition: UpsCondition): string {
    switch (condition) {
      case 'low-battery':
        return 'Nothing is served until there has been power for a minute; then pools are imported again by themselves.';
      case 'on-battery':
        return 'When the battery is nearly empty, all pools are exported; they come back with the power.';
      case 'no-answer':
        return 'Nobody knows whether there is power. Look at NUT’s server and its driver.';
      case 'replace-battery':
        return 'It may not last when the power fails.';
      case 'unknown':
      case 'online':
        return 'Nothing.';
    }
  },
};
