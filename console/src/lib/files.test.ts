import { expect, it } from 'vitest';

import type { FileEntry } from '../api/files';
import { downloadLink, inOrder, modeWords, restoreFile, shownName } from './files';

function entry(name: string, type: 'file' | 'directory'): FileEntry {
  const rest = { size_bytes: 1, mode: 0o644, uid: 0, gid: 0, modified_s: 0, target: null };
  return { name, file: { type, ...rest } };
}

it('puts directories first, and numbers by value', () => {
  const list = [entry('b10', 'file'), entry('b9', 'file'), entry('z', 'directory')];
  expect(inOrder([...list, { name: 'a', file: null }]).map(({ name }) => name)).toEqual([
    'z',
    'a',
    'b9',
    'b10',
  ]);
});

it('shows permissions as ls does', () => {
  expect(modeWords(0o750)).toBe('rwxr-x---');
  expect(modeWords(0o4711)).toBe('rws--x--x');
  expect(modeWords(0o1666)).toBe('rw-rw-rwT');
});

it('keeps names as they are', () => {
  expect(shownName(String.raw`a\\b\xff`)).toBe(String.raw`a\b\xff`);
  const link = downloadLink('tank/a@s', 'x y/50%&b');
  const query = new URL(link, 'https://h').searchParams;
  expect([query.get('dataset'), query.get('path')]).toEqual(['tank/a@s', 'x y/50%&b']);
});

it('says as a command what restoring does', () => {
  const now = new Date(2026, 10, 25, 4, 3, 2);
  expect(restoreFile('tank/a@s', 'd/x y', false, '/tank/a', now).command).toBe(
    "cp -a '/tank/a/.zfs/snapshot/s/d/x y' '/tank/a/d/x y.restored-2026-11-25-040302'",
  );
  expect(restoreFile('tank@s', 'f', true, '/', now).command).toBe(
    'mv /f /f.replaced-2026-11-25-040302 && cp -a /.zfs/snapshot/s/f /f',
  );
});
