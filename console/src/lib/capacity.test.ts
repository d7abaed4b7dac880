import { describe, expect, it } from 'vitest';

import {
  dataShare,
  deviceBytes,
  estimate,
  layoutId,
  layoutsFor,
  metaslabBytes,
  raidzSectors,
  slopBytes,
  vdevsOf,
  vdevWords,
  type Layout,
} from './capacity';

const M = 2 ** 20;
const G = 2 ** 30;
const T = 2 ** 40;

const mirror = (groups: number, width: number): Layout => ({
  kind: 'mirror',
  parity: 0,
  groups,
  width,
});
const raidz = (parity: number, width: number, groups = 1): Layout => ({
  kind: 'raidz',
  parity,
  groups,
  width,
});

describe('space', () => {
  // `asize` and `size` that OpenZFS gives a mirror of two files of 2 GiB.
  it('is what labels leave, in whole metaslabs', () => {
    expect(deviceBytes(2 * G)).toBe(2_142_765_056);
    const asize = deviceBytes(2 * G);
    expect(asize - (asize % metaslabBytes(asize))).toBe(2_013_265_920);
    expect(metaslabBytes(50 * G)).toBe(512 * M);
    expect(metaslabBytes(T)).toBe(8 * G);
    expect(metaslabBytes(8 * T)).toBe(16 * G);
    expect(deviceBytes(100)).toBe(0);
    // The same of three files of 2 GiB in a raidz1, and what `zfs list` has for the mirror.
    const three = 3 * asize;
    expect(three - (three % metaslabBytes(three))).toBe(5_905_580_032);
    expect(estimate(mirror(1, 2), [2 * G, 2 * G]).usableBytes).toBe(1.75 * G);
  });

  // `vdev_raidz_psize_to_asize`: 32 sectors of 4 KiB.
  it.each([
    [3, 1, 48],
    [4, 1, 44],
    [5, 1, 40],
    [4, 2, 66],
    [6, 2, 48],
    [8, 2, 45],
    [8, 3, 56],
  ])('of RAID-Z: %d disks, parity %d', (width, parity, sectors) =>
    expect(raidzSectors(32, width, parity)).toBe(sectors),
  );

  it('is less where blocks do not go evenly into rows', () => {
    expect(dataShare(raidz(2, 6), 12)).toBeCloseTo(2 / 3);
    expect(dataShare(raidz(1, 4), 12)).toBeCloseTo(32 / 44);
    expect(dataShare(raidz(1, 4), 9)).toBeGreaterThan(dataShare(raidz(1, 4), 12));
  });

  it('keeps some for the pool itself', () => {
    expect(slopBytes(T)).toBe(T / 32);
    expect(slopBytes(G)).toBe(128 * M);
    expect(slopBytes(100 * M)).toBe(50 * M);
    expect(slopBytes(100 * T)).toBe(128 * G);
  });

  it('goes by the smallest disk of a vdev', () => {
    const even = estimate(mirror(1, 2), [T, T]);
    const odd = estimate(mirror(1, 2), [T, 2 * T]);
    expect(odd.usableBytes).toBe(even.usableBytes);
    expect(odd.unusedBytes).toBe(T);
    expect(odd.rawBytes).toBe(3 * T);
    // Which disks are together counts.
    expect(estimate(mirror(2, 2), [T, T, 2 * T, 2 * T]).unusedBytes).toBe(0);
    expect(estimate(mirror(2, 2), [T, 2 * T, T, 2 * T]).unusedBytes).toBe(2 * T);
  });

  it('is never more than the disks hold without redundancy', () => {
    for (let disks = 1; disks <= 24; disks += 1) {
      for (const layout of layoutsFor(disks)) {
        const told = estimate(layout, Array<number>(disks).fill(4 * T));
        const fair = ((disks - layout.groups * told.survives) / disks) * told.rawBytes;
        expect(told.usableBytes).toBeGreaterThan(0);
        expect(told.usableBytes).toBeLessThan(fair);
      }
    }
  });
});

describe('layouts', () => {
  it('use every disk, and each is there once', () => {
    for (let disks = 1; disks <= 60; disks += 1) {
      const layouts = layoutsFor(disks);
      for (const { groups, width } of layouts) expect(groups * width).toBe(disks);
      const ids = layouts.map(layoutId);
      expect(new Set(ids).size).toBe(ids.length);
    }
  });

  it('begin with one that survives a failure, where there is one', () => {
    expect(layoutsFor(0)).toEqual([]);
    expect(layoutsFor(1).map(layoutId)).toEqual(['stripe-1x1']);
    for (let disks = 2; disks <= 60; disks += 1) {
      const [first] = layoutsFor(disks);
      expect(first && estimate(first, Array<number>(disks).fill(T)).survives).toBeGreaterThan(0);
    }
    expect(layoutsFor(6).map(layoutId)).toEqual([
      'raidz2-1x6',
      'mirror-3x2',
      'mirror-2x3',
      'raidz1-1x6',
      'stripe-6x1',
    ]);
  });

  it('survive as many failures as they say', () => {
    const disks = Array<number>(6).fill(T);
    expect(estimate(mirror(3, 2), disks)).toMatchObject({ survives: 1, survivesAtBest: 3 });
    expect(estimate(raidz(2, 6), disks)).toMatchObject({ survives: 2, survivesAtBest: 2 });
    expect(estimate(raidz(2, 6), disks)).toMatchObject({ streamDisks: 4, smallDisks: 1 });
  });

  it('are asked for as the server and the command line want them', () => {
    const vdevs = vdevsOf(mirror(2, 2), ['/a', '/b', '/c', '/d']);
    expect(vdevs).toEqual([
      { layout: { mirror: { devices: [{ path: '/a' }, { path: '/b' }] } } },
      { layout: { mirror: { devices: [{ path: '/c' }, { path: '/d' }] } } },
    ]);
    expect(vdevWords(vdevs).join(' ')).toBe('mirror /a /b mirror /c /d');
    expect(vdevWords(vdevsOf(raidz(2, 4), ['/a', '/b', '/c', '/d']))[0]).toBe('raidz2');
    const alone: Layout = { kind: 'stripe', parity: 0, groups: 2, width: 1 };
    expect(vdevWords(vdevsOf(alone, ['/a', '/b']))).toEqual(['/a', '/b']);
  });
});
