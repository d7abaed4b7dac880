/** Messages of the planner (crate `plan`, and crate `api`, module `planning`). */

export type DiskKind = 'hdd' | 'ssd' | 'nvme';
export type Purpose = 'random' | 'stream' | 'vm' | 'backup';

/** Disks of a question; what is left out is usual for their kind. */
export interface PlanDisks {
  count: number;
  size_bytes: number;
  kind: DiskKind;
  accesses_per_second?: number;
  /** Bytes a second. */
  rate?: number;
  price?: number;
}

export interface PlanLoad {
  block_bytes: number;
  depth: number;
  /** 0 to 1. */
  read_share: number;
  streams: number;
  /** Bytes a second of each. */
  stream_rate: number;
}

export interface PlanBus {
  name: string;
  read_rate: number;
  write_rate: number;
  /** On it at most; 0: its share of all. */
  disks: number;
}

export interface PlanQuestion {
  disks: PlanDisks[];
  spares: number;
  /** Words such as `raidz2:2x6`; none: all that make sense. */
  layouts: string[];
  purposes: Purpose[];
  load: PlanLoad | null;
  buses: PlanBus[];
  network_rate: number | null;
  memory_bytes: number | null;
}

/** What limits a rate; a bus by its name, by itself or by parity and copies that go over it. */
export type Limit = 'seeks' | 'disks' | 'queue' | 'network' | { bus: string } | { parity: string };

export type RateName = 'read_iops' | 'write_iops' | 'read_rate' | 'write_rate';

export interface PlannedLayout extends Record<RateName, number> {
  layout: string;
  spares: number;
  usable_bytes: number;
  loss_per_year: number;
  limited_by: Record<RateName, Limit>;
  streams_max?: number | null;
  scrub_seconds: number;
  rebuild_seconds: number | null;
  cost: { total: number; per_terabyte: number; per_read_iops: number } | null;
  risk: { may_fail: number; survives: number[] };
}

/** Something worth saying: what it is, and of which layout. The reply has it as a sentence. */
export interface PlanNote {
  note: string;
  layout?: string;
}

export interface PlanAnswer {
  disks: PlanDisks;
  load: PlanLoad;
  layouts: PlannedLayout[];
  recommended: { purpose: Purpose; layout: string }[];
  notes: PlanNote[];
}

export interface PlanReply {
  answer: PlanAnswer;
  /** Of the notes, in their order. */
  sentences: string[];
}

export interface PlanCalls {
  '/v1/plan/ask': [{ question: PlanQuestion }, PlanReply];
}
