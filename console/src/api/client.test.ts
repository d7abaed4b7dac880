import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { ApiFailure, call, onSignedOut, setCsrf, start, StillRunning } from './client';

let asked: { path: string; headers: Record<string, string>; body: unknown }[] = [];
let answer: () => Response;

beforeEach(() => {
  asked = [];
  vi.stubGlobal('fetch', (path: string, options: RequestInit) => {
    const headers = options.headers as Record<string, string>;
    asked.push({ path, headers, body: JSON.parse(String(options.body)) });
    return Promise.resolve(answer());
  });
});
afterEach(() => vi.unstubAllGlobals());

async function failure(work: Promise<unknown>): Promise<ApiFailure> {
  const caught = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  if (!(caught instanceof ApiFailure)) throw new Error('it did not fail');
  return caught;
}

it('has the header that other pages cannot send', async () => {
  setCsrf('abc');
  answer = () => new Response('{"jobs":[]}');
  expect(await call('/v1/jobs/list', {})).toEqual({ jobs: [] });
  expect(asked[0]?.headers['X-Millpond-CSRF']).toBe('abc');
});

it('gives what the server says of a failure', async () => {
  const refusal = { dependents: { names: ['tank/a'] } };
  const body = JSON.stringify({ kind: 'busy', message: 'it has children', refusal });
  answer = () => new Response(body, { status: 409 });
  const caught = await failure(call('/v1/jobs/list', {}));
  expect(caught).toMatchObject({ kind: 'busy', message: 'it has children', refusal, status: 409 });
});

it('says so when nobody understands the answer, or there is none', async () => {
  answer = () => new Response('<html>Bad gateway</html>', { status: 502 });
  expect(await failure(call('/v1/jobs/list', {}))).toMatchObject({ kind: 'other', status: 502 });
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('network')));
  const unreachable = await failure(call('/v1/jobs/list', {}));
  expect(unreachable.kind).toBe('unreachable');
  expect(unreachable.message).toContain('the server does not answer');
  expect(unreachable.message).not.toContain('Error');
});

it('ends the session when the server knows it no more, not when a password is wrong', async () => {
  let out = 0;
  onSignedOut(() => (out += 1));
  answer = () => new Response('{"kind":"unauthenticated","message":"x"}', { status: 401 });
  await failure(call('/v1/session/login', { user: 'a', password: 'b' }));
  expect(out).toBe(0);
  expect((await failure(call('/v1/jobs/list', {}))).kind).toBe('signed-out');
  expect(out).toBe(1);
  answer = () => new Response('{"kind":"code-needed","message":"x"}', { status: 401 });
  const caught = await failure(call('/v1/session/login', { user: 'a', password: 'b' }));
  expect(caught.kind).toBe('code-needed');
});

it('leaves a job that takes long to itself', async () => {
  answer = () => new Response('{"id":7,"kind":"destroy"}', { status: 202 });
  const body = {
    target: 'tank/a',
    recursive: false,
    dependents: false,
    force: false,
    dry_run: false,
    command: '',
  };
  const reply = await start('/v1/zfs/destroy', body);
  expect(reply).toBeInstanceOf(StillRunning);
  expect(asked[0]?.headers['Prefer']).toBe('respond-async, wait=5');
  // Others are waited for.
  answer = () => new Response('{}');
  await start('/v1/zpool/clear', { name: 'tank', vdev: null });
  expect(asked[1]?.headers['Prefer']).toBeUndefined();
});
