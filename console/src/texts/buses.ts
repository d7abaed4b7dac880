/** What is said of what disks hang on; a part of `en.ts`. */
import type { ControllerKind, LinkKind } from '../api/buses';
import { many } from './many';

export const buses = {
  title: 'What disks hang on',
  text: 'From the network over memory to the disks: links as they run, and how much of each the disks behind it fill. Rates of disks are what is usual for their kind, not measured.',
  picture: (links: number, disks: number) =>
    `Picture of ${many(links, 'link')} between memory and ${many(disks, 'disk')}. The table below has the same.`,
  none: 'Of no disk it is known what it hangs on.',
  kinds: {
    sata: 'SATA',
    sas: 'SAS',
    raid: 'RAID',
    nvme: 'NVMe',
    virtio: 'virtio',
    usb: 'USB',
    other: 'Controller',
  } satisfies Record<ControllerKind, string>,
  links: {
    pcie: (id: string) => `Switch ${id}`,
    sata: (id: string) => `Port ${id}`,
    sas: (id: string) => `Expander at ${id}`,
  } satisfies Record<LinkKind, (id: string) => string>,
  load: (percent: string, rate: string) => `${percent} of ${rate}`,
  does: (rate: string) => rate,
  each: (text: string) => `${text} each`,
  disks: (count: number, first: string, last: string) => `${count} disks, ${first} to ${last}`,
  integrated: 'No link that is known',
  memory: 'Memory',
  memoryText: 'and processors',
  up: 'up',
  down: 'down',
  full: 'full',
  slow: 'slower than it could be',
  slowLink: (id: string, runs: string, could: string) =>
    `${id} runs as ${runs}, and both its ends could do ${could}. Some links are slower while nothing uses them; else look at how the card sits in its slot.`,
  pools: 'What holds up each pool',
  pool: 'Pool',
  limit: 'Bottleneck',
  byDisks: (rate: string) => `The disks themselves: ${rate} together.`,
  byNetwork: (network: string, data: string) =>
    `The network: it carries ${network} of the ${data} of data that the pool can read.`,
  byLink: (link: string, through: string, all: string) =>
    `${link}: ${through} of the disks’ ${all} get through.`,
  unknown: (count: number) =>
    `Of ${many(count, 'device')} it is not known what ${count === 1 ? 'it hangs' : 'they hang'} on.`,
  unknownAll: 'It is not known what its devices hang on.',
  table: 'Links as a table',
  link: 'Link',
  runs: 'Runs as',
  could: 'Could',
  carries: 'Carries',
  behind: 'Disks behind it',
  load100: 'Filled',
};
