/** The stream of events, for whatever part of the page wants to hear of something. */
import { EventStream, type StreamState } from '../api/stream';
import type { Job, ServerEvent } from '../api/types';
import { session } from './session.svelte';

/** Events that are kept for the page. */
const KEPT = 200;

type Listener = (event: ServerEvent | 'stale') => void;

class Events {
  state = $state<StreamState>('closed');
  /** The last ones, newest first, without what jobs tell on their way. */
  recent = $state.raw<ServerEvent[]>([]);
  /** Jobs by number, as far as events told of them since the stream was opened. */
  jobs = $state.raw<ReadonlyMap<number, Job>>(new Map());
  #listeners = new Set<Listener>();

  #stream = new EventStream({
    event: (event) => this.#take(event),
    stale: () => {
      this.jobs = new Map();
      this.#tell('stale');
    },
    state: (state) => (this.state = state),
    signedOut: () => session.forget(true),
  });

  open(): void {
    this.#stream.open();
  }

  close(): void {
    this.#stream.close();
    this.recent = [];
    this.jobs = new Map();
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #take(event: ServerEvent): void {
    if (event.job) this.jobs = new Map(this.jobs).set(event.job.id, event.job);
    if (event.class !== 'job.progress') this.recent = [event, ...this.recent].slice(0, KEPT);
    this.#tell(event);
  }

  #tell(event: ServerEvent | 'stale'): void {
    for (const listener of this.#listeners) listener(event);
  }
}

export const events = new Events();
