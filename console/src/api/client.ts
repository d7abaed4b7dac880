/** Requests to the server that the page came from. */
import { JOBS, type Path, type Reply, type Request } from './calls';
import type { Failure, Job, Refusal } from './types';

/** Seconds that a request which is a job is waited for; then it goes on without us. */
const WAIT_S = 5;

export const CSRF_HEADER = 'X-Millpond-CSRF';

export type ApiFailureKind = Failure['kind'] | 'unreachable' | 'signed-out';

/** A request that failed, with what the server says of it. */
export class ApiFailure extends Error {
  constructor(
    readonly kind: ApiFailureKind,
    message: string,
    readonly refusal: Refusal | null = null,
    /** HTTP status; zero where there was no answer. */
    readonly status = 0,
  ) {
    super(message);
    this.name = 'ApiFailure';
  }
}

/** A request that became a job and is still under way. */
export class StillRunning {
  constructor(readonly job: Job) {}
}

interface Session {
  csrf: string;
  /** Called when the server says that nobody is signed in any more. */
  onSignedOut: () => void;
}

const session: Session = { csrf: '', onSignedOut: () => undefined };

export function setCsrf(csrf: string): void {
  session.csrf = csrf;
}

export function onSignedOut(handler: () => void): void {
  session.onSignedOut = handler;
}

/** What a failed answer says, whatever it holds. */
export async function failureOf(response: Response): Promise<ApiFailure> {
  const text = await response.text().catch(() => '');
  try {
    const failure = JSON.parse(text) as Partial<Failure>;
    if (typeof failure.message === 'string') {
      const kind = failure.kind === 'unauthenticated' ? 'signed-out' : (failure.kind ?? 'other');
      return new ApiFailure(kind, failure.message, failure.refusal ?? null, response.status);
    }
  } catch {
    // Not the server's own words: something between us and it answered.
  }
  const kind = response.status === 401 ? 'signed-out' : 'other';
  return new ApiFailure(kind, text.slice(0, 200) || response.statusText, null, response.status);
}

function unreachable(): ApiFailure {
  const message = 'the server does not answer; it may be starting, or the network is down';
  return new ApiFailure('unreachable', message);
}

/** What an answer holds; the connection may break off within it. */
async function held<T>(response: Response): Promise<T> {
  try {
    return (await response.json()) as T;
  } catch {
    throw unreachable();
  }
}

async function post(path: Path, body: unknown, headers: Record<string, string>): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: 'POST',
      credentials: 'same-origin',
      cache: 'no-store',
      headers: { 'Content-Type': 'application/json', [CSRF_HEADER]: session.csrf, ...headers },
      body: JSON.stringify(body),
    });
  } catch {
    // What browsers say of it ("TypeError: Failed to fetch") tells nobody anything.
    throw unreachable();
  }
  if (response.ok) return response;
  const failure = await failureOf(response);
  // A wrong password is answered with 401 as well.
  if (response.status === 401 && !path.startsWith('/v1/session/')) session.onSignedOut();
  throw failure;
}

/** Makes a request and waits for its answer, however long that takes. */
export async function call<P extends Path>(path: P, body: Request<P>): Promise<Reply<P>> {
  const response = await post(path, body, {});
  return held<Reply<P>>(response);
}

/** Makes a request; one that is a job and takes long is left to itself after some seconds. */
export async function start<P extends Path>(
  path: P,
  body: Request<P>,
): Promise<Reply<P> | StillRunning> {
  const prefer: Record<string, string> = JOBS.has(path)
    ? { Prefer: `respond-async, wait=${WAIT_S}` }
    : {};
  const response = await post(path, body, prefer);
  if (response.status === 202) return new StillRunning(await held<Job>(response));
  return held<Reply<P>>(response);
}
