/** From what is chosen in the wizard to what is done, in order. */
import type { DiskKind, PlanQuestion } from '../api/plan';
import type { Settings } from '../api/types';
import type { Action } from './actions';
import * as make from './actions';
import { vdevsOf, type Layout } from './capacity';
import { addGroup, setAccess } from './peopleActions';
import { wordOf } from './planner';
import { formatIscsi, formatNfs, formatSmb } from './sharing';

export interface ChosenDisk {
  path: string;
  sizeBytes: number;
  /** Where the server knows it. */
  kind?: DiskKind;
}

/** Who may use a shared filesystem. */
export type Audience =
  | { who: 'everyone' }
  | {
      who: 'people';
      /** The first one owns the directory, and what comes by NFS. */
      people: readonly { name: string; uid: number }[];
      /** The group that is made of them. */
      group: string;
      /** Its number, for NFS, which has to know it before. */
      gid: number;
    };

export interface Choice {
  disks: readonly ChosenDisk[];
  layout: Layout;
  pool: string;
  compression: string;
  force: boolean;
  what: 'nothing' | 'filesystem' | 'volume';
  /** Name below the pool. */
  dataset: string;
  volumeBytes: number;
  sparse: boolean;
  smb: boolean;
  nfs: boolean;
  nfsHosts: readonly string[];
  audience: Audience;
  /** Whether initiators of the volume need a secret, which is made up. */
  secret: boolean;
}

/**
 * Disks in the order in which they are put into vdevs: like to like, so that a mirror of a small
 * and a big one does not waste the big one.
 */
export function inOrder(disks: readonly ChosenDisk[]): ChosenDisk[] {
  return [...disks].sort((a, b) => b.sizeBytes - a.sizeBytes);
}

/**
 * What the planner is asked of a layout: with blocks of 4K, the smallest that clients of volumes
 * ask for. All disks count as the smallest, and as the slowest kind; those of which nothing is
 * known count as hard disks.
 */
export function adviceOf(disks: readonly ChosenDisk[], layout: Layout): PlanQuestion {
  const kinds = new Set(disks.map(({ kind }) => kind ?? 'hdd'));
  const kind = kinds.has('hdd') ? 'hdd' : kinds.has('ssd') ? 'ssd' : 'nvme';
  return {
    disks: [
      {
        count: disks.length,
        size_bytes: Math.min(...disks.map(({ sizeBytes }) => sizeBytes)),
        kind,
      },
    ],
    spares: 0,
    layouts: [wordOf(layout)],
    purposes: ['vm'],
    load: { block_bytes: 4096, depth: 32, read_share: 0.6, streams: 0, stream_rate: 0 },
    buses: [],
    network_rate: null,
    memory_bytes: null,
  };
}

/** Full name of what is made below the pool. */
export function datasetOf(choice: Pick<Choice, 'pool' | 'dataset'>): string {
  return `${choice.pool}/${choice.dataset}`;
}

/** Name of the secret of the volume. */
export function secretOf(choice: Pick<Choice, 'pool' | 'dataset'>): string {
  return `${choice.pool}-${choice.dataset}`.replace(/[^A-Za-z0-9_.-]/g, '-');
}

/** A name for the group of those who may use it, which none of `taken` has. */
export function groupOf(
  choice: Pick<Choice, 'pool' | 'dataset'>,
  taken: readonly string[],
): string {
  const plain = `${choice.pool}-${choice.dataset}`.toLowerCase().replace(/[^a-z0-9_-]/g, '-');
  const begin = /^[a-z_]/.test(plain) ? plain : `g-${plain}`;
  for (let count = 1; ; count += 1) {
    const ending = count === 1 ? '' : `-${count}`;
    const name = begin.slice(0, 32 - ending.length) + ending;
    if (!taken.includes(name)) return name;
  }
}

/** The number of nobody, whom guests are taken for. */
const NOBODY = '65534';

/** Makes a filesystem that is shared, and gives it to those who may use it. */
function shareOf(choice: Choice): Action[] {
  const { audience, smb, nfs } = choice;
  const name = datasetOf(choice);
  const owner = audience.who === 'people' ? audience.people[0] : undefined;
  const isShared = smb || nfs;
  const properties: Settings = {};
  if (nfs) {
    properties['sharenfs'] = formatNfs({
      hosts: [...choice.nfsHosts],
      readOnly: false,
      noRootSquash: false,
      insecure: false,
      all: true,
      uid: owner ? `${owner.uid}` : '',
      gid: audience.who === 'people' ? `${audience.gid}` : '',
      rest: [],
    });
  }
  if (smb) {
    properties['sharesmb'] = formatSmb({
      name: '',
      only: audience.who === 'people' ? [`@${audience.group}`] : [],
      guest: audience.who === 'everyone',
      readOnly: false,
      groupWrite: true,
      encrypt: false,
      timemachine: false,
      rest: [],
    });
  }
  const out: Action[] = [];
  if (isShared && audience.who === 'people') {
    const names = audience.people.map((person) => person.name);
    out.push(addGroup(audience.group, nfs ? audience.gid : null, names));
  }
  out.push(make.createFilesystem(name, properties));
  if (isShared) {
    out.push(
      audience.who === 'people'
        ? setAccess(
            name,
            '',
            `/${name}`,
            `${owner?.uid ?? 0}`,
            nfs ? `${audience.gid}` : audience.group,
            0o2770,
          )
        : setAccess(name, '', `/${name}`, NOBODY, NOBODY, 0o2777),
    );
  }
  return out;
}

/** The first of all: the pool. */
export function createPoolOf(choice: Choice): Action<'/v1/zpool/create'> {
  const paths = inOrder(choice.disks).map(({ path }) => path);
  const root: Settings = { compression: choice.compression };
  return make.createPool(choice.pool, vdevsOf(choice.layout, paths), root, choice.force);
}

export function planOf(choice: Choice): Action[] {
  const plan: Action[] = [createPoolOf(choice)];
  const name = datasetOf(choice);
  if (choice.what === 'filesystem') {
    plan.push(...shareOf(choice));
  } else if (choice.what === 'volume') {
    const secret = choice.secret ? secretOf(choice) : '';
    if (choice.secret) plan.push(make.setSecret(secret, null));
    const share = formatIscsi({ secret, initiator: '', readOnly: false, rest: [] });
    const properties = { 'millpond:iscsi': share };
    plan.push(make.createVolume(name, choice.volumeBytes, choice.sparse, properties));
  }
  return plan;
}
