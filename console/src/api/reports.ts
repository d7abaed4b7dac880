/** Messages about reports (crate `api`, module `reports`). */
import type { Empty, Protocol } from './types';

export type ReportSubject =
  | { of: 'pool'; pool: string }
  | { of: 'cache'; pool: string }
  | { of: 'device'; pool: string; guid: string }
  | { of: 'mount'; dataset: string }
  | { of: 'portal'; address: string }
  | { of: 'share'; protocol: Protocol; dataset: string; share: string }
  | { of: 'client'; protocol: Protocol; dataset: string; share: string; client: string };

export type ReportFigure =
  | 'read-bytes'
  | 'written-bytes'
  | 'reads'
  | 'writes'
  | 'read-time-p50'
  | 'read-time-p90'
  | 'read-time-p99'
  | 'write-time-p50'
  | 'write-time-p90'
  | 'write-time-p99'
  | 'read-time'
  | 'write-time'
  | 'cache-hits'
  | 'cache-misses'
  | 'cache-bytes'
  | 'cache-hit-rate'
  | 'cache-answer-rate'
  | 'cache-data-hits'
  | 'cache-data-misses'
  | 'cache-metadata-hits'
  | 'cache-metadata-misses'
  | 'cache-dedup-table-hits'
  | 'cache-dedup-table-misses'
  | 'cache-ghost-hits'
  | 'cache-device-hits'
  | 'cache-device-misses'
  | 'cache-device-bytes'
  | 'cache-index-bytes'
  | 'log-bytes'
  | 'queue';

export type ReportSpan = 'hour' | 'day' | 'week' | 'month' | 'year';

export interface ReportedSubject {
  subject: ReportSubject;
  label: string | null;
  seen_s: number;
}

export interface ReportValues {
  figure: ReportFigure;
  values: (number | null)[];
  highest: number[];
  value: number | null;
  most: number | null;
  total: number | null;
}

export interface Report {
  subject: ReportSubject;
  label: string | null;
  times_s: number[];
  figures: ReportValues[];
}

export interface ReportReply {
  now_s: number;
  step_s: number;
  points: number;
  reports: Report[];
}

export interface ReportCalls {
  '/v1/reports/list': [
    Empty,
    {
      subjects: ReportedSubject[];
      stored_bytes: number;
      limit_bytes: number;
      left_out: number;
    },
  ];
  '/v1/reports/get': [
    { subjects: ReportSubject[]; span?: ReportSpan; figures?: ReportFigure[] },
    ReportReply,
  ];
}
