/**
 * How datasets are shared: the words of `sharenfs`, `sharesmb` and `millpond:iscsi` as what a form
 * shows, and back (docs/properties.md). What a form has no place for is left to who wrote it:
 * `rest` has it, and a form that is saved drops it only after it said so.
 */

export interface NfsOptions {
  /** Everybody, where there are none. */
  hosts: string[];
  readOnly: boolean;
  noRootSquash: boolean;
  insecure: boolean;
  /** Everybody is taken for one user: `uid` and `gid`, or nobody where these are empty. */
  all: boolean;
  uid: string;
  gid: string;
  rest: string[];
}

export interface SmbOptions {
  name: string;
  /** Users, and groups with an `@`; all SMB users where there are none. */
  only: string[];
  guest: boolean;
  readOnly: boolean;
  groupWrite: boolean;
  encrypt: boolean;
  timemachine: boolean;
  rest: string[];
}

export interface IscsiOptions {
  secret: string;
  initiator: string;
  readOnly: boolean;
  rest: string[];
}

function words(value: string): string[] {
  return value
    .split(',')
    .map((word) => word.trim())
    .filter((word) => word !== '' && word !== 'on');
}

export function isShared(value: string | undefined): boolean {
  return value !== undefined && value !== '' && value !== 'off' && value !== '-';
}

/** Whether it is the number of a user or group. */
export function isNumber(text: string | undefined): text is string {
  return text !== undefined && /^\d{1,10}$/.test(text) && Number(text) < 2 ** 32;
}

/** Splits `[fe80::1]:10.0.0.0/8` at the colons between hosts, not at those within brackets. */
function splitHosts(text: string): string[] {
  return text.match(/(?:\[[^\]]*\](?:\/\d+)?|[^:])+/g) ?? [];
}

export function parseNfs(value: string): NfsOptions {
  const out: NfsOptions = {
    hosts: [],
    readOnly: false,
    noRootSquash: false,
    insecure: false,
    all: false,
    uid: '',
    gid: '',
    rest: [],
  };
  for (const word of words(value)) {
    const [name = '', list] = word.split(/=(.*)/s);
    if (name === 'rw' && list === undefined) continue;
    else if (name === 'ro' && list === undefined) out.readOnly = true;
    else if (name === 'no_root_squash') out.noRootSquash = true;
    else if (name === 'insecure') out.insecure = true;
    else if (name === 'all_squash') out.all = true;
    else if (name === 'anonuid' && isNumber(list)) out.uid = list;
    else if (name === 'anongid' && isNumber(list)) out.gid = list;
    else if ((name === 'rw' || name === 'ro') && list && out.hosts.length === 0) {
      out.hosts = splitHosts(list).map((host) => host.replace(/^@/, ''));
      out.readOnly = name === 'ro';
    } else out.rest.push(word);
  }
  if (!out.all) {
    // Whom root is taken for is nothing that the form shows.
    for (const [word, value] of [
      ['anonuid', out.uid],
      ['anongid', out.gid],
    ]) {
      if (value !== '') out.rest.push(`${word}=${value}`);
    }
    out.uid = '';
    out.gid = '';
  }
  return out;
}

export function formatNfs(options: NfsOptions): string {
  const { hosts, readOnly, noRootSquash, insecure, all, uid, gid } = options;
  const mode = readOnly ? 'ro' : 'rw';
  // A network is told by the `@` for OpenZFS on other systems.
  const list = hosts.map((host) => (host.includes('/') ? `@${host}` : host)).join(':');
  const out = [hosts.length > 0 ? `${mode}=${list}` : readOnly ? 'ro' : ''];
  if (noRootSquash) out.push('no_root_squash');
  if (insecure) out.push('insecure');
  if (all) {
    out.push('all_squash');
    if (uid !== '') out.push(`anonuid=${uid}`);
    if (gid !== '') out.push(`anongid=${gid}`);
  }
  return out.filter((word) => word !== '').join(',') || 'on';
}

export function parseSmb(value: string): SmbOptions {
  const out: SmbOptions = {
    name: '',
    only: [],
    guest: false,
    readOnly: false,
    groupWrite: false,
    encrypt: false,
    timemachine: false,
    rest: [],
  };
  for (const word of words(value)) {
    const [name = '', given] = word.split(/=(.*)/s);
    if (name === 'name' && given) out.name = given;
    else if (name === 'user' && given) out.only.push(given);
    else if (name === 'group' && given) out.only.push(`@${given}`);
    else if (word === 'guest') out.guest = true;
    else if (word === 'ro') out.readOnly = true;
    else if (word === 'groupwrite') out.groupWrite = true;
    else if (word === 'encrypt') out.encrypt = true;
    else if (word === 'timemachine') out.timemachine = true;
    else out.rest.push(word);
  }
  return out;
}

export function formatSmb(options: SmbOptions): string {
  const out: string[] = [];
  if (options.readOnly) out.push('ro');
  if (options.name !== '') out.push(`name=${options.name}`);
  for (const who of options.only) {
    out.push(who.startsWith('@') ? `group=${who.slice(1)}` : `user=${who}`);
  }
  if (options.guest) out.push('guest');
  if (options.groupWrite) out.push('groupwrite');
  if (options.encrypt) out.push('encrypt');
  if (options.timemachine) out.push('timemachine');
  return out.join(',') || 'on';
}

export function parseIscsi(value: string): IscsiOptions {
  const out: IscsiOptions = { secret: '', initiator: '', readOnly: false, rest: [] };
  for (const word of words(value)) {
    const [name = '', given] = word.split(/=(.*)/s);
    if (name === 'chap' && given) out.secret = given;
    else if (name === 'initiator' && given && out.initiator === '') out.initiator = given;
    else if (word === 'ro') out.readOnly = true;
    else out.rest.push(word);
  }
  return out;
}

export function formatIscsi(options: IscsiOptions): string {
  const out: string[] = [];
  if (options.readOnly) out.push('ro');
  if (options.initiator !== '') out.push(`initiator=${options.initiator}`);
  if (options.secret !== '') out.push(`chap=${options.secret}`);
  return out.join(',') || 'on';
}

/** What somebody types into a list: separated by commas, spaces or line ends. */
export function parseList(text: string): string[] {
  return text.split(/[\s,]+/).filter((item) => item !== '');
}

/** Whether it is a host, an address or a network, as far as a form can tell. */
export function isHost(text: string): boolean {
  return /^(\*|[A-Za-z0-9.-]+(\/\d{1,3})?|\[[0-9A-Fa-f:.]+\](\/\d{1,3})?)$/.test(text);
}
