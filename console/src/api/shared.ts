/**
 * One stream of events for all tabs of a browser. The tab that has the lock has the stream, and
 * passes on what it hears; when it goes, or nobody has looked at it for a minute, the next one takes
 * over, after the last event that it heard of. One that is frozen keeps the lock and says nothing:
 * whoever is looked at takes it away then. Where a browser has no locks, each tab has its own.
 */
import { call, setCsrf } from './client';
import { EventStream, type Hearers, type StreamState } from './stream';
import type { ServerEvent } from './types';

/** What a name begins with; the user's follows. */
const NAME = 'millpond.events.';
/** A page that nobody looks at hears of events for so long. */
const HIDDEN_MS = 60_000;
/** The tab that has the stream says so this often. */
const BEAT_MS = 15_000;
/** One of which nothing is heard for so long is asked, and has so long to answer. */
const SILENCE_MS = 40_000;
const ANSWER_MS = 5_000;

/** What tabs tell each other; `last` is the number of the last event that is known. */
type Note =
  | { is: 'hello' }
  | { is: 'state'; state: StreamState; last: string | undefined }
  | { is: 'event'; event: ServerEvent; last: string | undefined }
  | { is: 'stale'; last: string | undefined }
  | { is: 'out' };

export interface Channel {
  onmessage: ((message: MessageEvent) => void) | null;
  postMessage: (note: unknown) => void;
  close: () => void;
}

/** How tabs know of each other. */
export interface Tabs {
  /** Waits until nobody else has it; it is given back when what `held` returns is settled. */
  lock: (name: string, signal: AbortSignal, held: () => Promise<void>) => Promise<unknown>;
  /** Takes it away from whoever has it, for whom `lock` fails. */
  steal: (name: string, held: () => Promise<void>) => Promise<unknown>;
  channel: (name: string) => Channel;
}

function ofBrowser(): Tabs | undefined {
  if (typeof navigator === 'undefined' || !('locks' in navigator)) return undefined;
  if (typeof BroadcastChannel === 'undefined') return undefined;
  return {
    lock: (name, signal, held) => navigator.locks.request(name, { signal }, held),
    steal: (name, held) => navigator.locks.request(name, { steal: true }, held),
    channel: (name) => new BroadcastChannel(name),
  };
}

export class SharedStream {
  #state: StreamState = 'closed';
  #last: string | undefined;
  /** It is known whether something happened while this one did not listen. */
  #isSynced = false;
  #channel: Channel | undefined;
  /** There while the page wants to hear. */
  #wish: AbortController | undefined;
  /** There while this tab has the stream. */
  #stream: EventStream | undefined;
  #release: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #beat: ReturnType<typeof setInterval> | undefined;
  #silence: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly on: Hearers,
    /** Tabs of the same name share; of each user there is one ({@link NAME}). */
    private readonly name: string,
    private readonly get?: typeof fetch,
    private readonly tabs: Tabs | undefined = ofBrowser(),
  ) {}

  open(): void {
    document.addEventListener('visibilitychange', this.#look);
    this.#channel = this.tabs?.channel(this.name);
    if (this.#channel) this.#channel.onmessage = ({ data }) => this.#hear(data as Note);
    this.#begin();
    if (document.hidden) this.#look();
  }

  close(): void {
    document.removeEventListener('visibilitychange', this.#look);
    clearTimeout(this.#timer);
    this.#rest();
    this.#channel?.close();
    this.#channel = undefined;
    this.#last = undefined;
  }

  #look = (): void => {
    clearTimeout(this.#timer);
    if (document.hidden) this.#timer = setTimeout(() => this.#rest(), HIDDEN_MS);
    else if (this.#wish) this.#stream?.hurry();
    else this.#begin();
  };

  #turn(state: StreamState): void {
    if (state === this.#state) return;
    this.#state = state;
    this.on.state(state);
  }

  #begin(steals = false): void {
    const wish = new AbortController();
    this.#wish = wish;
    this.#isSynced = false;
    this.#turn(steals ? 'broken' : 'connecting');
    if (!this.tabs) {
      this.#lead();
      return;
    }
    this.#tell({ is: 'hello' });
    this.#watch();
    const held = (): Promise<void> =>
      new Promise((release) => {
        if (wish.signal.aborted) {
          release();
          return;
        }
        this.#release = release;
        this.#lead();
      });
    const asked = steals
      ? this.tabs.steal(this.name, held)
      : this.tabs.lock(this.name, wish.signal, held);
    asked.catch(() => {
      // It is given up when the page wants no more; otherwise another tab has taken it away.
      if (this.#wish !== wish || !this.#stream) return;
      this.#rest();
      this.#begin();
    });
  }

  /** Has an eye on the tab that has the stream. */
  #watch(): void {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#tell({ is: 'hello' });
      this.#silence = setTimeout(() => this.#replace(), ANSWER_MS);
    }, SILENCE_MS);
  }

  #replace(): void {
    if (document.hidden) {
      this.#watch();
      return;
    }
    this.#wish?.abort();
    this.#begin(true);
  }

  #rest(): void {
    clearInterval(this.#beat);
    clearTimeout(this.#silence);
    this.#wish?.abort();
    this.#wish = undefined;
    this.#stream?.close();
    this.#stream = undefined;
    this.#release?.();
    this.#release = undefined;
    this.#turn('closed');
  }

  #lead(): void {
    clearTimeout(this.#silence);
    this.#beat = setInterval(() => this.#tellState(), BEAT_MS);
    const stream = new EventStream(
      {
        event: (event) => {
          this.#last = stream.last;
          this.#tell({ is: 'event', event, last: stream.last });
          this.on.event(event);
        },
        stale: () => {
          this.#last = stream.last;
          this.#tell({ is: 'stale', last: stream.last });
          this.on.stale();
        },
        state: (state) => {
          this.#last = stream.last;
          if (state !== 'closed') this.#tell({ is: 'state', state, last: stream.last });
          this.#turn(state);
        },
        signedOut: () => {
          this.#tell({ is: 'out' });
          this.close();
          this.on.signedOut();
        },
      },
      this.get,
      this.#last,
    );
    this.#stream = stream;
    stream.open();
  }

  #tell(note: Note): void {
    this.#channel?.postMessage(note);
  }

  #tellState(): void {
    this.#tell({ is: 'state', state: this.#state, last: this.#last });
  }

  /** Another tab was told that nobody is signed in; since then somebody may be. */
  async #ask(): Promise<void> {
    const info = await call('/v1/session/info', {}).catch(() => undefined);
    // Where the server does not answer, the next one that has the stream finds out.
    if (!info || !this.#channel) return;
    if (info.user !== null && this.name === NAME + info.user) {
      setCsrf(info.csrf ?? '');
      return;
    }
    this.close();
    this.on.signedOut();
  }

  /** What another tab says. */
  #hear(note: Note): void {
    if (note.is === 'out') {
      void this.#ask();
      return;
    }
    if (note.is === 'hello') {
      if (this.#stream) this.#tellState();
      return;
    }
    if (!this.#wish || this.#stream) return;
    this.#watch();
    const known = this.#last;
    if (note.is === 'event') {
      // What came before it may be unknown here, until the tab that has the stream says more.
      if (this.#isSynced) this.#last = note.last ?? known;
      this.on.event(note.event);
      return;
    }
    this.#isSynced = true;
    this.#last = note.last ?? known;
    if (note.is === 'stale') this.on.stale();
    else {
      // Something happened while this one did not listen.
      if (known !== undefined && this.#last !== known) this.on.stale();
      this.#turn(note.state);
    }
  }
}
