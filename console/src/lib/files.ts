/** Files in snapshots: paths, and what can be done with them. */
import type { FileEntry } from '../api/files';
import { action, line, type Action } from './actions';

/** A name as people read it: how the API writes it, without the doubled backslashes. */
export function shownName(name: string): string {
  return name.replaceAll('\\\\', '\\');
}

export function joined(path: string, name: string): string {
  return path === '' ? name : `${path}/${name}`;
}

export function nameOf(path: string): string {
  return path.split('/').at(-1) ?? path;
}

/** Directories first, each by name. */
export function inOrder(entries: readonly FileEntry[]): FileEntry[] {
  const collator = new Intl.Collator('en', { numeric: true });
  const rank = (entry: FileEntry): number => (entry.file?.type === 'directory' ? 0 : 1);
  return [...entries].sort((a, b) => rank(a) - rank(b) || collator.compare(a.name, b.name));
}

/** Permissions as `ls` shows them: `rwxr-x---`. */
export function modeWords(mode: number): string {
  const letters = [...'rwxrwxrwx'].map((letter, at) => (mode & (0o400 >> at) ? letter : '-'));
  const special: [number, number, string][] = [
    [0o4000, 2, 's'],
    [0o2000, 5, 's'],
    [0o1000, 8, 't'],
  ];
  for (const [bit, at, letter] of special) {
    if (mode & bit) letters[at] = letters[at] === '-' ? letter.toUpperCase() : letter;
  }
  return letters.join('');
}

/** Where a browser gets a file. */
export function downloadLink(snapshot: string, path: string): string {
  return `/v1/files/download?${new URLSearchParams({ dataset: snapshot, path }).toString()}`;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** `2026-11-25-140312`, as names of what is restored end. */
export function stamp(now: Date): string {
  const day = [now.getFullYear(), two(now.getMonth() + 1), two(now.getDate())].join('-');
  return `${day}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}`;
}

/** Restores a file; the command copies it out of `.zfs`, where the filesystem is mounted. */
export function restoreFile(
  snapshot: string,
  path: string,
  inPlace: boolean,
  mountpoint: string,
  now: Date,
): Action<'/v1/files/restore'> {
  const top = mountpoint.replace(/\/$/, '');
  const short = snapshot.split('@')[1] ?? '';
  const from = `${top}/.zfs/snapshot/${short}/${path}`;
  const to = `${top}/${path}`;
  const command = inPlace
    ? `${line('mv', to, `${to}.replaced-${stamp(now)}`)} && ${line('cp', '-a', from, to)}`
    : line('cp', '-a', from, `${to}.restored-${stamp(now)}`);
  return action('/v1/files/restore', command, { snapshot, path, in_place: inPlace });
}
