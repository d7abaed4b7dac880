/**
 * What a person can have done: a request, and the command line that does the same, which is shown
 * with it and kept in the pool's history. Nothing here asks the server.
 */
import type { Path, Request } from '../api/calls';
import type { Role, Settings, VdevSpec } from '../api/types';
import { vdevWords } from './capacity';
import { hoursOf, rule, whenWords } from './schedules';
import { bytes } from './units';

export interface Action<P extends Path = Path> {
  path: P;
  body: Request<P>;
  /** As typed in a shell. */
  command: string;
}

/** A word of a command line, with quotes where a shell wants them. */
export function quote(word: string): string {
  if (/^[\w@%+=:,./#-]+$/.test(word)) return word;
  return `'${word.replaceAll("'", String.raw`'\''`)}'`;
}

/** A command line of these words. */
export function line(...words: (string | false | undefined)[]): string {
  return words
    .filter((word) => word !== false && word !== undefined)
    .map(quote)
    .join(' ');
}

export function action<P extends Path>(path: P, command: string, body: Request<P>): Action<P> {
  return { path, command, body };
}

function options(flag: string, settings: Settings): string[] {
  return Object.entries(settings).flatMap(([name, value]) => [flag, `${name}=${value}`]);
}

// Pools

export type ScrubAction = Request<'/v1/zpool/scrub'>['action'];

export function scrub(pool: string, what: ScrubAction): Action {
  const flags = {
    start: undefined,
    continue: '-C',
    errors: '-e',
    pause: '-p',
    stop: '-s',
  } as const;
  return action('/v1/zpool/scrub', line('zpool', 'scrub', flags[what], pool), {
    names: [pool],
    all: false,
    action: what,
  });
}

export function clear(pool: string, device?: string): Action {
  return action('/v1/zpool/clear', line('zpool', 'clear', pool, device), {
    name: pool,
    vdev: device ?? null,
  });
}

export function createPool(
  name: string,
  vdevs: VdevSpec[],
  filesystem: Settings,
  force: boolean,
): Action<'/v1/zpool/create'> {
  const command = line(
    'zpool',
    'create',
    force && '-f',
    ...options('-O', filesystem),
    name,
    ...vdevWords(vdevs),
  );
  return action('/v1/zpool/create', command, {
    name,
    vdevs,
    properties: {},
    filesystem_properties: filesystem,
    force,
    dry_run: false,
    no_features: false,
    altroot: null,
    command,
  });
}

export function exportPool(name: string, force: boolean): Action {
  return action('/v1/zpool/export', line('zpool', 'export', force && '-f', name), {
    names: [name],
    all: false,
    force,
  });
}

export function importPool(pool: string, force: boolean): Action {
  const command = line('zpool', 'import', force && '-f', pool);
  return action('/v1/zpool/import', command, {
    search: [],
    pool,
    all: false,
    new_name: null,
    destroyed: false,
    force,
    no_mount: false,
    altroot: null,
    properties: {},
    command,
  });
}

export function destroyPool(name: string): Action {
  return action('/v1/zpool/destroy', line('zpool', 'destroy', name), { name, force: false });
}

export function replace(pool: string, device: string, by: string, force: boolean): Action {
  const command = line('zpool', 'replace', force && '-f', pool, device, by);
  return action('/v1/zpool/attach', command, {
    name: pool,
    device,
    new_device: by,
    replace: true,
    ashift: null,
    allow_in_use: force,
    command,
  });
}

export function attach(pool: string, device: string, also: string, force: boolean): Action {
  const command = line('zpool', 'attach', force && '-f', pool, device, also);
  return action('/v1/zpool/attach', command, {
    name: pool,
    device,
    new_device: also,
    replace: false,
    ashift: null,
    allow_in_use: force,
    command,
  });
}

export function detach(pool: string, device: string): Action {
  const command = line('zpool', 'detach', pool, device);
  return action('/v1/zpool/detach', command, { name: pool, device, command });
}

export function offline(pool: string, device: string): Action {
  const command = line('zpool', 'offline', pool, device);
  const body = { name: pool, device, temporary: false, fault: false, command };
  return action('/v1/zpool/offline', command, body);
}

export function online(pool: string, device: string): Action {
  const command = line('zpool', 'online', pool, device);
  return action('/v1/zpool/online', command, { name: pool, device, command });
}

export function setPool(pool: string, property: string, value: string): Action {
  const command = line('zpool', 'set', `${property}=${value}`, pool);
  return action('/v1/zpool/set', command, { name: pool, property, value, command });
}

// Datasets

export function createFilesystem(name: string, properties: Settings): Action<'/v1/zfs/create'> {
  const command = line('zfs', 'create', ...options('-o', properties), name);
  return action('/v1/zfs/create', command, {
    name,
    properties,
    volume_size_bytes: null,
    sparse: false,
    parents: false,
    no_mount: false,
    command,
  });
}

export function createVolume(
  name: string,
  sizeBytes: number,
  sparse: boolean,
  properties: Settings,
): Action<'/v1/zfs/create'> {
  const short = bytes(sizeBytes).replace(/B$/, '');
  // A size that `bytes` has cut off is told in full.
  const isExact = /^\d+[KMGTPE]?$/.test(short);
  const command = line(
    'zfs',
    'create',
    sparse && '-s',
    '-V',
    isExact ? short : String(sizeBytes),
    ...options('-o', properties),
    name,
  );
  return action('/v1/zfs/create', command, {
    name,
    properties,
    volume_size_bytes: sizeBytes,
    sparse,
    parents: false,
    no_mount: false,
    command,
  });
}

export function destroy(target: string, recursive: boolean): Action {
  const command = line('zfs', 'destroy', recursive && '-r', target);
  return action('/v1/zfs/destroy', command, {
    target,
    recursive,
    dependents: false,
    force: false,
    dry_run: false,
    command,
  });
}

export function set(name: string, property: string, value: string): Action {
  const command = line('zfs', 'set', `${property}=${value}`, name);
  return action('/v1/zfs/set', command, {
    names: [name],
    properties: { [property]: value },
    no_mount: false,
    command,
  });
}

export function inherit(name: string, property: string): Action {
  const command = line('zfs', 'inherit', property, name);
  return action('/v1/zfs/inherit', command, { names: [name], property, recursive: false, command });
}

export function snapshot(dataset: string, name: string, recursive: boolean): Action {
  const full = `${dataset}@${name}`;
  const command = line('zfs', 'snapshot', recursive && '-r', full);
  return action('/v1/zfs/snapshot', command, {
    names: [full],
    recursive,
    properties: {},
    command,
  });
}

export function rollback(name: string, destroyNewer: boolean): Action {
  const command = line('zfs', 'rollback', destroyNewer && '-r', name);
  return action('/v1/zfs/rollback', command, {
    snapshot: name,
    destroy_newer: destroyNewer,
    destroy_clones: false,
    force: false,
    command,
  });
}

export function clone(origin: string, name: string): Action {
  const command = line('zfs', 'clone', origin, name);
  return action('/v1/zfs/clone', command, {
    origin,
    name,
    properties: {},
    parents: false,
    no_mount: false,
    command,
  });
}

export function promote(name: string): Action {
  const command = line('zfs', 'promote', name);
  return action('/v1/zfs/promote', command, { name, command });
}

export function rename(from: string, to: string): Action {
  const command = line('zfs', 'rename', from, to);
  return action('/v1/zfs/rename', command, {
    from,
    to,
    parents: false,
    recursive: false,
    no_mount: false,
    force: false,
    command,
  });
}

export function hold(name: string, tag: string): Action {
  const command = line('zfs', 'hold', tag, name);
  return action('/v1/zfs/hold', command, { names: [name], tag, recursive: false, command });
}

export function release(name: string, tag: string): Action {
  const command = line('zfs', 'release', tag, name);
  return action('/v1/zfs/release', command, { names: [name], tag, recursive: false, command });
}

export function mount(name: string): Action {
  const body = { name, all: false, overlay: false, options: [] };
  return action('/v1/zfs/mount', line('zfs', 'mount', name), body);
}

export function unmount(name: string): Action {
  return action('/v1/zfs/unmount', line('zfs', 'unmount', name), {
    name,
    all: false,
    force: false,
  });
}

// Access to shares

export function setSecret(name: string, secret: string | null): Action<'/v1/iscsi/secret/set'> {
  const made = secret === null && '--generate';
  const command = line('millpond', 'iscsi', 'secret', 'set', name, made);
  return action('/v1/iscsi/secret/set', command, { name, user: null, secret });
}

export function removeSecret(name: string, force: boolean): Action {
  const command = line('millpond', 'iscsi', 'secret', 'remove', force && '-f', name);
  return action('/v1/iscsi/secret/remove', command, { name, force });
}

// Schedules

export function setSchedule(spec: Request<'/v1/schedules/set'>): Action<'/v1/schedules/set'> {
  const { name, task, target, recursive, when, keep, hours, share } = spec;
  const kept = task === 'snapshot' ? ['--keep', rule(keep)] : [];
  const command = line(
    ...['millpond', 'schedule', 'set', task, target].filter((word) => word !== ''),
    recursive && '-r',
    ...whenWords(when),
    ...kept,
    ...(hours ? ['--hours', hoursOf(hours)] : []),
    ...(share ? ['--share', String(share)] : []),
    ...(name === null ? [] : ['--name', name]),
  );
  return action('/v1/schedules/set', command, spec);
}

export function runSchedule(name: string): Action {
  return action('/v1/schedules/run', line('millpond', 'schedule', 'run', name), { name });
}

export function pauseSchedule(name: string, isPaused: boolean): Action {
  const verb = isPaused ? 'pause' : 'resume';
  const body = { name, is_paused: isPaused };
  return action('/v1/schedules/pause', line('millpond', 'schedule', verb, name), body);
}

export function removeSchedule(name: string): Action {
  return action('/v1/schedules/remove', line('millpond', 'schedule', 'remove', name), { name });
}

// Users of the console

export function addUser(name: string, role: Role, password: string): Action<'/v1/users/add'> {
  const command = line('millpond', 'user', 'add', '--role', role, name);
  return action('/v1/users/add', command, { name, role, password });
}

export function changeUser(
  name: string,
  change: { role?: Role; password?: string; totp?: boolean },
): Action<'/v1/users/change'> {
  const user = ['millpond', 'user'];
  const commands = [
    ...(change.role ? [line(...user, 'role', name, change.role)] : []),
    ...(change.password === undefined ? [] : [line(...user, 'passwd', name)]),
    ...(change.totp === undefined
      ? []
      : [line(...user, 'totp', change.totp ? undefined : '--off', name)]),
  ];
  return action('/v1/users/change', commands.join(' && '), { name, ...change });
}

export function removeUser(name: string): Action<'/v1/users/remove'> {
  return action('/v1/users/remove', line('millpond', 'user', 'remove', name), { name });
}

/** A key that is good for so many days, or for ever. */
export function makeKey(
  name: string,
  role: Role,
  days: number | null,
  now = Date.now() / 1000,
): Action<'/v1/keys/make'> {
  const expiry = days === null ? [] : ['--days', String(days)];
  const command = line('millpond', 'apikey', 'make', '--role', role, ...expiry, name);
  const expires = days === null ? null : Math.round(now) + days * 86_400;
  return action('/v1/keys/make', command, { name, role, expires_s: expires });
}

export function removeKey(id: string): Action<'/v1/keys/remove'> {
  return action('/v1/keys/remove', line('millpond', 'apikey', 'remove', id), { id });
}
