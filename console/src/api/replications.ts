/** Messages about replications (crate `api`, module `replications`). */
import type { Empty, Failure, Job, JobState } from './types';

export type ReplicationTarget =
  | { local: { dataset: string } }
  | { ssh: { host: string; dataset: string; command: string } }
  | { tls: { host: string; dataset: string; fingerprint: string | null } };

export interface Keep {
  hourly: number;
  daily: number;
  weekly: number;
  monthly: number;
}

/** What of a replication can be changed. */
export interface ReplicationRule {
  recursive: boolean;
  every_s: number | null;
  keep: Keep | null;
  limit_bytes: number | null;
}

export interface ReplicationSpec extends ReplicationRule {
  name: string | null;
  source: string;
  target: ReplicationTarget;
  /** The API key that a target by TLS takes. */
  key: string | null;
}

export type ReplicationNote =
  | { gone: { target: string } }
  | { 'not-pruned': { snapshot: string; is_of_target: boolean; why: string } };

export interface ReplicationResult {
  begin_s: number;
  end_s: number;
  state: JobState;
  snapshot: string | null;
  bytes: number;
  datasets: number;
  is_resumed: boolean;
  failure: Failure | null;
  failed: number;
  notes: ReplicationNote[];
}

export interface Replication {
  name: string;
  source: string;
  target: ReplicationTarget;
  recursive: boolean;
  every_s: number | null;
  keep: Keep | null;
  limit_bytes: number | null;
  is_paused: boolean;
  job: Job | null;
  next_s: number | null;
  last: ReplicationResult | null;
}

export interface ReplicationCalls {
  '/v1/replications/list': [Empty, { replications: Replication[] }];
  '/v1/replications/create': [{ spec: ReplicationSpec }, { name: string; job: Job }];
  '/v1/replications/change': [ReplicationRule & { name: string }, Empty];
  '/v1/replications/run': [{ name: string }, { name: string; job: Job }];
  '/v1/replications/pause': [{ name: string; is_paused: boolean }, Empty];
  '/v1/replications/remove': [{ name: string }, Empty];
}
