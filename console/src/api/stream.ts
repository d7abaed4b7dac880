/** The server's events: one stream, opened anew when it breaks. */
import { ApiFailure, failureOf } from './client';
import { SseParser } from './sse';
import type { ServerEvent } from './types';

export type StreamState = 'connecting' | 'open' | 'broken' | 'closed';

/** What a stream tells. */
export interface Hearers {
  event: (event: ServerEvent) => void;
  /** Events were missed: whatever is shown may be old. */
  stale: () => void;
  state: (state: StreamState) => void;
  signedOut: () => void;
}

/** First and longest pause before a new try, in milliseconds. */
const PAUSE_MS = 1000;
const PAUSE_MS_MAX = 30_000;
/** The server sends a comment at least this often (axum's keep-alive: 15 seconds). */
const SILENCE_MS = 60_000;
/**
 * One that was there for so long and ends in order is opened anew at once: the server ends streams
 * of connections that brought a secret.
 */
const STEADY_MS = 3000;

/** The stream came to its end in order. */
class Ended extends Error {}

export class EventStream {
  #state: StreamState = 'closed';
  #abort: AbortController | undefined;
  #pause = PAUSE_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #since = 0;

  constructor(
    private readonly on: Hearers,
    private readonly get: typeof fetch = (...of) => fetch(...of),
    /** The number of the last event that is known; those since come first. */
    public last: string | undefined = undefined,
  ) {}

  open(): void {
    this.#connect();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = undefined;
    this.#turn('closed');
  }

  /** Somebody looks: a broken one is tried at once. */
  hurry(): void {
    if (this.#state !== 'broken') return;
    this.#pause = PAUSE_MS;
    this.#connect();
  }

  #turn(state: StreamState): void {
    if (state === this.#state) return;
    this.#state = state;
    this.on.state(state);
  }

  #connect(): void {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    if (this.#state !== 'broken') this.#turn('connecting');
    this.#read(abort).catch((error: unknown) => {
      if (this.#abort !== abort) return;
      if (error instanceof ApiFailure && error.status === 401) {
        this.close();
        this.on.signedOut();
        return;
      }
      if (error instanceof Ended && this.#state === 'open') {
        if (Date.now() - this.#since >= STEADY_MS) {
          this.#connect();
          return;
        }
      }
      this.#turn('broken');
      // Not all pages at once when a server comes back.
      const pause = this.#pause * (0.75 + Math.random() / 2);
      this.#pause = Math.min(this.#pause * 2, PAUSE_MS_MAX);
      this.#timer = setTimeout(() => this.#connect(), pause);
    });
  }

  async #read(abort: AbortController): Promise<never> {
    const after = this.last === undefined ? '' : `&after=${encodeURIComponent(this.last)}`;
    const response = await this.get(`/v1/events?kind=own${after}`, {
      credentials: 'same-origin',
      cache: 'no-store',
      headers: { Accept: 'text/event-stream' },
      signal: abort.signal,
    });
    if (!response.ok || !response.body) throw await failureOf(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    this.#since = Date.now();
    for (;;) {
      const silence = setTimeout(() => void reader.cancel(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (this.#abort !== abort) throw new Error('another stream has taken over');
      if (done) throw new Ended('the stream ended');
      for (const message of parser.push(value)) {
        if (message.id !== '') this.last = message.id;
        // The first message says that the server tells from now on.
        this.#pause = PAUSE_MS;
        this.#turn('open');
        const event = JSON.parse(message.data) as ServerEvent;
        if (event.class === 'stream.lagged') this.on.stale();
        else if (event.class !== 'stream.opened') this.on.event(event);
      }
    }
  }
}
