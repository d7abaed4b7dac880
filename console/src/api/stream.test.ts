import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { EventStream, type StreamState } from './stream';
import type { ServerEvent } from './types';

/** A server that answers each request with the next of these texts, and then breaks off. */
function server(answers: string[]): { get: typeof fetch; asked: string[] } {
  const asked: string[] = [];
  const get = (input: unknown): Promise<Response> => {
    asked.push(String(input));
    const text = answers.shift();
    if (text === undefined) return Promise.reject(new Error('away'));
    return Promise.resolve(new Response(text));
  };
  return { get: get as typeof fetch, asked };
}

function message(id: number, name: string): string {
  const data = JSON.stringify({ sequence: id, time_ns: '0', class: name });
  return `id: ${id}\nevent: ${name}\ndata: ${data}\n\n`;
}

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

it('goes on after the last event when the stream breaks, and asks less and less often', async () => {
  const { get, asked } = server([
    message(7, 'stream.opened') + message(8, 'pool.changed'),
    message(9, 'stream.lagged') + message(10, 'pool.changed'),
  ]);
  const events: ServerEvent[] = [];
  const states: StreamState[] = [];
  let stale = 0;
  const stream = new EventStream(
    {
      event: (event) => events.push(event),
      stale: () => (stale += 1),
      state: (state) => states.push(state),
      signedOut: () => expect.unreachable(),
    },
    get,
  );
  stream.open();
  await vi.advanceTimersByTimeAsync(2000);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(asked.slice(0, 2)).toEqual(['/v1/events?kind=own', '/v1/events?kind=own&after=8']);
  expect(events.map(({ sequence }) => sequence)).toEqual([8, 10]);
  // As events were missed.
  expect(stale).toBe(1);
  expect(states).toContain('broken');
  const tries = asked.length;
  expect(tries).toBeGreaterThan(3);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked.length - tries).toBeLessThan(6);
  stream.close();
  const last = asked.length;
  await vi.advanceTimersByTimeAsync(120_000);
  expect(asked.length).toBe(last);
});

it('says so when the session has ended, and asks no more', async () => {
  const get = (): Promise<Response> =>
    Promise.resolve(new Response('{"kind":"unauthenticated","message":"log in"}', { status: 401 }));
  let out = 0;
  const nothing = (): void => undefined;
  const stream = new EventStream(
    { event: nothing, stale: nothing, state: nothing, signedOut: () => (out += 1) },
    get as typeof fetch,
  );
  stream.open();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(out).toBe(1);
});
