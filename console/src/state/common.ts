/** What the menu and several pages show: asked for once, and passed on. */
import { getContext, setContext } from 'svelte';

import type { Reply } from '../api/calls';
import type { Live } from './live.svelte';

interface Common {
  alerts: Live<Reply<'/v1/alerts/list'>>;
  jobs: Live<Reply<'/v1/jobs/list'>>;
}

const KEY = 'common';

export function share(common: Common): void {
  setContext(KEY, common);
}

export function common(): Common {
  return getContext<Common>(KEY);
}
