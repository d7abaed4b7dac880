import { describe, expect, it } from 'vitest';

import type { BusDisk, BusLink, Controller, HostBuses } from '../api/buses';
import { isFull, isSlow, limitOf, linkWords, pictureOf, planBuses } from './buses';

function disk(name: string, link: string | null, controller: string | null): BusDisk {
  return { name, rate: 180e6, controller, link, pools: [] };
}

function link(id: string, disks: string[], of: Partial<BusLink> = {}): BusLink {
  return {
    id,
    kind: 'pcie',
    width: { generation: 2, lanes: 4 },
    could: null,
    rate: 1.6e9,
    above: null,
    disks,
    disks_rate: disks.length * 180e6,
    ...of,
  };
}

function controller(address: string, disks: string[], of: Partial<Controller> = {}): Controller {
  return { address, kind: 'sas', model: null, driver: 'mpt3sas', slot: null, disks, ...of };
}

const EMPTY: HostBuses = {
  controllers: [],
  links: [],
  disks: [],
  networks: [],
  network_rate: null,
  pools: [],
};

/** Twelve disks behind an expander, of which one has a port at half the speed. */
function expander(): HostBuses {
  const names = Array.from({ length: 12 }, (_, index) => `sd${String.fromCharCode(97 + index)}`);
  const slot = '0000:03:00';
  const ports = names.map((name, index) =>
    link(`port-6:0:${index}`, [name], {
      kind: 'sas',
      width: { generation: index === 11 ? 1 : 2, lanes: 1 },
      rate: index === 11 ? 270e6 : 540e6,
      above: 'port-6:0',
    }),
  );
  return {
    ...EMPTY,
    controllers: [controller(`${slot}.0`, names)],
    links: [
      link(slot, names, { could: { generation: 3, lanes: 4 } }),
      link('port-6:0', names, {
        kind: 'sas',
        width: { generation: 3, lanes: 4 },
        rate: 4.32e9,
        above: slot,
      }),
      ...ports,
    ],
    disks: names.map((name, index) => disk(name, `port-6:0:${index}`, `${slot}.0`)),
    networks: [
      { name: 'bond0', is_up: true, rate: 125e6, part_of: 'br0', link: null },
      { name: 'eth0', is_up: true, rate: 125e6, part_of: 'bond0', link: null },
      { name: 'eth1', is_up: false, rate: null, part_of: null, link: null },
    ],
    network_rate: 125e6,
  };
}

it('calls links as people do', () => {
  expect(linkWords('pcie', { generation: 3, lanes: 8 })).toBe('PCIe 3.0 ×8');
  expect(linkWords('sata', { generation: 2, lanes: 1 })).toBe('SATA 3 Gbit/s');
  expect(linkWords('sas', { generation: 3, lanes: 4 })).toBe('SAS 12 Gbit/s ×4');
  expect(linkWords('sas', { generation: 2, lanes: 1 })).toBe('SAS 6 Gbit/s');
});

it('knows full links, and those that could be faster', () => {
  expect(isFull({ rate: 100, disks_rate: 101 })).toBe(true);
  expect(isFull({ rate: 100, disks_rate: 100 })).toBe(false);
  expect(isFull({ rate: null, disks_rate: 100 })).toBe(false);
  const width = { generation: 2, lanes: 8 };
  expect(isSlow({ width, could: null })).toBe(false);
  expect(isSlow({ width, could: { generation: 3, lanes: 4 } })).toBe(true);
  expect(isSlow({ width, could: { generation: 2, lanes: 8 } })).toBe(false);
});

describe('the picture', () => {
  it('follows the way to the disks', () => {
    const { boxes, columns, rows } = pictureOf(expander());
    const by = new Map(boxes.map((box) => [box.id, box]));
    // 12 times 180 MB/s through 1.6 GB/s.
    expect(by.get('0000:03:00')).toMatchObject({
      parent: 'memory',
      title: 'SAS (mpt3sas) 0000:03:00',
      text: 'PCIe 2.0 ×4 · 135% of 1.60 GB/s',
      state: 'full',
      column: 2,
    });
    expect(by.get('port-6:0')).toMatchObject({ parent: '0000:03:00', state: 'plain', column: 3 });
    const disks = boxes.filter(({ parent }) => parent === 'port-6:0');
    expect(disks.map(({ title }) => title)).toEqual(['11 disks, sda to sdk', 'sdl']);
    expect(disks[0]?.text).toBe('SAS 6 Gbit/s · 180 MB/s each');
    expect(columns).toBe(5);
    expect(rows).toBe(2);
    // Ports of a bond are the bond's.
    const ports = boxes.filter(({ column }) => column === 0);
    expect(ports.map(({ title, text }) => `${title} ${text}`)).toEqual([
      'bond0 125 MB/s',
      'eth1 down',
    ]);
    for (const box of boxes) {
      expect(box.row).toBeGreaterThan(0);
      expect(box.row).toBeLessThan(rows);
      expect(box.parent === undefined || by.has(box.parent)).toBe(true);
    }
  });

  it('has controllers without a link, and disks that stand alone', () => {
    const { boxes } = pictureOf({
      ...EMPTY,
      controllers: [
        controller('0000:00:17.0', ['sda', 'sdb'], { kind: 'sata', driver: 'ahci' }),
        controller('0000:05:00.0', ['nvme0n1'], { kind: 'nvme', driver: 'nvme' }),
      ],
      links: [
        link('ata1', ['sda'], { kind: 'sata', width: { generation: 3, lanes: 1 }, rate: 540e6 }),
        link('0000:05:00', ['nvme0n1'], { width: { generation: 3, lanes: 4 }, rate: 3e9 }),
      ],
      disks: [
        disk('nvme0n1', '0000:05:00', '0000:05:00.0'),
        disk('sda', 'ata1', '0000:00:17.0'),
        disk('sdb', null, '0000:00:17.0'),
        disk('vda', null, null),
      ],
    });
    const told = boxes.map(({ parent, title }) => `${parent ?? 'top'}: ${title}`);
    expect(told).toContain('memory: SATA (ahci) 0000:00:17.0');
    expect(told).toContain('0000:00:17.0: sda');
    expect(told).toContain('0000:00:17.0: sdb');
    expect(told).toContain('memory: nvme0n1');
    expect(told).toContain('memory: vda');
    expect(told).toHaveLength(6);
  });

  it('is only memory where nothing is known', () => {
    expect(pictureOf(EMPTY)).toMatchObject({ columns: 2, rows: 1 });
    expect(pictureOf(EMPTY).boxes).toHaveLength(1);
  });
});

it('says what holds up a pool', () => {
  const reply = expander();
  const pool = {
    pool: 'tank',
    disks: ['sda'],
    unknown_devices: 0,
    disks_rate: 2.16e9,
    rate: 1.6e9,
    data_rate: 1.28e9,
  };
  expect(limitOf({ ...pool, limited_by: { by: 'link', id: '0000:03:00' } }, reply)).toBe(
    '0000:03:00, PCIe 2.0 ×4: 1.60 GB/s of the disks’ 2.16 GB/s get through.',
  );
  expect(limitOf({ ...pool, limited_by: { by: 'network' } }, reply)).toContain('125 MB/s');
  expect(limitOf({ ...pool, limited_by: { by: 'disks' } }, reply)).toContain('2.16 GB/s');
  expect(limitOf({ ...pool, disks: [], limited_by: { by: 'disks' } }, reply)).toBeUndefined();
});

it('gives the planner the narrowest link of each controller', () => {
  expect(planBuses(expander())).toEqual([
    { name: '0000:03:00.0', rate: '1600000000', disks: '12' },
  ]);
  expect(planBuses(EMPTY)).toEqual([]);
});
