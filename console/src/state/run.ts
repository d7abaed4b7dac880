/** Has something done, and says what came of it. */
import { ApiFailure, start, StillRunning } from '../api/client';
import type { Path, Reply } from '../api/calls';
import type { Action } from '../lib/actions';
import { t } from '../texts/en';
import { toasts } from './toasts.svelte';

function words(jobKind: string): string {
  return t.jobs.kinds[jobKind] ?? jobKind;
}

/** A failure as one, whatever was thrown. */
export function asFailure(error: unknown): ApiFailure {
  return error instanceof ApiFailure ? error : new ApiFailure('other', String(error));
}

/**
 * Does it, and tells `said` where it worked. Gives the answer; undefined where it has become a job
 * that goes on. Fails as the request does.
 */
export async function run<P extends Path>(
  action: Action<P>,
  said?: string,
): Promise<Reply<P> | undefined> {
  const reply = await start(action.path, action.body);
  if (reply instanceof StillRunning) {
    const link = { href: '#/jobs', text: t.nav.jobs };
    toasts.add(t.jobs.goesOn(words(reply.job.kind)), 'accent', link);
    return undefined;
  }
  const { warnings } = reply as { warnings?: string[] };
  for (const warning of warnings ?? []) toasts.add(warning, 'bad');
  if (said !== undefined) toasts.add(said);
  return reply;
}

/** The same for a button without a dialog: a failure is a note as well. */
export async function runNow(action: Action, said: string): Promise<void> {
  try {
    await run(action, said);
  } catch (error) {
    const failure = asFailure(error);
    const title = t.failure.titles[failure.kind];
    toasts.add(`${title}: ${failure.message}`, 'bad');
  }
}
