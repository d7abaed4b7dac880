/** Messages about caches (crate `api`, module `cache`). */
import type { VdevState } from './types';

export type CacheKind = 'data' | 'metadata' | 'dedup-table';

export interface CacheLookups {
  hits: number;
  misses: number;
}

export interface CacheKindReport extends CacheLookups {
  kind: CacheKind;
  size_bytes: number;
  blocks: number;
  ghost_hits: number;
}

export interface CacheDevice {
  guid: string;
  name: string;
  state: VdevState;
  is_rebuilding: boolean;
  is_filled: boolean;
  size_bytes: number;
  used_bytes: number;
  hits: number;
  read_bytes: number;
  written_bytes: number;
  read_errors: number;
  write_errors: number;
  checksum_errors: number;
  fill_bytes_per_s: number | null;
  full_in_s: number | null;
  day_written_bytes: number | null;
}

export interface SecondLevel {
  blocks: number;
  index_bytes: number;
  left_out: number;
  misses: number;
  devices: CacheDevice[];
}

export interface PoolCache {
  pool: string;
  charged_bytes: number;
  kinds: CacheKindReport[];
  minute: CacheLookups | null;
  hour: CacheLookups | null;
  day: CacheLookups | null;
  week: CacheLookups | null;
  second: SecondLevel | null;
}

export interface CacheReply {
  limit_bytes: number;
  limit_max_bytes: number;
  pools: PoolCache[];
}

export interface CacheCalls {
  '/v1/cache/get': [{ pools?: string[] }, CacheReply];
}
