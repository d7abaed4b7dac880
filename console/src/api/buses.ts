/** Messages about what lies between disks and clients (crate `api`, module `buses`). */

export type ControllerKind = 'sata' | 'sas' | 'raid' | 'nvme' | 'virtio' | 'usb' | 'other';
export type LinkKind = 'pcie' | 'sata' | 'sas';

export interface Controller {
  address: string;
  kind: ControllerKind;
  model: string | null;
  driver: string | null;
  slot: string | null;
  disks: string[];
}

export interface LinkWidth {
  generation: number;
  lanes: number;
}

export interface BusLink {
  id: string;
  kind: LinkKind;
  width: LinkWidth;
  /** As both ends could run. */
  could: LinkWidth | null;
  /** Bytes a second in each direction. */
  rate: number | null;
  above: string | null;
  disks: string[];
  disks_rate: number;
}

export interface BusDisk {
  name: string;
  rate: number;
  controller: string | null;
  link: string | null;
  pools: string[];
}

export interface NetworkPort {
  name: string;
  is_up: boolean;
  rate: number | null;
  part_of: string | null;
  link: string | null;
}

export type PoolLimit = { by: 'disks' } | { by: 'link'; id: string } | { by: 'network' };

export interface PoolBuses {
  pool: string;
  disks: string[];
  unknown_devices: number;
  disks_rate: number;
  rate: number;
  data_rate: number;
  limited_by: PoolLimit;
}

export interface HostBuses {
  controllers: Controller[];
  links: BusLink[];
  disks: BusDisk[];
  networks: NetworkPort[];
  network_rate: number | null;
  pools: PoolBuses[];
}

export interface BusCalls {
  '/v1/host/buses': [Record<string, never>, HostBuses];
}
