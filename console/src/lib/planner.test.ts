import { describe, expect, it } from 'vitest';

import type { PlannedLayout, PlanReply } from '../api/plan';
import {
  chance,
  commandOf,
  decimal,
  freeDisks,
  limitWords,
  newDisks,
  newForm,
  operations,
  parseAmount,
  parseRate,
  plotOf,
  questionOf,
  sortBy,
  sorted,
  toldOf,
  wordOf,
  type PlanForm,
} from './planner';

function planned(layout: string, of: Partial<PlannedLayout> = {}): PlannedLayout {
  return {
    layout,
    spares: 0,
    usable_bytes: 1,
    loss_per_year: 0,
    read_iops: 1,
    write_iops: 1,
    read_rate: 1,
    write_rate: 1,
    limited_by: {
      read_iops: 'seeks',
      write_iops: 'seeks',
      read_rate: 'disks',
      write_rate: 'disks',
    },
    scrub_seconds: 1,
    rebuild_seconds: 1,
    cost: null,
    risk: { may_fail: 1, survives: [1] },
    ...of,
  };
}

function form(of: Partial<PlanForm> = {}): PlanForm {
  return { ...newForm(), ...of };
}

it('reads amounts as the planner does', () => {
  expect(parseAmount('500GB')).toBe(500e9);
  expect(parseAmount('1.5 TB')).toBe(1.5e12);
  expect(parseAmount('128K')).toBe(131_072);
  expect(parseAmount('4GiB')).toBe(2 ** 32);
  expect(parseAmount('512')).toBe(512);
  expect(parseAmount('512B')).toBe(512);
  for (const wrong of ['', 'x', '4 XB', '-1GB', '9999999EB']) {
    expect(parseAmount(wrong)).toBeUndefined();
  }
  expect(parseRate('72MB/s')).toBe(72e6);
  expect(parseRate('10Gbit')).toBe(1.25e9);
  expect(parseRate('450 kbit/s')).toBe(56_250);
  expect(parseRate('fast')).toBeUndefined();
});

describe('the question', () => {
  it('leaves out what is usual', () => {
    expect(questionOf(form())).toEqual({
      disks: [{ count: 6, size_bytes: 4e12, kind: 'hdd' }],
      spares: 0,
      layouts: [],
      purposes: ['random'],
      load: null,
      buses: [],
      network_rate: null,
      memory_bytes: null,
    });
  });

  it('has what is typed', () => {
    const asked = questionOf(
      form({
        disks: [
          { ...newDisks('16', '500GB'), seeks: '90', rate: '72MB/s', price: '55' },
          newDisks('2', '400GB', 'ssd'),
        ],
        spares: '1',
        purpose: 'stream',
        layouts: 'mirror:7x2, raidz2:2x6',
        load: {
          isOwn: true,
          block: '128K',
          depth: '8',
          reads: '50',
          streams: '20',
          streamRate: '8Mbit',
        },
        buses: [{ name: '', rate: '520MB', disks: '8' }],
        network: '1Gbit',
        memory: '64G',
      }),
    );
    expect(asked?.disks[0]).toMatchObject({
      accesses_per_second: 90,
      rate: 72e6,
      price: 55,
    });
    expect(asked?.disks[1]).toEqual({ count: 2, size_bytes: 400e9, kind: 'ssd' });
    expect(asked?.layouts).toEqual(['mirror:7x2', 'raidz2:2x6']);
    expect(asked?.load).toEqual({
      block_bytes: 131_072,
      depth: 8,
      read_share: 0.5,
      streams: 20,
      stream_rate: 1e6,
    });
    expect(asked?.buses).toEqual([
      { name: '520MB', read_rate: 520e6, write_rate: 520e6, disks: 8 },
    ]);
    expect(asked).toMatchObject({ spares: 1, network_rate: 125e6, memory_bytes: 64 * 2 ** 30 });
  });

  it('waits for what is not understood', () => {
    const { load } = newForm();
    for (const wrong of [
      { disks: [] },
      { disks: [newDisks('', '4TB')] },
      { disks: [newDisks('1.5', '4TB')] },
      { disks: [newDisks('6', 'big')] },
      { disks: [{ ...newDisks('6', '4TB'), rate: 'fast' }] },
      { spares: 'some' },
      { network: 'thick' },
      { buses: [{ name: 'slot', rate: '', disks: '' }] },
      { load: { ...load, isOwn: true, reads: '101' } },
    ] satisfies Partial<PlanForm>[]) {
      expect(questionOf(form(wrong))).toBeUndefined();
    }
    // What clients do is not looked at where it is not said.
    expect(questionOf(form({ load: { ...load, reads: '101' } }))).toBeDefined();
  });

  it('has a command line', () => {
    const disks = [{ ...newDisks('16', '500 GB'), seeks: '90', rate: '72 MB/s', price: '55' }];
    const asked = form({
      disks: [...disks, newDisks('2', '400GB', 'ssd')],
      spares: '1',
      layouts: 'raidz2:2x6',
      buses: [{ name: 'slot', rate: '540MB/s', disks: '8' }],
      network: '10 Gbit',
    });
    expect(commandOf(asked)).toBe(
      'millpond plan --disks 16x500GB:90seeks:72MB/s:price=55 --disks 2x400GB:ssd --spares 1 ' +
        '--layout raidz2:2x6 --use random --bus 540000000:8 --network 10Gbit',
    );
    expect(commandOf(form({ load: { ...newForm().load, isOwn: true } }))).toBeUndefined();
  });
});

it('takes disks that are free, alike ones together', () => {
  const disk = (name: string, size_bytes: number, is_rotational: boolean) => ({
    name,
    path: `/dev/${name}`,
    size_bytes,
    model: null,
    serial: null,
    is_rotational,
    in_use: null,
  });
  const all = [
    disk('sda', 4e12, true),
    disk('sdb', 4e12, true),
    { ...disk('sdc', 4e12, true), in_use: { use: 'swap' as const } },
    disk('nvme0n1', 1e12, false),
    disk('sdd', 1e12, false),
  ];
  expect(freeDisks(all)).toEqual([
    newDisks('2', '4000000000000'),
    newDisks('1', '1000000000000', 'nvme'),
    newDisks('1', '1000000000000', 'ssd'),
  ]);
});

it('calls layouts as the planner does', () => {
  const layout = { parity: 0, groups: 7, width: 2 };
  expect(wordOf({ ...layout, kind: 'mirror' })).toBe('mirror:7x2');
  expect(wordOf({ kind: 'raidz', parity: 1, groups: 1, width: 4 })).toBe('raidz:1x4');
  expect(wordOf({ kind: 'raidz', parity: 3, groups: 2, width: 8 })).toBe('raidz3:2x8');
  expect(wordOf({ kind: 'stripe', parity: 0, groups: 3, width: 1 })).toBe('stripe:3');
});

it('tells figures as people read them', () => {
  expect(decimal(6e12)).toBe('6.00 TB');
  expect(decimal(72.4e6)).toBe('72.4 MB');
  expect(decimal(999.7e6)).toBe('1.00 GB');
  expect(decimal(512)).toBe('512 B');
  expect(chance(0)).toBe('less than 1 in a billion');
  expect(chance(1 / 4234)).toBe('1 in 4,200');
  expect(chance(0.031)).toBe('3.1%');
  expect(operations(1234.5)).toBe('1,230');
  expect(operations(8.6)).toBe('8.6');
  expect(limitWords('seeks')).toBe('seeks');
  expect(limitWords({ bus: 'pcix100' })).toBe('bus pcix100');
  expect(limitWords({ parity: 'slot' })).toBe('parity and copies over slot');
});

describe('the table', () => {
  const layouts = [
    planned('raidz:1x10', { usable_bytes: 3, rebuild_seconds: null }),
    planned('raidz:1x9', {
      usable_bytes: 5,
      cost: { total: 1, per_terabyte: 9, per_read_iops: 2 },
    }),
    planned('mirror:2x2', { usable_bytes: 4, rebuild_seconds: 7 }),
  ];
  const names = (of: PlannedLayout[]): string[] => of.map(({ layout }) => layout);

  it('is in the order of the answer until it is sorted', () => {
    expect(names(sorted(layouts, undefined))).toEqual(names(layouts));
  });

  it('has the best first, then the other way round', () => {
    const first = sortBy('usable_bytes', undefined);
    expect(names(sorted(layouts, first))).toEqual(['raidz:1x9', 'mirror:2x2', 'raidz:1x10']);
    const second = sortBy('usable_bytes', first);
    expect(names(sorted(layouts, second))[0]).toBe('raidz:1x10');
    expect(sortBy('loss_per_year', first).descending).toBe(false);
  });

  it('has what is not known last, and numbers in names as numbers', () => {
    const rebuild = { key: 'rebuild_seconds', descending: false } as const;
    expect(names(sorted(layouts, rebuild)).at(-1)).toBe('raidz:1x10');
    expect(names(sorted(layouts, { ...rebuild, descending: true })).at(-1)).toBe('raidz:1x10');
    const cost = { key: 'per_terabyte', descending: true } as const;
    expect(names(sorted(layouts, cost))[0]).toBe('raidz:1x9');
    const layout = { key: 'layout', descending: false } as const;
    expect(names(sorted(layouts, layout))).toEqual(['mirror:2x2', 'raidz:1x9', 'raidz:1x10']);
  });
});

describe('the answer', () => {
  const reply: PlanReply = {
    answer: {
      disks: { count: 4, size_bytes: 1, kind: 'hdd' },
      load: { block_bytes: 4096, depth: 1, read_share: 1, streams: 0, stream_rate: 0 },
      layouts: [
        planned('mirror:2x2', { usable_bytes: 50, read_iops: 200 }),
        planned('raidz:1x4', { usable_bytes: 100, read_iops: 50 }),
      ],
      recommended: [{ purpose: 'random', layout: 'mirror:2x2' }],
      notes: [
        { note: 'recommended', layout: 'mirror:2x2' },
        { note: 'fixed', layout: 'mirror:2x2' },
        { note: 'spare', layout: 'mirror:2x2' },
        { note: 'assumed' },
      ],
    },
    sentences: ['take it', 'for good', 'one is left', 'by itself'],
  };

  it('is told by what it is about', () => {
    expect(toldOf(reply)).toEqual({
      recommended: ['take it'],
      fixed: ['for good'],
      assumed: ['by itself'],
      others: ['one is left'],
    });
  });

  it('is plotted from zero', () => {
    const { spots, most } = plotOf(reply, 'read_iops');
    expect(most).toEqual({ x: 100, y: 200 });
    expect(spots).toEqual([
      { layout: 'mirror:2x2', x: 0.5, y: 1, isRecommended: true },
      { layout: 'raidz:1x4', x: 1, y: 0.25, isRecommended: false },
    ]);
  });
});
