/** Light or dark: as the system says, or as the switch says. */

export type Scheme = 'system' | 'light' | 'dark';

const KEY = 'millpond.scheme';

class SchemeState {
  scheme = $state<Scheme>(stored());

  choose(scheme: Scheme): void {
    this.scheme = scheme;
    try {
      localStorage.setItem(KEY, scheme);
    } catch {
      // Storage may be forbidden; the choice holds until the page is left.
    }
    this.apply();
  }

  apply(): void {
    if (this.scheme === 'system') delete document.documentElement.dataset['scheme'];
    else document.documentElement.dataset['scheme'] = this.scheme;
  }
}

function stored(): Scheme {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

export const scheme = new SchemeState();
