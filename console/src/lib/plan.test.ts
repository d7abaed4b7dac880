import { expect, it } from 'vitest';

import { adviceOf, inOrder, planOf, type Choice } from './plan';

const choice: Choice = {
  disks: [
    { path: '/dev/a', sizeBytes: 1 },
    { path: '/dev/b', sizeBytes: 3 },
    { path: '/dev/c', sizeBytes: 1 },
    { path: '/dev/d', sizeBytes: 3 },
  ],
  layout: { kind: 'mirror', parity: 0, groups: 2, width: 2 },
  pool: 'tank',
  compression: 'lz4',
  force: false,
  what: 'filesystem',
  dataset: 'media',
  volumeBytes: 10 * 2 ** 30,
  sparse: false,
  smb: true,
  nfs: true,
  nfsHosts: ['10.0.0.0/8'],
  secret: true,
};

const commands = (of: Partial<Choice>): string[] =>
  planOf({ ...choice, ...of }).map(({ command }) => command);

it('puts like disks together', () => {
  expect(inOrder(choice.disks).map(({ path }) => path)).toEqual([
    '/dev/b',
    '/dev/d',
    '/dev/a',
    '/dev/c',
  ]);
});

it('asks the planner of small blocks on the smallest of the disks', () => {
  const asked = adviceOf(choice.disks, choice.layout);
  expect(asked.disks).toEqual([{ count: 4, size_bytes: 1, kind: 'hdd' }]);
  expect(asked.layouts).toEqual(['mirror:2x2']);
  expect(asked.load?.block_bytes).toBe(4096);
  const flash = [
    { path: '/dev/a', sizeBytes: 2, kind: 'nvme' as const },
    { path: '/dev/b', sizeBytes: 3, kind: 'ssd' as const },
  ];
  expect(adviceOf(flash, choice.layout).disks[0]).toMatchObject({ size_bytes: 2, kind: 'ssd' });
});

it('makes a pool and shares a filesystem', () => {
  expect(commands({})).toEqual([
    'zpool create -O compression=lz4 tank mirror /dev/b /dev/d mirror /dev/a /dev/c',
    'zfs create -o sharenfs=rw=@10.0.0.0/8 -o sharesmb=on tank/media',
  ]);
});

it('makes a volume with a secret of its own', () => {
  expect(commands({ what: 'volume', dataset: 'vm' }).slice(1)).toEqual([
    'millpond iscsi secret set tank-vm --generate',
    'zfs create -V 10G -o millpond:iscsi=chap=tank-vm tank/vm',
  ]);
  expect(commands({ what: 'volume', dataset: 'vm', secret: false, sparse: true }).slice(1)).toEqual(
    ['zfs create -s -V 10G -o millpond:iscsi=on tank/vm'],
  );
});

it('forces nothing unless that is asked for', () => {
  expect(commands({ what: 'nothing' })).toHaveLength(1);
  expect(commands({})[0]).not.toContain('-f');
  expect(commands({ force: true })[0]).toContain('zpool create -f ');
});
