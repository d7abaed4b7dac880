/** Who uses shares, and what may be done in a directory: requests with their command lines. */
import type { Person } from '../api/people';
import { action, line, type Action } from './actions';

/**
 * What the server takes as a name of somebody or of a group; it says itself which of them it does
 * not take, since hosts have them for something else.
 */
export function isPersonName(name: string): boolean {
  return /^[a-z_][a-z0-9_-]{0,31}$/.test(name) && name !== 'root';
}

export function addPerson(name: string, password: string): Action<'/v1/people/add'> {
  const user = line('useradd', '--no-create-home', '--shell', '/usr/sbin/nologin', name);
  const command = password === '' ? user : `${user} && ${line('millpond', 'user', 'add', name)}`;
  return action('/v1/people/add', command, { name, password: password === '' ? null : password });
}

export function setPassword({ name, has_password: has }: Person, password: string): Action {
  const command = line('millpond', 'user', has ? 'passwd' : 'add', name);
  return action('/v1/people/password', command, { name, password });
}

export function removePerson({ name, has_password: has, is_of_host: stays }: Person): Action {
  const commands = [
    has && line('millpond', 'user', 'remove', name),
    !stays && line('userdel', name),
  ];
  const command = commands.filter((one) => one !== false).join(' && ');
  return action('/v1/people/remove', command, { name });
}

function membersOf(group: string, members: readonly string[]): string {
  return line('gpasswd', '--members', members.join(','), group);
}

/** Without a number, the server chooses one. */
export function addGroup(
  name: string,
  gid: number | null,
  members: readonly string[],
): Action<'/v1/groups/add'> {
  const made = line('groupadd', ...(gid === null ? [] : ['--gid', `${gid}`]), name);
  const command = members.length === 0 ? made : `${made} && ${membersOf(name, members)}`;
  return action('/v1/groups/add', command, { name, gid, members: [...members] });
}

export function changeGroup(name: string, members: readonly string[]): Action {
  return action('/v1/groups/change', membersOf(name, members), { name, members: [...members] });
}

export function removeGroup(name: string): Action {
  return action('/v1/groups/remove', line('groupdel', name), { name });
}

/** A mode as `chmod` takes it. */
export function octal(mode: number): string {
  return mode.toString(8).padStart(4, '0');
}

/**
 * Gives a directory to somebody; `at` is where it is on the server. An owner or a group that is
 * null stays.
 */
export function setAccess(
  dataset: string,
  path: string,
  at: string,
  owner: string | null,
  group: string | null,
  mode: number,
): Action<'/v1/files/access-set'> {
  const place = path === '' ? at : `${at.replace(/\/$/, '')}/${path}`;
  const whose = group === null ? (owner ?? '') : `${owner ?? ''}:${group}`;
  const chmod = line('chmod', octal(mode), place);
  const command = whose === '' ? chmod : `${line('chown', whose, place)} && ${chmod}`;
  return action('/v1/files/access-set', command, { dataset, path, owner, group, mode });
}

/** What somebody may do in a directory. */
export const RIGHTS = ['nothing', 'look', 'change', 'other'] as const;
export type Right = (typeof RIGHTS)[number];

const BITS: Record<Exclude<Right, 'other'>, number> = { nothing: 0, look: 5, change: 7 };

/** Of three bits of a mode. */
export function rightOf(bits: number): Right {
  const found = RIGHTS.find((right) => right !== 'other' && BITS[right] === (bits & 7));
  return found ?? 'other';
}

/** A mode in which these three bits, `shift` from the end, say that. */
export function withRight(mode: number, shift: number, right: Right): number {
  return right === 'other' ? mode : (mode & ~(7 << shift)) | (BITS[right] << shift);
}

/** What is made in the directory has its group. */
export const GROUP_STAYS = 0o2000;
