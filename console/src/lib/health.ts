/** How pools are, in one sentence, and what to do. */
import type { Alert, AlertRule } from '../api/alerts';
import type { PoolCondition, PoolHealth, PoolStatus, Scan, VdevState } from '../api/types';
import { t } from '../texts/en';
import { ago } from './units';

export type Level = 'ok' | 'warn' | 'bad' | 'quiet';

export interface Verdict {
  level: Level;
  says: string;
  todo?: string;
}

const BAD: readonly PoolCondition['condition'][] = ['suspended', 'data-errors'];

/** What is to be said of a pool; nothing where nothing is. */
export function conditionOf(pool: PoolStatus): Verdict | undefined {
  const { condition, name } = pool;
  if (!condition) return undefined;
  const words = (): { says: string; todo: string } => {
    switch (condition.condition) {
      case 'data-errors':
        return t.conditions['data-errors'](name, pool.error_count);
      case 'errata':
        return t.conditions.errata(name, condition.number);
      default:
        return t.conditions[condition.condition](name);
    }
  };
  const level = pool.is_healthy ? 'quiet' : BAD.includes(condition.condition) ? 'bad' : 'warn';
  return { level, ...words() };
}

export function verdictOfAlert(alert: Alert): Verdict {
  const level = alert.severity === 'critical' ? 'bad' : 'warn';
  return { level, says: alert.says, todo: t.alerts.todo(alert) };
}

/** Alerts that say what is wrong with a pool; its condition says the same in other words. */
const OF_POOLS: readonly AlertRule[] = [
  'pool-suspended',
  'pool-health',
  'data-errors',
  'device-state',
  'device-errors',
];

/**
 * What is to be said of a pool on its page: its alerts, or else its condition, which also says why a
 * pool is degraded of which no device failed.
 */
export function storyOf(pool: PoolStatus, alerts: readonly Alert[]): Verdict[] {
  const condition = conditionOf(pool);
  const own = alerts.filter(
    ({ rule, pool_guid: guid, fact }) =>
      guid === pool.guid && OF_POOLS.includes(rule) && !(condition && fact.is === 'degraded'),
  );
  if (own.length > 0) return own.map(verdictOfAlert);
  return condition ? [condition] : [];
}

/** The worst that is to be said of all pools together, or that all is well. */
export function healthOf(
  pools: readonly PoolStatus[],
  alerts: readonly Alert[] = [],
  now = Date.now() / 1000,
): Verdict {
  if (pools.length === 0) return { level: 'quiet', says: t.overview.noPools };
  const order: Level[] = ['bad', 'warn'];
  // What is told by mail is told here, in the same words.
  const unhealthy = pools.filter((pool) => !pool.is_healthy);
  const verdicts = unhealthy.map((pool) => storyOf(pool, alerts)[0] ?? verdictOf(pool));
  for (const level of order) {
    const found = verdicts.find((verdict) => verdict.level === level);
    if (found) return found;
  }
  // A pool may work, and be full all the same. The worst alert comes first.
  const [alert] = alerts;
  if (alert) return verdictOfAlert(alert);
  const scans = pools.map(({ scan }) => (scan && isCleanScrub(scan) ? scan.end_time_s : 0));
  const oldest = Math.min(...scans);
  return {
    level: 'ok',
    says: t.overview.healthy(pools.length),
    todo: oldest > 0 ? t.overview.scrubbed(ago(oldest, now)) : t.overview.neverScrubbed,
  };
}

function verdictOf(pool: PoolStatus): Verdict {
  const { name, health } = pool;
  const level = health === 'online' || health === 'degraded' ? 'warn' : 'bad';
  return { level, says: `${name}: ${t.health[health]}` };
}

function isCleanScrub(scan: Scan): boolean {
  return scan.function === 'scrub' && scan.state === 'finished' && scan.errors === 0;
}

export function levelOfPool(health: PoolHealth): Level {
  switch (health) {
    case 'online':
      return 'ok';
    case 'degraded':
      return 'warn';
    case 'faulted':
    case 'suspended':
      return 'bad';
  }
}

export function levelOfVdev(state: VdevState): Level {
  switch (state) {
    case 'online':
    case 'in-use':
      return 'ok';
    case 'available':
    case 'offline':
      return 'quiet';
    case 'degraded':
    case 'removed':
      return 'warn';
    case 'faulted':
    case 'unavailable':
    case 'suspended':
      return 'bad';
  }
}

/** How far a scan is, from 0 to 1. */
export function scanShare(scan: Scan): number {
  if (scan.to_examine_bytes <= 0) return scan.state === 'finished' ? 1 : 0;
  return Math.min(1, scan.issued_bytes / scan.to_examine_bytes);
}

/** Seconds until it is done, going on as it has; undefined where that cannot be told yet. */
export function scanSecondsLeft(scan: Scan): number | undefined {
  if (scan.elapsed_s < 3 || scan.pass_issued_bytes <= 0) return undefined;
  const left = Math.max(0, scan.to_examine_bytes - scan.issued_bytes);
  return left / (scan.pass_issued_bytes / scan.elapsed_s);
}
