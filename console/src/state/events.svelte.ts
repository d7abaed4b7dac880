/** The stream of events, for whatever part of the page wants to hear of something. */
import { untrack } from 'svelte';

import { call } from '../api/client';
import { SharedStream } from '../api/shared';
import type { StreamState } from '../api/stream';
import type { Job, ServerEvent } from '../api/types';
import { isTold, keyOf } from '../lib/eventWords';
import { session } from './session.svelte';

/** Events that are kept for the page. */
const KEPT = 400;
/** Pages load what they show when the stream is there, so that nothing is missed or asked twice. */
const READY_MS = 1000;

type Listener = (event: ServerEvent | 'stale') => void;

class Events {
  state = $state<StreamState>('closed');
  /** The last ones, newest first, as far as a page wants them ([`wantPast`]). */
  recent = $state.raw<ServerEvent[]>([]);
  /** Jobs by number, as far as events told of them since the stream was opened. */
  jobs = $state.raw<ReadonlyMap<number, Job>>(new Map());
  #listeners = new Set<Listener>();
  #stream: SharedStream | undefined;
  #waiting: (() => void)[] = [];
  /** Something was loaded before the stream was there. */
  #isEarly = false;
  #past: 'unknown' | 'asked' | 'known' = 'unknown';
  /** How often it was closed: what was asked for before that is nothing to who comes after. */
  #closings = 0;

  open(): void {
    this.#stream = new SharedStream(
      {
        event: (event) => this.#take(event),
        stale: () => this.#missed(),
        state: (state) => this.#turn(state),
        signedOut: () => session.forget(true),
      },
      `millpond.events.${session.user}`,
    );
    this.#stream.open();
  }

  close(): void {
    this.#stream?.close();
    this.#stream = undefined;
    this.recent = [];
    this.jobs = new Map();
    this.#past = 'unknown';
    this.#closings += 1;
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Waits until events come, or the stream has failed, or that takes long. */
  async ready(): Promise<void> {
    const state = untrack(() => this.state);
    if (state === 'open' || state === 'broken') return;
    const opened = new Promise<boolean>((done) => this.#waiting.push(() => done(true)));
    const late = new Promise<boolean>((done) => setTimeout(() => done(false), READY_MS));
    if (!(await Promise.race([opened, late]))) this.#isEarly = true;
  }

  /** Loads what has happened before, once. */
  wantPast(): void {
    if (this.#past !== 'unknown') return;
    this.#past = 'asked';
    const closings = this.#closings;
    void this.ready()
      .then(() => call('/v1/events/history', { limit: KEPT }))
      .then(({ events }) => {
        if (closings !== this.#closings) return;
        this.#past = 'known';
        this.#join(events.map(({ event }) => event));
      })
      .catch(() => {
        if (closings === this.#closings) this.#past = 'unknown';
      });
  }

  #turn(state: StreamState): void {
    this.state = state;
    if (state !== 'open' && state !== 'broken') return;
    for (const done of this.#waiting.splice(0)) done();
    if (state === 'open' && this.#isEarly) {
      this.#isEarly = false;
      this.#tell('stale');
    }
  }

  #missed(): void {
    this.jobs = new Map();
    if (this.#past === 'known') {
      this.#past = 'unknown';
      this.wantPast();
    }
    this.#tell('stale');
  }

  #take(event: ServerEvent): void {
    if (event.job) this.jobs = new Map(this.jobs).set(event.job.id, event.job);
    if (isTold(event)) this.#join([event]);
    this.#tell(event);
  }

  /** Puts events to those that are known, each once. */
  #join(more: ServerEvent[]): void {
    const known = untrack(() => this.recent);
    const all = new Map([...more, ...known].map((event) => [keyOf(event), event]));
    const byTime = (a: ServerEvent, b: ServerEvent): number =>
      a.time_ns.length - b.time_ns.length || (a.time_ns < b.time_ns ? -1 : 1);
    this.recent = [...all.values()].sort((a, b) => byTime(b, a)).slice(0, KEPT);
  }

  #tell(event: ServerEvent | 'stale'): void {
    for (const listener of this.#listeners) listener(event);
  }
}

export const events = new Events();
