/** Messages about who uses shares, and whose directories are (crate `api`, module `accounts`). */
import type { Empty } from './types';

export interface Person {
  name: string;
  uid: number;
  has_password: boolean;
  is_of_host: boolean;
}

export interface Group {
  name: string;
  gid: number;
  members: string[];
}

export interface People {
  people: Person[];
  groups: Group[];
  free_id: number;
  no_smb: string | null;
  no_guests: string | null;
}

export interface DirectoryAccess {
  uid: number;
  owner: string | null;
  gid: number;
  group: string | null;
  mode: number;
  has_list: boolean;
}

export interface PeopleCalls {
  '/v1/people/list': [Empty, People];
  '/v1/people/add': [
    { name: string; password?: string | null; uid?: number | null },
    { uid: number },
  ];
  '/v1/people/password': [{ name: string; password: string }, Empty];
  '/v1/people/remove': [{ name: string }, Empty];
  '/v1/groups/add': [{ name: string; gid?: number | null; members: string[] }, { gid: number }];
  '/v1/groups/change': [{ name: string; members: string[] }, Empty];
  '/v1/groups/remove': [{ name: string }, Empty];
  '/v1/files/access': [{ dataset: string; path: string }, DirectoryAccess];
  '/v1/files/access-set': [
    {
      dataset: string;
      path: string;
      owner?: string | null;
      group?: string | null;
      mode?: number | null;
    },
    DirectoryAccess,
  ];
}
