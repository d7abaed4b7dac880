import { expect, it } from 'vitest';

import { adviceOf, groupOf, inOrder, planOf, type Choice } from './plan';

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
  audience: {
    who: 'people',
    people: [
      { name: 'ann', uid: 3000 },
      { name: 'bob', uid: 3001 },
    ],
    group: 'tank-media',
    gid: 3002,
  },
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

it('makes a pool and a filesystem that people write to, as each other’s group and by NFS', () => {
  expect(commands({})).toEqual([
    'zpool create -O compression=lz4 tank mirror /dev/b /dev/d mirror /dev/a /dev/c',
    'groupadd --gid 3002 tank-media && gpasswd --members ann,bob tank-media',
    'zfs create -o sharenfs=rw=@10.0.0.0/8,all_squash,anonuid=3000,anongid=3002 ' +
      '-o sharesmb=group=tank-media,groupwrite tank/media',
    'chown 3000:3002 /tank/media && chmod 2770 /tank/media',
  ]);
});

it('leaves the number of the group to the server where NFS need not know it', () => {
  expect(commands({ nfs: false }).slice(1)).toEqual([
    'groupadd tank-media && gpasswd --members ann,bob tank-media',
    'zfs create -o sharesmb=group=tank-media,groupwrite tank/media',
    'chown 3000:tank-media /tank/media && chmod 2770 /tank/media',
  ]);
});

it('lets everybody write, where that is wanted', () => {
  expect(commands({ audience: { who: 'everyone' } }).slice(1)).toEqual([
    'zfs create -o sharenfs=rw=@10.0.0.0/8,all_squash -o sharesmb=guest,groupwrite tank/media',
    'chown 65534:65534 /tank/media && chmod 2777 /tank/media',
  ]);
});

it('gives to nobody what is not shared', () => {
  expect(commands({ smb: false, nfs: false }).slice(1)).toEqual(['zfs create tank/media']);
});

it('names a group as the system takes it', () => {
  expect(groupOf({ pool: 'tank', dataset: 'My media' }, [])).toBe('tank-my-media');
  expect(groupOf({ pool: 'tank', dataset: 'a' }, ['tank-a', 'tank-a-2'])).toBe('tank-a-3');
  const long = groupOf({ pool: 'tank', dataset: 'x'.repeat(100) }, []);
  expect(long).toHaveLength(32);
  expect(groupOf({ pool: 'tank', dataset: 'x'.repeat(100) }, [long])).toHaveLength(32);
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
