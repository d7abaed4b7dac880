/** What disks hang on, as a picture. Nothing here asks the server. */
import type {
  BusDisk,
  BusLink,
  Controller,
  HostBuses,
  LinkKind,
  LinkWidth,
  PoolBuses,
} from '../api/buses';
import { buses as t } from '../texts/buses';
import { decimalRate, type BusForm } from './planner';
import { percent } from './units';

/** What people call a link: `PCIe 3.0 ×8`, `SATA 6 Gbit/s`, `SAS 12 Gbit/s ×4`. */
export function linkWords(kind: LinkKind, { generation, lanes }: LinkWidth): string {
  if (kind === 'pcie') return `PCIe ${generation}.0 ×${lanes}`;
  if (kind === 'sata') return `SATA ${[1.5, 3, 6][generation - 1] ?? '?'} Gbit/s`;
  const speed = [3, 6, 12, 22.5][generation - 1] ?? '?';
  return lanes === 1 ? `SAS ${speed} Gbit/s` : `SAS ${speed} Gbit/s ×${lanes}`;
}

/** Whether the disks behind a link do more than it carries. */
export function isFull({ rate, disks_rate }: Pick<BusLink, 'rate' | 'disks_rate'>): boolean {
  return rate !== null && disks_rate > rate;
}

/** Whether both ends of a link could do more than it does. */
export function isSlow({ width, could }: Pick<BusLink, 'width' | 'could'>): boolean {
  return could !== null && (could.lanes > width.lanes || could.generation > width.generation);
}

/** What holds up a pool, in a sentence; undefined where none of its disks is known. */
export function limitOf(pool: PoolBuses, reply: HostBuses): string | undefined {
  if (pool.disks.length === 0) return undefined;
  const rates = { through: decimalRate(pool.rate), all: decimalRate(pool.disks_rate) };
  const limit = pool.limited_by;
  switch (limit.by) {
    case 'disks':
      return t.byDisks(rates.all);
    case 'network':
      return t.byNetwork(decimalRate(reply.network_rate ?? 0), decimalRate(pool.data_rate));
    case 'link': {
      const link = reply.links.find(({ id }) => id === limit.id);
      const words = link ? `${limit.id}, ${linkWords(link.kind, link.width)}` : limit.id;
      return t.byLink(words, rates.through, rates.all);
    }
  }
}

/** A box of the picture: what stands in it, and what it hangs on. */
export interface Box {
  id: string;
  /** The box between it and memory; memory itself has none, and ports of the network hang on it. */
  parent: string | undefined;
  title: string;
  text: string;
  state: 'plain' | 'slow' | 'full';
  /** From the left. */
  column: number;
  /** Middle of it, in rows from the top. */
  row: number;
}

export interface Picture {
  boxes: Box[];
  columns: number;
  rows: number;
}

const MEMORY = 'memory';

/** A box before its place is known. */
interface Node {
  id: string;
  title: string;
  text: string;
  state: Box['state'];
  children: Node[];
}

function controllerTitle({ kind, driver }: Controller): string {
  return driver === null ? t.kinds[kind] : `${t.kinds[kind]} (${driver})`;
}

function linkText(link: BusLink): string {
  const words = linkWords(link.kind, link.width);
  if (link.rate === null) return words;
  return `${words} · ${t.load(percent(link.disks_rate, link.rate), decimalRate(link.rate))}`;
}

function stateOf(link: BusLink): Box['state'] {
  if (isFull(link)) return 'full';
  return isSlow(link) ? 'slow' : 'plain';
}

/** Disks that hang on the same and do the same are one box. */
function diskNodes(disks: readonly BusDisk[], links: ReadonlyMap<string, BusLink>): Node[] {
  const groups = new Map<string, { names: string[]; text: string; state: Box['state'] }>();
  for (const disk of disks) {
    const link = disk.link === null ? undefined : links.get(disk.link);
    // Its own port is told with it.
    const own = link?.disks.length === 1 ? link : undefined;
    const words = own ? `${linkWords(own.kind, own.width)} · ` : '';
    const text = `${words}${t.does(decimalRate(disk.rate))}`;
    const state = own ? stateOf(own) : 'plain';
    const key = `${state} ${text}`;
    const group = groups.get(key) ?? { names: [], text, state };
    group.names.push(disk.name);
    groups.set(key, group);
  }
  const title = (names: readonly string[]): string =>
    names.length > 3 ? t.disks(names.length, names[0] ?? '', names.at(-1) ?? '') : names.join(', ');
  return [...groups.values()].map(({ names, text, state }) => ({
    id: `disks ${names.join(' ')}`,
    title: title(names),
    text: names.length > 1 ? t.each(text) : text,
    state,
    children: [],
  }));
}

/** What hangs on memory. Links of one disk are left to its box. */
function nodesOf(reply: HostBuses): Node[] {
  const links = new Map(reply.links.map((link) => [link.id, link]));
  const shared = new Set(reply.links.filter(({ disks }) => disks.length > 1).map(({ id }) => id));
  const controllers = new Map(reply.controllers.map((of) => [of.address, of]));

  /** The nearest link to a disk that others have too; its controller where there is none. */
  function placeOf(disk: BusDisk): string {
    let id = disk.link;
    while (id !== null && !shared.has(id)) id = links.get(id)?.above ?? null;
    if (id !== null) return id;
    const controller = disk.controller === null ? undefined : controllers.get(disk.controller);
    return controller && controller.disks.length > 1 ? controller.address : MEMORY;
  }

  function isLinkOf(link: BusLink, { address }: Controller): boolean {
    return address.startsWith(`${link.id}.`);
  }

  const on = new Map<string, BusDisk[]>();
  for (const disk of reply.disks) {
    const place = placeOf(disk);
    on.set(place, [...(on.get(place) ?? []), disk]);
  }

  function linkNode(link: BusLink): Node {
    const controller = reply.controllers.find((of) => isLinkOf(link, of));
    const title = controller
      ? `${controllerTitle(controller)} ${link.id}`
      : t.links[link.kind](link.id);
    return {
      id: link.id,
      title,
      text: linkText(link),
      state: stateOf(link),
      children: childrenOf(link.id),
    };
  }

  function childrenOf(place: string): Node[] {
    const below = reply.links.filter(({ id, above }) => shared.has(id) && above === place);
    return [...below.map(linkNode), ...diskNodes(on.get(place) ?? [], links)];
  }

  // A controller without a link of its own: integrated, or a virtual machine's.
  const withoutLink = reply.controllers.filter(
    (of) => of.disks.length > 1 && !reply.links.some((link) => isLinkOf(link, of)),
  );
  const integrated = withoutLink.map((controller): Node => {
    const first = (link: BusLink): boolean =>
      shared.has(link.id) &&
      link.above === null &&
      link.disks.every((name) => controller.disks.includes(name));
    const below = reply.links.filter(first).map(linkNode);
    return {
      id: controller.address,
      title: `${controllerTitle(controller)} ${controller.address}`,
      text: t.integrated,
      state: 'plain',
      children: [...below, ...diskNodes(on.get(controller.address) ?? [], links)],
    };
  });
  const isBelow = (link: BusLink): boolean =>
    withoutLink.some(({ disks }) => link.disks.every((name) => disks.includes(name)));
  const first = reply.links.filter(
    (link) => shared.has(link.id) && link.above === null && !isBelow(link),
  );
  return [...first.map(linkNode), ...integrated, ...diskNodes(on.get(MEMORY) ?? [], links)];
}

/** The picture: the network at the left, memory beside it, then what disks hang on. */
export function pictureOf(reply: HostBuses): Picture {
  const boxes: Box[] = [];
  let rows = 0;
  let columns = 2;

  function place(node: Node, parent: string, column: number): number {
    columns = Math.max(columns, column + 1);
    const places = node.children.map((child) => place(child, node.id, column + 1));
    const [first, last] = [places[0], places.at(-1)];
    let row: number;
    if (first === undefined || last === undefined) {
      row = rows + 0.5;
      rows += 1;
    } else {
      row = (first + last) / 2;
    }
    const { id, title, text, state } = node;
    boxes.push({ id, parent, title, text, state, column, row });
    return row;
  }

  const rowsOfTop = nodesOf(reply).map((node) => place(node, MEMORY, 2));
  // Ports of a bond are the bond's; a bridge is no port.
  const names = new Set(reply.networks.map(({ name }) => name));
  const ports = reply.networks.filter((port) => !names.has(port.part_of ?? ''));
  const height = Math.max(rows, ports.length, 1);
  const [highest, lowest] = [rowsOfTop[0], rowsOfTop.at(-1)];
  const middle =
    highest === undefined || lowest === undefined ? height / 2 : (highest + lowest) / 2;
  boxes.push({
    id: MEMORY,
    parent: undefined,
    title: t.memory,
    text: t.memoryText,
    state: 'plain',
    column: 1,
    row: middle,
  });
  ports.forEach((port, index) => {
    boxes.push({
      id: `port ${port.name}`,
      parent: MEMORY,
      title: port.name,
      text: port.is_up ? (port.rate === null ? t.up : decimalRate(port.rate)) : t.down,
      state: 'plain',
      column: 0,
      row: (height / ports.length) * (index + 0.5),
    });
  });
  return { boxes, columns, rows: height };
}

/**
 * The buses of this host for the planner: of each controller with several disks, what the
 * narrowest link carries that all of them share.
 */
export function planBuses(reply: HostBuses): BusForm[] {
  return reply.controllers.flatMap((controller) => {
    const { disks, address } = controller;
    if (disks.length < 2) return [];
    const rates = reply.links
      .filter((link) => disks.every((name) => link.disks.includes(name)))
      .flatMap(({ rate }) => (rate === null ? [] : [rate]));
    if (rates.length === 0) return [];
    return [{ name: address, rate: String(Math.min(...rates)), disks: String(disks.length) }];
  });
}
