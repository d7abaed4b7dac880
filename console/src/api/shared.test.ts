import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { SharedStream, type Channel, type Tabs } from './shared';
import type { StreamState } from './stream';
import type { ServerEvent } from './types';

const page = {
  hidden: false,
  looks: new Set<() => void>(),
  addEventListener: (_: string, look: () => void) => void page.looks.add(look),
  removeEventListener: (_: string, look: () => void) => void page.looks.delete(look),
};

/** Tabs of a browser: a lock that one has after the other, and what they tell each other. */
function browser(): Tabs {
  const channels = new Set<Channel>();
  const waiting: (() => void)[] = [];
  /** How whoever has the lock hears that it is taken away. */
  let lose: (() => void) | undefined;
  const next = (): void => {
    lose = undefined;
    waiting.shift()?.();
  };
  const hold = (
    held: () => Promise<void>,
    done: (_: unknown) => void,
    failed: (why: Error) => void,
  ): void => {
    const own = (): void => failed(new Error('stolen'));
    lose = own;
    void held().then(() => {
      done(undefined);
      if (lose === own) next();
    });
  };
  return {
    lock: (_, signal, held) =>
      new Promise((done, failed) => {
        const begin = (): void => {
          if (signal.aborted) return next();
          hold(held, done, failed);
        };
        signal.addEventListener('abort', () => failed(new Error('given up')));
        if (lose) waiting.push(begin);
        else begin();
      }),
    steal: (_, held) =>
      new Promise((done, failed) => {
        lose?.();
        hold(held, done, failed);
      }),
    channel: () => {
      const own: Channel = {
        onmessage: null,
        postMessage: (data) => {
          for (const other of channels) {
            if (other !== own) other.onmessage?.({ data } as MessageEvent);
          }
        },
        close: () => void channels.delete(own),
      };
      channels.add(own);
      return own;
    },
  };
}

/** A server whose streams go on until it is told to end them. */
function server() {
  const asked: string[] = [];
  const streams: ReadableStreamDefaultController<Uint8Array>[] = [];
  let sequence = 7;
  const text = (id: number, name: string): Uint8Array => {
    const data = JSON.stringify({ sequence: id, time_ns: '0', class: name });
    return new TextEncoder().encode(`id: ${id}\nevent: ${name}\ndata: ${data}\n\n`);
  };
  const get = ((input: unknown, { signal }: RequestInit) => {
    asked.push(String(input));
    const body = new ReadableStream<Uint8Array>({
      start: (stream) => {
        stream.enqueue(text(sequence, 'stream.opened'));
        streams.push(stream);
        signal?.addEventListener('abort', () => streams.splice(streams.indexOf(stream), 1));
      },
    });
    return Promise.resolve(new Response(body));
  }) as typeof fetch;
  return {
    get,
    asked,
    streams,
    tell: (): void => {
      sequence += 1;
      for (const stream of streams) stream.enqueue(text(sequence, 'pool.changed'));
    },
  };
}

function tab(get: typeof fetch, tabs: Tabs) {
  const heard: number[] = [];
  const states: StreamState[] = [];
  const seen = { stale: 0, out: 0 };
  const stream = new SharedStream(
    {
      event: ({ sequence }: ServerEvent) => heard.push(sequence),
      stale: () => (seen.stale += 1),
      state: (state) => states.push(state),
      signedOut: () => (seen.out += 1),
    },
    'millpond.events.admin',
    get,
    tabs,
  );
  return { stream, heard, states, seen };
}

const soon = (): Promise<unknown> => vi.advanceTimersByTimeAsync(50);

beforeEach(() => {
  vi.useFakeTimers();
  page.hidden = false;
  page.looks.clear();
  vi.stubGlobal('document', page);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it('has one stream for nine tabs, which hear the same, and hands it over', async () => {
  const { get, asked, streams, tell } = server();
  const tabs = browser();
  const all = Array.from({ length: 9 }, () => tab(get, tabs));
  for (const { stream } of all) stream.open();
  await soon();
  expect(asked).toEqual(['/v1/events?kind=own']);
  for (const { states } of all) expect(states.at(-1)).toBe('open');
  tell();
  await soon();
  for (const { heard } of all) expect(heard).toEqual([8]);

  // The one that has it is closed: the next one goes on after what it heard of.
  all[0]?.stream.close();
  await soon();
  expect(asked.slice(1)).toEqual(['/v1/events?kind=own&after=8']);
  expect(streams.length).toBe(1);
  tell();
  await soon();
  expect(all[0]?.heard).toEqual([8]);
  for (const { heard, seen } of all.slice(1)) {
    expect(heard).toEqual([8, 9]);
    expect(seen.stale).toBe(0);
  }
});

it('rests when nobody looks, and knows whether it missed something', async () => {
  const { get, asked, streams, tell } = server();
  const tabs = browser();
  const one = tab(get, tabs);
  one.stream.open();
  await soon();
  page.hidden = true;
  for (const look of page.looks) look();
  // What the server sends to show that it is there.
  await vi.advanceTimersByTimeAsync(30_000);
  for (const stream of streams) stream.enqueue(new TextEncoder().encode(':\n'));
  await vi.advanceTimersByTimeAsync(31_000);
  expect(one.states.at(-1)).toBe('closed');
  expect(streams.length).toBe(0);

  // Another one has the stream meanwhile, and hears of something.
  const looks = [...page.looks];
  page.hidden = false;
  const other = tab(get, tabs);
  other.stream.open();
  await soon();
  tell();
  await soon();
  expect(other.heard).toEqual([8]);
  for (const look of looks) look();
  await soon();
  expect(one.states.at(-1)).toBe('open');
  expect([one.seen.stale, other.seen.stale]).toEqual([1, 0]);
  expect(asked.length).toBe(2);
});

it('takes over from a tab that is frozen, which follows when it goes on', async () => {
  const { get, asked, streams, tell } = server();
  const tabs = browser();
  let isFrozen = false;
  const freezing: Tabs = {
    ...tabs,
    channel: (name) => {
      const own = tabs.channel(name);
      const { postMessage } = own;
      own.postMessage = (note) => {
        if (!isFrozen) postMessage(note);
      };
      return own;
    },
  };
  const first = tab(get, freezing);
  const second = tab(get, tabs);
  for (const { stream } of [first, second]) stream.open();
  await vi.advanceTimersByTimeAsync(50_000);
  expect(asked.length).toBe(1);
  for (const stream of streams) stream.enqueue(new TextEncoder().encode(':\n'));
  isFrozen = true;
  await vi.advanceTimersByTimeAsync(50_000);
  expect(asked.length).toBe(2);
  expect(streams.length).toBe(1);
  expect(second.states.slice(-3)).toEqual(['broken', 'connecting', 'open']);
  isFrozen = false;
  await vi.advanceTimersByTimeAsync(15_000);
  expect(first.states.at(-1)).toBe('open');
  tell();
  await soon();
  for (const { heard, seen } of [first, second]) {
    expect(heard).toEqual([8]);
    expect(seen.stale).toBe(0);
  }
});

it('knows what it missed though something happens just then', async () => {
  const tabs = browser();
  const other = tabs.channel('');
  const one = tab(server().get, { ...tabs, lock: () => new Promise(() => undefined) });
  one.stream.open();
  const event = (sequence: number) => ({
    is: 'event',
    event: { sequence, time_ns: '0', class: 'pool.changed' },
    last: String(sequence),
  });
  other.postMessage({ is: 'state', state: 'open', last: '7' });
  other.postMessage(event(8));
  page.hidden = true;
  for (const look of page.looks) look();
  await vi.advanceTimersByTimeAsync(61_000);
  page.hidden = false;
  for (const look of page.looks) look();
  other.postMessage(event(10));
  expect(one.seen.stale).toBe(0);
  other.postMessage({ is: 'state', state: 'open', last: '10' });
  other.postMessage(event(11));
  other.postMessage({ is: 'state', state: 'open', last: '11' });
  expect(one.heard).toEqual([8, 10, 11]);
  expect(one.seen.stale).toBe(1);
  one.stream.close();
});

it('asks whether it is signed out when another tab was told so', async () => {
  const { get } = server();
  const tabs = browser();
  const one = tab(get, tabs);
  one.stream.open();
  await soon();
  let user: string | null = 'admin';
  const info = () => Promise.resolve(Response.json({ user, role: 'admin', csrf: 'x' }));
  vi.stubGlobal('fetch', vi.fn(info));
  for (const [now, out] of [
    ['admin', 0],
    ['viewer', 1],
  ] as const) {
    user = now;
    tabs.channel('').postMessage({ is: 'out' });
    await soon();
    expect(one.seen.out).toBe(out);
  }
  expect(one.states.at(-1)).toBe('closed');
});

it('has a stream of its own where tabs know nothing of each other', async () => {
  const { get, asked } = server();
  // Node.js has no locks.
  const alone = new SharedStream(
    {
      event: () => undefined,
      stale: () => undefined,
      state: () => undefined,
      signedOut: () => undefined,
    },
    'events',
    get,
  );
  alone.open();
  await soon();
  expect(asked.length).toBe(1);
  alone.close();
});
