/** Messages about the UPS (crate `api`, module `ups`). */
import type { Empty } from './types';

export type UpsCondition =
  'unknown' | 'online' | 'replace-battery' | 'no-answer' | 'on-battery' | 'low-battery';

export interface Ups {
  name: string;
  condition: UpsCondition;
  status: string[];
  charge_percent: number | null;
  runtime_s: number | null;
  problem: string | null;
  are_pools_exported: boolean;
  not_exported: string[];
}

export interface UpsCalls {
  '/v1/ups/status': [Empty, { ups: Ups | null }];
}
