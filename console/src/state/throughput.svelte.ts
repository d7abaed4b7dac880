/**
 * What all pools read and wrote of late, from their counters. Kept while pages come and go; of times
 * at which nobody looked the server's reports tell.
 */
import { call } from '../api/client';
import type { Pool } from '../api/types';
import {
  counters,
  filled,
  fromReports,
  rates,
  type Counters,
  type Sample,
} from '../lib/throughput';

/** Seconds between two looks. What is further apart is no rate of now. */
const EVERY_S = 3;
const APART_S = 3 * EVERY_S;
/** How far back samples are kept: ten minutes. */
const KEPT_S = 600;
/** Pools that reports are asked for at once. */
const SUBJECTS_MAX = 64;

class Throughput {
  samples = $state.raw<Sample[]>([]);
  /** What is read and written now, where that is known. */
  now = $state.raw<Sample>();
  #before: Counters | undefined;
  #watchers = 0;
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Looks while somebody watches. */
  watch(): () => void {
    this.#watchers += 1;
    if (this.#watchers === 1) {
      document.addEventListener('visibilitychange', this.#turned);
      void this.#look();
      this.#timer = setInterval(() => void this.#look(), EVERY_S * 1000);
    }
    return () => {
      this.#watchers -= 1;
      if (this.#watchers === 0) {
        document.removeEventListener('visibilitychange', this.#turned);
        clearInterval(this.#timer);
        this.#forget();
      }
    };
  }

  #turned = (): void => {
    if (document.hidden) this.#forget();
    else void this.#look();
  };

  /** What was before is no measure of what is now. */
  #forget(): void {
    this.#before = undefined;
    this.now = undefined;
  }

  async #look(): Promise<void> {
    if (document.hidden) {
      this.#forget();
      return;
    }
    try {
      const { pools } = await call('/v1/zpool/list', { names: [] });
      const now = counters(pools, Date.now());
      const before = this.#before;
      this.#before = now;
      const span_s = before && (now.time_ms - before.time_ms) / 1000;
      if (before === undefined || span_s === undefined || span_s > APART_S) {
        this.now = undefined;
        // Without reports the next look is compared with this one all the same.
        await this.#fill(pools).catch(() => undefined);
        return;
      }
      // Two looks that came together say nothing.
      if (span_s < 0.5) return;
      this.now = { time_s: now.time_ms / 1000, span_s, ...rates(before, now) };
      this.#keep([...this.samples, this.now]);
    } catch {
      // The page says elsewhere that the server does not answer.
      this.#forget();
    }
  }

  /** Adds what reports know of the times at which nobody looked. */
  async #fill(pools: readonly Pool[]): Promise<void> {
    const subjects = pools.slice(0, SUBJECTS_MAX);
    if (subjects.length === 0) return;
    const reply = await call('/v1/reports/get', {
      subjects: subjects.map(({ name }) => ({ of: 'pool', pool: name })),
      span: 'hour',
      figures: ['read-bytes', 'written-bytes'],
    });
    const reported = fromReports(reply.reports, reply.step_s, reply.now_s);
    // The clocks of the two may differ.
    const ahead_s = reply.now_s - Date.now() / 1000;
    const by = Math.abs(ahead_s) > 2 ? ahead_s : 0;
    const ours = reported.map((one) => ({ ...one, time_s: one.time_s - by }));
    this.#keep(filled(this.samples, ours));
  }

  #keep(samples: Sample[]): void {
    const from_s = Date.now() / 1000 - KEPT_S;
    this.samples = samples.filter(({ time_s }) => time_s > from_s);
  }
}

export const throughput = new Throughput();
