import { expect, it } from 'vitest';

import type { Dataset, Vdev } from '../api/types';
import { depthOf, filterTree, layoutWords, parentOf, poolOf, shortName, vdevGroups } from './trees';

function vdev(name: string, over: Partial<Vdev> = {}): Vdev {
  return { name, kind: 'disk', class: 'normal', parity: 0, children: [], ...over } as Vdev;
}

const members = [vdev('/dev/a'), vdev('/dev/b')];
const root = vdev('tank', {
  kind: 'root',
  children: [
    vdev('mirror-0', { kind: 'mirror', children: members }),
    vdev('hole', { kind: 'hole', class: 'normal' }),
    vdev('/dev/log', { class: 'log' }),
    vdev('mirror-1', { kind: 'mirror', children: members }),
    vdev('raidz2-2', { kind: 'raidz', parity: 2, children: [...members, ...members] }),
  ],
});

it('lists devices by what they are for, each below what it is a member of', () => {
  const groups = vdevGroups(root);
  expect(groups.map((group) => group.class)).toEqual(['normal', 'log']);
  const rows = groups[0]?.rows ?? [];
  expect(rows.map(({ vdev, depth }) => [vdev.name, depth])).toEqual([
    ['mirror-0', 0],
    ['/dev/a', 1],
    ['/dev/b', 1],
    ['mirror-1', 0],
    ['/dev/a', 1],
    ['/dev/b', 1],
    ['raidz2-2', 0],
    ['/dev/a', 1],
    ['/dev/b', 1],
    ['/dev/a', 1],
    ['/dev/b', 1],
  ]);
  expect(rows[1]?.parent.name).toBe('mirror-0');
  expect(layoutWords(root)).toBe('2 × Mirror (2), RAID-Z2 (4)');
  expect(shortName(vdev('/dev/disk/by-id/x'))).toBe('x');
});

it('keeps a tree when it is filtered', () => {
  const names = ['tank', 'tank/home', 'tank/home/ann', 'tank/media', 'vault'];
  const datasets = names.map((name) => ({ name }) as Dataset);
  const found = filterTree(datasets, 'ANN').map(({ name }) => name);
  expect(found).toEqual(['tank', 'tank/home', 'tank/home/ann']);
  expect(filterTree(datasets, ' ')).toHaveLength(5);
  expect(filterTree(datasets, 'nothing')).toEqual([]);
});

it('takes names apart', () => {
  expect(parentOf('tank/a/b')).toBe('tank/a');
  expect(parentOf('tank')).toBeUndefined();
  expect(depthOf('tank/a/b')).toBe(2);
  expect(poolOf('tank@x')).toBe('tank');
});
