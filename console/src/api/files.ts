/** Messages about files in filesystems and snapshots (crate `api`, module `files`). */

export type FileType =
  'file' | 'directory' | 'link' | 'fifo' | 'socket' | 'char-device' | 'block-device';

export interface FileReport {
  type: FileType;
  size_bytes: number;
  mode: number;
  uid: number;
  gid: number;
  modified_s: number;
  target: string | null;
}

export interface FileEntry {
  /** A backslash is doubled, and bytes that are no UTF-8 are `\xff`. */
  name: string;
  /** Nothing where it cannot be read. */
  file: FileReport | null;
}

export interface FileFault {
  path: string;
  why: string;
}

export interface Restored {
  path: string;
  replaced: string | null;
  files: number;
  bytes: number;
  missing: FileFault[];
  missing_count: number;
  lacking: FileFault[];
  lacking_count: number;
}

export interface FileCalls {
  '/v1/files/list': [
    { dataset: string; path: string; after?: string | null; limit?: number | null },
    { entries: FileEntry[]; next: string | null },
  ];
  '/v1/files/restore': [{ snapshot: string; path: string; in_place: boolean }, Restored];
}
