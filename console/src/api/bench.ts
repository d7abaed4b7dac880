/** Messages of measurements (crate `bench`, and crate `api`, module `measuring`). */
import type { Empty } from './types';

export type BenchProfile = 'iometer' | 'vmware' | 'sio' | 'bonnie' | 'warm-up' | 'streams';

/** A list of loads. */
export interface BenchLoads {
  profile: BenchProfile;
  title: string;
  /** None where that depends on what comes of them. */
  loads: number | null;
  has_depths: boolean;
  seconds: number;
  size_bytes: number;
}

/** What is to be measured; what is left out is as usual. */
export interface BenchWanted {
  dataset: string;
  profile: BenchProfile;
  is_volume?: boolean;
  block_bytes?: number | null;
  compression?: string | null;
  size_bytes?: number | null;
  depths?: number[];
  seconds?: number | null;
  warm_up_seconds?: number | null;
  total_seconds?: number | null;
  stream_rate?: number | null;
}

export interface BenchTest {
  name: string;
  random_percent: number;
  reads_percent: number;
  block_bytes: number;
  depth: number;
  workers: number;
  is_cached: boolean;
  is_whole: boolean;
}

/** What a measurement would do to a pool. */
export interface BenchLook {
  size_bytes: number;
  space_bytes: number;
  available_bytes: number;
  pool_available_bytes: number;
  quota: { dataset: string; quota_bytes: number; used_bytes: number } | null;
  tests: BenchTest[];
  writing_seconds: number;
  seconds_max: number;
  problem: string | null;
}

export interface BenchPoint {
  at_seconds: number;
  iops: number;
}

/** Reads or writes of a load. */
export interface BenchWay {
  iops: number;
  rate: number;
  mean_ms: number;
  p99_ms: number | null;
}

export interface BenchMeasured extends BenchTest {
  warm_up_seconds: number;
  /** None where nobody looked. */
  is_steady: boolean | null;
  iops: number;
  iops_error: number | null;
  rate: number;
  reads: BenchWay | null;
  writes: BenchWay | null;
  planned_iops: number | null;
  before: BenchPoint[];
  points: BenchPoint[];
}

export type BenchNote =
  | { note: 'read-only'; left_out: number }
  | { note: 'not-filled' }
  | { note: 'part'; size_bytes: number; whole_bytes: number }
  | { note: 'in-memory'; size_bytes: number; memory_bytes: number }
  | { note: 'page-cache' }
  | { note: 'not-steady'; tests: string[] }
  | { note: 'unsure'; tests: string[] };

export interface BenchStreams {
  wanted: { rate: number; recordings: number; playbacks: number };
  most: number;
  is_at_limit: boolean;
  planned: number | null;
  tries: {
    count: number;
    recording_lag_seconds: number | null;
    playback_lag_seconds: number | null;
    has_gap: boolean;
  }[];
}

export interface BenchReport {
  fio: string;
  began: number;
  target: string;
  profile: BenchProfile;
  area: { size_bytes: number };
  notes: BenchNote[];
  tests: BenchMeasured[];
  streams?: BenchStreams | null;
  warm_up?: {
    wanted_seconds: number;
    parts: { at_seconds: number; iops: number; mean_ms: number }[];
  } | null;
  jobs: string[];
}

export type BenchStep =
  | { step: 'making' }
  | { step: 'filling' }
  | { step: 'load'; name: string; number: number; count: number }
  | { step: 'streams'; count: number }
  | { step: 'warming'; done_seconds: number; total_seconds: number }
  | { step: 'ending' };

export interface BenchRunning {
  job: number;
  wanted: BenchWanted;
  began_s: number;
  until_s: number;
  step: BenchStep;
  report: BenchReport | null;
}

export interface BenchKept {
  id: number;
  began_s: number;
  dataset: string;
  profile: BenchProfile;
  is_volume: boolean;
  size_bytes: number;
  iops_max: number | null;
  rate_max: number | null;
  streams: number | null;
}

/** A load in two reports. */
export interface BenchCompared {
  name: string;
  depth: number;
  workers: number;
  is_whole: boolean;
  before: number;
  after: number;
  ratio: number;
  /** None where that is not known. */
  is_sure: boolean | null;
  before_ms: number;
  after_ms: number;
}

export interface BenchComparison {
  before: string;
  after: string;
  tests: BenchCompared[];
  alone: string[];
  /** The most streams of both. */
  streams: readonly number[] | null;
}

export interface BenchCalls {
  '/v1/bench/profiles': [
    Empty,
    { profiles: BenchLoads[]; fio: string | null; problem: string | null },
  ];
  '/v1/bench/look': [{ wanted: BenchWanted }, BenchLook];
  '/v1/bench/run': [{ wanted: BenchWanted }, { id: number; warnings: string[] }];
  '/v1/bench/progress': [Empty, { running: BenchRunning | null }];
  '/v1/bench/list': [Empty, { reports: BenchKept[]; most: number }];
  '/v1/bench/get': [{ id: number }, { wanted: BenchWanted; report: BenchReport }];
  '/v1/bench/remove': [{ id: number }, Empty];
  '/v1/bench/compare': [{ before: number; after: number }, BenchComparison];
}
