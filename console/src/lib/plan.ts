/** From what is chosen in the wizard to what is done, in order. */
import type { Settings } from '../api/types';
import type { Action } from './actions';
import * as make from './actions';
import { vdevsOf, type Layout } from './capacity';
import { formatIscsi, formatNfs, formatSmb } from './sharing';

export interface ChosenDisk {
  path: string;
  sizeBytes: number;
}

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

/** Full name of what is made below the pool. */
export function datasetOf(choice: Pick<Choice, 'pool' | 'dataset'>): string {
  return `${choice.pool}/${choice.dataset}`;
}

/** Name of the secret of the volume. */
export function secretOf(choice: Pick<Choice, 'pool' | 'dataset'>): string {
  return `${choice.pool}-${choice.dataset}`.replace(/[^A-Za-z0-9_.-]/g, '-');
}

export function planOf(choice: Choice): Action[] {
  const paths = inOrder(choice.disks).map(({ path }) => path);
  const root: Settings = { compression: choice.compression };
  const plan: Action[] = [
    make.createPool(choice.pool, vdevsOf(choice.layout, paths), root, choice.force),
  ];
  const name = datasetOf(choice);
  if (choice.what === 'filesystem') {
    const properties: Settings = {};
    if (choice.nfs) {
      properties['sharenfs'] = formatNfs({
        hosts: [...choice.nfsHosts],
        readOnly: false,
        noRootSquash: false,
        insecure: false,
        rest: [],
      });
    }
    if (choice.smb) {
      properties['sharesmb'] = formatSmb({
        name: '',
        only: [],
        guest: false,
        readOnly: false,
        encrypt: false,
        timemachine: false,
        rest: [],
      });
    }
    plan.push(make.createFilesystem(name, properties));
  } else if (choice.what === 'volume') {
    const secret = choice.secret ? secretOf(choice) : '';
    if (choice.secret) plan.push(make.setSecret(secret, null));
    const share = formatIscsi({ secret, initiator: '', readOnly: false, rest: [] });
    const properties = { 'millpond:iscsi': share };
    plan.push(make.createVolume(name, choice.volumeBytes, choice.sparse, properties));
  }
  return plan;
}
