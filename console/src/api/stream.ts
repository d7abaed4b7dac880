/**
 * The server's events, for all parts of the page together: one stream, opened anew when it breaks,
 * closed while nobody looks at the page.
 */
import { ApiFailure, failureOf } from './client';
import { SseParser } from './sse';
import type { ServerEvent } from './types';

export type StreamState = 'connecting' | 'open' | 'broken' | 'closed';

/** First and longest pause before a new try, in milliseconds. */
const PAUSE_MS = 1000;
const PAUSE_MS_MAX = 30_000;
/** A page that nobody looks at keeps its stream for so long. */
const HIDDEN_MS = 60_000;
/** The server sends a comment at least this often (axum's keep-alive: 15 seconds). */
const SILENCE_MS = 60_000;

export class EventStream {
  #state: StreamState = 'closed';
  #last: string | undefined;
  #abort: AbortController | undefined;
  #pause = PAUSE_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly on: {
      event: (event: ServerEvent) => void;
      /** Events were missed: whatever is shown may be old. */
      stale: () => void;
      state: (state: StreamState) => void;
      signedOut: () => void;
    },
    private readonly get: typeof fetch = (...of) => fetch(...of),
  ) {}

  open(): void {
    document.addEventListener('visibilitychange', this.#look);
    this.#connect();
  }

  close(): void {
    document.removeEventListener('visibilitychange', this.#look);
    this.#last = undefined;
    this.#stop('closed');
  }

  #look = (): void => {
    clearTimeout(this.#timer);
    if (document.hidden) {
      this.#timer = setTimeout(() => this.#stop('closed'), HIDDEN_MS);
    } else if (this.#state !== 'open' && this.#state !== 'connecting') {
      this.#pause = PAUSE_MS;
      this.#connect();
    }
  };

  #stop(state: StreamState): void {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = undefined;
    this.#turn(state);
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
      this.#turn('broken');
      // Not all pages at once when a server comes back.
      const pause = this.#pause * (0.75 + Math.random() / 2);
      this.#pause = Math.min(this.#pause * 2, PAUSE_MS_MAX);
      this.#timer = setTimeout(() => this.#connect(), pause);
    });
  }

  async #read(abort: AbortController): Promise<never> {
    const known = this.#last;
    // At first what the server still knows since it began.
    const after = encodeURIComponent(known ?? '0');
    const response = await this.get(`/v1/events?kind=own&after=${after}`, {
      credentials: 'same-origin',
      cache: 'no-store',
      headers: { Accept: 'text/event-stream' },
      signal: abort.signal,
    });
    if (!response.ok || !response.body) throw await failureOf(response);
    this.#pause = PAUSE_MS;
    this.#turn('open');
    // What was loaded before the stream was there may be old already.
    if (known === undefined) this.on.stale();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    for (;;) {
      const silence = setTimeout(() => void reader.cancel(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (this.#abort !== abort) throw new Error('another stream has taken over');
      if (done) throw new Error('the stream ended');
      for (const message of parser.push(value)) {
        if (message.id !== '') this.#last = message.id;
        const event = JSON.parse(message.data) as ServerEvent;
        if (event.class === 'stream.lagged') this.on.stale();
        else if (event.class !== 'stream.opened') this.on.event(event);
      }
    }
  }
}
