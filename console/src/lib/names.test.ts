import { expect, it } from 'vitest';

import { isComponent, isDataset, poolNameFault, snapshotNameOf } from './names';

it('takes the names that ZFS takes', () => {
  for (const name of ['a', 'my films', 'x:y', '2026-11-25', '_a.b-c']) {
    expect(isComponent(name)).toBe(true);
  }
  for (const name of ['', '.', '..', 'a/b', 'a@b', 'a#b', 'ä', ' a', 'a ', 'a\nb', 'a%']) {
    expect(isComponent(name)).toBe(false);
  }
  expect(isDataset('tank/a')).toBe(true);
  for (const name of ['tank', 'tank/', '/tank/a', `tank/${'a'.repeat(260)}`]) {
    expect(isDataset(name)).toBe(false);
  }
});

it('takes the names of pools that ZFS takes', () => {
  for (const name of ['tank', 'Tank2', 'a:b', 'c0']) expect(poolNameFault(name)).toBeUndefined();
  for (const name of ['', '1a', 'a b', 'a/b', '-a']) expect(poolNameFault(name)).toBe('wrong');
  for (const name of ['mirror', 'raidz2', 'log', 'sparepool']) {
    expect(poolNameFault(name)).toBe('reserved');
  }
});

it('names snapshots by the time', () => {
  expect(snapshotNameOf(new Date(2026, 0, 5, 7, 3))).toBe('2026-01-05-0703');
});
