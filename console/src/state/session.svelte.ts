/** Who is signed in, and what they may do. */
import { call, onSignedOut, setCsrf } from '../api/client';
import type { Role, Session } from '../api/types';

type Stage = 'unknown' | 'setup' | 'out' | 'in';

const ORDER: readonly Role[] = ['viewer', 'operator', 'admin'];

class SessionState {
  stage = $state<Stage>('unknown');
  user = $state('');
  role = $state<Role>('viewer');
  /** The session ended by itself while the page was in use. */
  ended = $state(false);

  /** Whether who is signed in has this role, or one that may do more. */
  is(role: Role): boolean {
    return ORDER.indexOf(this.role) >= ORDER.indexOf(role);
  }

  /** Asks the server who we are. */
  async look(): Promise<void> {
    const info = await call('/v1/session/info', {});
    if (info.user !== null && info.role !== null) {
      this.begin({ user: info.user, role: info.role, csrf: info.csrf ?? '' });
    } else {
      this.stage = info.setup_needed ? 'setup' : 'out';
    }
  }

  begin({ user, role, csrf }: Session): void {
    setCsrf(csrf);
    this.user = user;
    this.role = role;
    this.ended = false;
    this.stage = 'in';
  }

  async leave(): Promise<void> {
    await call('/v1/session/logout', {});
    this.forget(false);
  }

  forget(ended: boolean): void {
    if (this.stage !== 'in') return;
    setCsrf('');
    this.ended = ended;
    this.user = '';
    this.role = 'viewer';
    this.stage = 'out';
  }
}

export const session = new SessionState();

onSignedOut(() => session.forget(true));
