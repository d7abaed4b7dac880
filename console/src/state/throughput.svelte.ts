/** What all pools read and wrote of late, from their counters. Kept while pages come and go. */
import { call } from '../api/client';
import type { Pool } from '../api/types';

/** Seconds between two looks, and how many are kept: ten minutes. */
const EVERY_S = 3;
const KEPT = 200;

export interface Sample {
  time_s: number;
  read: number;
  written: number;
}

interface Counters {
  time_ms: number;
  pools: Map<string, { uptime_ns: number; read: number; written: number }>;
}

/**
 * Bytes per second between two looks. A pool that came in between, or counts anew since it was
 * imported again, does not count this time.
 */
export function rates(before: Counters, now: Counters): { read: number; written: number } {
  const seconds = (now.time_ms - before.time_ms) / 1000;
  let read = 0;
  let written = 0;
  for (const [guid, at] of now.pools) {
    const then = before.pools.get(guid);
    if (!then || at.uptime_ns < then.uptime_ns || seconds <= 0) continue;
    read += (at.read - then.read) / seconds;
    written += (at.written - then.written) / seconds;
  }
  return { read: Math.max(0, read), written: Math.max(0, written) };
}

export function counters(pools: readonly Pool[], time_ms: number): Counters {
  return {
    time_ms,
    pools: new Map(
      pools.map(({ guid, uptime_ns, tree }) => [
        guid,
        { uptime_ns, read: tree.reads.bytes, written: tree.writes.bytes },
      ]),
    ),
  };
}

class Throughput {
  samples = $state.raw<Sample[]>([]);
  #before: Counters | undefined;
  #watchers = 0;
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Looks while somebody watches. */
  watch(): () => void {
    this.#watchers += 1;
    if (this.#watchers === 1) {
      void this.#look();
      this.#timer = setInterval(() => void this.#look(), EVERY_S * 1000);
    }
    return () => {
      this.#watchers -= 1;
      if (this.#watchers === 0) {
        clearInterval(this.#timer);
        this.#before = undefined;
      }
    };
  }

  async #look(): Promise<void> {
    if (document.hidden) {
      this.#before = undefined;
      return;
    }
    try {
      const { pools } = await call('/v1/zpool/list', { names: [] });
      const now = counters(pools, Date.now());
      if (this.#before) {
        const sample = { time_s: now.time_ms / 1000, ...rates(this.#before, now) };
        this.samples = [...this.samples, sample].slice(-KEPT);
      }
      this.#before = now;
    } catch {
      // The page says elsewhere that the server does not answer.
      this.#before = undefined;
    }
  }
}

export const throughput = new Throughput();
