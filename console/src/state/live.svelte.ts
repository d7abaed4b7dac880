/** What a page shows of the server: loaded at once, and anew whenever events say that it changed. */
import { untrack } from 'svelte';

import { ApiFailure } from '../api/client';
import type { ServerEvent } from '../api/types';
import { events } from './events.svelte';

/** Changes come in bunches; what they are about is loaded once after them. */
const SETTLE_MS = 200;

export class Live<T> {
  data = $state.raw<T>();
  failure = $state.raw<ApiFailure>();
  #load: (() => Promise<T>) | undefined;
  #turn = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Loads it by this from now on. */
  async use(load: () => Promise<T>): Promise<void> {
    this.#load = load;
    await this.reload();
  }

  /** Loads it anew. An answer that a later one has overtaken is dropped. */
  async reload(): Promise<void> {
    const load = this.#load;
    if (!load) return;
    clearTimeout(this.#timer);
    this.#turn += 1;
    const turn = this.#turn;
    try {
      const data = await load();
      if (turn !== this.#turn) return;
      this.data = data;
      this.failure = undefined;
    } catch (error) {
      if (turn !== this.#turn) return;
      this.failure =
        error instanceof ApiFailure ? error : new ApiFailure('other', String(error), null);
    }
  }

  soon(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.reload(), SETTLE_MS);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#turn += 1;
    this.#load = undefined;
  }
}

/**
 * Loads something while the component is there. What `load` reads of the page's state before it
 * first waits makes it load anew when it changes; so does an event that `wants` is true for, and,
 * where given, the time.
 */
export function live<T>(
  load: () => Promise<T>,
  wants: (event: ServerEvent) => boolean,
  everyMs?: number,
): Live<T> {
  const state = new Live<T>();
  $effect(() => {
    const first = load();
    let begun = false;
    untrack(() => {
      void state.use(() => {
        if (begun) return load();
        begun = true;
        return first;
      });
    });
    const off = events.listen((event) => {
      if (event === 'stale' || wants(event)) state.soon();
    });
    const timer =
      everyMs === undefined
        ? undefined
        : setInterval(() => {
            if (!document.hidden) void state.reload();
          }, everyMs);
    return () => {
      off();
      clearInterval(timer);
      state.end();
    };
  });
  return state;
}

const FINISHED = /^(job\.(started|finished)|scrub\.|resilver\.)/;

/** Events about pools: one of them, or any. */
export function aboutPool(pool?: string): (event: ServerEvent) => boolean {
  return (event) => {
    const about = event.pool ?? event.job?.pool ?? undefined;
    if (pool !== undefined && about !== undefined && about !== pool) return false;
    return event.class.startsWith('pool.') || FINISHED.test(event.class);
  };
}

/** Events after which datasets may look different. */
export function aboutDatasets(event: ServerEvent): boolean {
  return (
    event.class.startsWith('dataset.') ||
    event.class.startsWith('pool.') ||
    event.class === 'job.finished'
  );
}
