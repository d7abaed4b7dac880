/** Where the page is: what stands behind the `#` of its address. */

class Router {
  path = $state(read());

  constructor() {
    window.addEventListener('hashchange', () => (this.path = read()));
  }

  go(path: string): void {
    window.location.hash = path;
  }
}

function read(): string {
  const hash = window.location.hash.replace(/^#/, '');
  return hash.startsWith('/') ? hash : '/';
}

/** What `millpond up` puts into its link for the first user; taken out of the address at once. */
export function takeSetupToken(): string | undefined {
  const found = /^#setup=(.+)$/.exec(window.location.hash);
  if (!found?.[1]) return undefined;
  window.history.replaceState(null, '', window.location.pathname);
  return decodeURIComponent(found[1]);
}

export const router = new Router();
