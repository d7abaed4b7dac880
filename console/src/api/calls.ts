/** Every request that the console makes: its path, what it takes, what comes back. */
import type { AlertCalls } from './alerts';
import type { BenchCalls } from './bench';
import type { BusCalls } from './buses';
import type { CacheCalls } from './cache';
import type { CertificateCalls } from './certificate';
import type { UpsCalls } from './ups';
import type { FileCalls } from './files';
import type { PeopleCalls } from './people';
import type { PlanCalls } from './plan';
import type { ReplicationCalls } from './replications';
import type { ReportCalls } from './reports';
import type * as api from './types';

interface Named {
  command: string;
}

/** Requests by path. */
export interface Calls
  extends
    AlertCalls,
    BenchCalls,
    BusCalls,
    CacheCalls,
    CertificateCalls,
    FileCalls,
    PeopleCalls,
    PlanCalls,
    ReplicationCalls,
    ReportCalls,
    UpsCalls {
  '/v1/session/info': [api.Empty, api.SessionInfo];
  '/v1/session/login': [{ user: string; password: string; totp?: string | null }, api.Session];
  '/v1/session/logout': [api.Empty, api.Empty];
  '/v1/session/setup': [{ token: string; user: string; password: string }, api.Session];
  '/v1/session/password': [{ password: string; new_password: string }, api.Empty];
  '/v1/users/list': [api.Empty, { users: api.User[] }];
  '/v1/users/add': [{ name: string; role: api.Role; password: string }, api.Empty];
  '/v1/users/change': [
    { name: string; role?: api.Role | null; password?: string | null; totp?: boolean | null },
    { totp_uri: string | null },
  ];
  '/v1/users/remove': [{ name: string }, api.Empty];
  '/v1/keys/list': [api.Empty, { keys: api.ApiKey[] }];
  '/v1/keys/make': [
    { name: string; role: api.Role; expires_s?: number | null },
    { id: string; key: string },
  ];
  '/v1/keys/remove': [{ id: string }, api.Empty];
  '/v1/audit/list': [{ limit?: number | null }, { entries: api.AuditEntry[] }];
  '/v1/server/info': [api.Empty, api.ServerInfo];
  '/v1/disks/list': [api.Empty, { disks: api.Disk[] }];
  '/v1/disks/overview': [api.Empty, { disks: api.DiskState[]; problem: string | null }];
  '/v1/disks/show': [
    { disk: string; fresh?: boolean },
    { disk: api.DiskState; history: api.DiskSample[]; tests: api.DiskTested[] },
  ];
  '/v1/disks/locate': [{ disk: string; on: boolean; for_s?: number | null }, api.Empty];
  '/v1/disks/test': [{ disk: string; kind: 'short' | 'long' }, api.Empty];
  '/v1/disks/lights-test': [{ seconds: number }, { bays: api.LightTested[] }];
  '/v1/zpool/status': [
    { names: string[]; verbose?: boolean },
    { pools: api.PoolStatus[]; absent: api.Failure[] },
  ];
  '/v1/zpool/list': [{ names: string[] }, { pools: api.Pool[]; absent: api.Failure[] }];
  '/v1/zpool/history': [
    { names: string[] },
    { pools: { name: string; records: api.HistoryRecord[] }[] },
  ];
  '/v1/zpool/create': [
    Named & {
      name: string;
      vdevs: api.VdevSpec[];
      properties: api.Settings;
      filesystem_properties: api.Settings;
      force: boolean;
      dry_run: boolean;
      no_features: boolean;
      altroot: string | null;
    },
    { warnings: string[] },
  ];
  '/v1/zpool/destroy': [{ name: string; force: boolean }, api.Empty];
  '/v1/zpool/export': [{ names: string[]; all: boolean; force: boolean }, api.Empty];
  '/v1/zpool/import': [
    Named & {
      search: string[];
      pool: string | null;
      all: boolean;
      new_name: string | null;
      destroyed: boolean;
      force: boolean;
      no_mount: boolean;
      altroot: string | null;
      properties: api.Settings;
    },
    {
      found: { name: string; guid: string; state: api.VdevState; is_importable: boolean }[];
      imported: { name: string; warnings: string[] }[];
    },
  ];
  '/v1/zpool/scrub': [
    { names: string[]; all: boolean; action: 'start' | 'continue' | 'errors' | 'pause' | 'stop' },
    api.Empty,
  ];
  '/v1/zpool/clear': [{ name: string; vdev: string | null }, api.Empty];
  '/v1/zpool/attach': [
    Named & {
      name: string;
      device: string;
      new_device: string;
      replace: boolean;
      ashift: number | null;
      allow_in_use: boolean;
    },
    api.Empty,
  ];
  '/v1/zpool/detach': [Named & { name: string; device: string }, api.Empty];
  '/v1/zpool/offline': [
    Named & { name: string; device: string; temporary: boolean; fault: boolean },
    api.Empty,
  ];
  '/v1/zpool/online': [
    Named & { name: string; device: string },
    { state: api.VdevState; was_usable: boolean },
  ];
  '/v1/zpool/set': [Named & { name: string; property: string; value: string }, api.Empty];
  '/v1/zfs/list': [
    {
      names: string[];
      depth: number | null;
      kinds: api.DatasetKind[];
      properties?: string[] | null;
    },
    { datasets: api.Dataset[]; failures: api.Failure[] },
  ];
  '/v1/zfs/create': [
    Named & {
      name: string;
      properties: api.Settings;
      volume_size_bytes: number | null;
      sparse: boolean;
      parents: boolean;
      no_mount: boolean;
    },
    { properties: api.Settings },
  ];
  '/v1/zfs/destroy': [
    Named & {
      target: string;
      recursive: boolean;
      dependents: boolean;
      force: boolean;
      dry_run: boolean;
    },
    { names: string[]; reclaimed_bytes: number | null; refused: string[] },
  ];
  '/v1/zfs/set': [
    Named & { names: string[]; properties: api.Settings; no_mount: boolean },
    { warnings: string[] },
  ];
  '/v1/zfs/inherit': [
    Named & { names: string[]; property: string; recursive: boolean },
    { warnings: string[] },
  ];
  '/v1/zfs/snapshot': [
    Named & { names: string[]; recursive: boolean; properties: api.Settings },
    api.Empty,
  ];
  '/v1/zfs/rollback': [
    Named & {
      snapshot: string;
      destroy_newer: boolean;
      destroy_clones: boolean;
      force: boolean;
    },
    api.Empty,
  ];
  '/v1/zfs/clone': [
    Named & {
      origin: string;
      name: string;
      properties: api.Settings;
      parents: boolean;
      no_mount: boolean;
    },
    api.Empty,
  ];
  '/v1/zfs/promote': [Named & { name: string }, api.Empty];
  '/v1/zfs/rename': [
    Named & {
      from: string;
      to: string;
      parents: boolean;
      recursive: boolean;
      no_mount: boolean;
      force: boolean;
    },
    api.Empty,
  ];
  '/v1/zfs/holds': [{ names: string[]; recursive: boolean }, { holds: api.Hold[] }];
  '/v1/zfs/hold': [Named & { names: string[]; tag: string; recursive: boolean }, api.Empty];
  '/v1/zfs/release': [Named & { names: string[]; tag: string; recursive: boolean }, api.Empty];
  '/v1/zfs/mount': [{ name: string; all: boolean; overlay: boolean; options: string[] }, api.Empty];
  '/v1/zfs/unmount': [{ name: string; all: boolean; force: boolean }, api.Empty];
  '/v1/shares/list': [api.Empty, { shares: api.Share[]; not_shared: api.NotShared[] }];
  '/v1/iscsi/secret/list': [
    api.Empty,
    { secrets: { name: string; user: string; used_by: string[] }[] },
  ];
  '/v1/iscsi/secret/set': [
    { name: string; user: string | null; secret: string | null },
    { user: string; generated: string | null; warning: string | null },
  ];
  '/v1/iscsi/secret/remove': [{ name: string; force: boolean }, api.Empty];
  '/v1/schedules/list': [api.Empty, { schedules: api.Schedule[] }];
  '/v1/schedules/set': [
    {
      name: string | null;
      task: api.ScheduleTask;
      target: string;
      recursive: boolean;
      when: api.ScheduleWhen;
      keep: api.Keep | null;
      hours?: api.ScheduleHours | null;
      share?: number | null;
    },
    { name: string; next_s: number | null },
  ];
  '/v1/schedules/run': [{ name: string }, { job: api.Job }];
  '/v1/schedules/pause': [{ name: string; is_paused: boolean }, api.Empty];
  '/v1/schedules/remove': [{ name: string }, api.Empty];
  '/v1/jobs/list': [{ pool?: string | null }, { jobs: api.Job[] }];
  '/v1/jobs/result': [{ id: number }, unknown];
  '/v1/jobs/cancel': [{ id: number }, api.Empty];
  '/v1/events/history': [{ limit?: number | null }, { events: api.HistoryEvent[] }];
  '/v1/zpool/events': [api.Empty, { events: api.ServerEvent[]; sequence: number }];
}

export type Path = keyof Calls;
export type Request<P extends Path> = Calls[P][0];
export type Reply<P extends Path> = Calls[P][1];

/** Requests that the server does as jobs, which may go on when the answer is there. */
export const JOBS: ReadonlySet<Path> = new Set([
  '/v1/bench/run',
  '/v1/files/restore',
  '/v1/zfs/destroy',
  '/v1/zpool/export',
  '/v1/zpool/import',
]);
