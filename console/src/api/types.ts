/**
 * The messages of the API that the console uses (crate `api`; docs/api.md). Values are exact:
 * bytes, seconds since 1970; GUIDs are strings of digits. `npm run contract` compares them with the
 * types that are made from the server's OpenAPI document.
 */

export type Settings = Record<string, string>;
export type Empty = Record<string, never>;

export type FailureKind =
  | 'invalid'
  | 'not-found'
  | 'exists'
  | 'busy'
  | 'denied'
  | 'unsupported'
  | 'no-space'
  | 'wrong-key'
  | 'io'
  | 'canceled'
  | 'unauthenticated'
  | 'code-needed'
  | 'too-many'
  | 'other';

export interface Failure {
  kind: FailureKind;
  message: string;
  refusal?: Refusal | null;
}

export type Refusal =
  | { vdevs: { why: string; can_be_forced: boolean } }
  | { label: { path: string; device_use: DeviceUse } }
  | {
      dependents: {
        target: string;
        kind: DatasetKind;
        dependence: 'children' | 'clones';
        names: string[];
      };
    }
  | Record<string, unknown>;

export type DeviceUse =
  | { use: 'active-pool'; pool: string }
  | { use: 'exported-pool'; pool: string }
  | { use: 'other'; what: string };

export type Role = 'admin' | 'operator' | 'viewer';

export interface Session {
  csrf: string;
  user: string;
  role: Role;
}

export interface SessionInfo {
  user: string | null;
  role: Role | null;
  csrf: string | null;
  setup_needed: boolean;
}

export interface User {
  name: string;
  role: Role;
  totp: boolean;
  created_s: number;
  last_login_s: number | null;
}

export interface ApiKey {
  id: string;
  name: string;
  role: Role;
  made_by: string | null;
  created_s: number;
  expires_s: number | null;
  last_used_s: number | null;
}

export interface AuditEntry {
  time_s: number;
  via: 'socket' | 'session' | 'key' | 'nobody';
  user?: string | null;
  uid?: number | null;
  address?: string | null;
  path: string;
  about?: string[];
  failure?: FailureKind | null;
}

export type Source =
  'none' | 'default' | 'local' | 'temporary' | 'received' | { inherited: string };

export interface Property {
  value: string;
  source: Source;
}

export type PropertyMap = Record<string, Property>;

export type VdevClass = 'normal' | 'log' | 'special' | 'dedup' | 'spare' | 'cache';

export type VdevState =
  | 'online'
  | 'degraded'
  | 'faulted'
  | 'offline'
  | 'unavailable'
  | 'removed'
  | 'available'
  | 'in-use'
  | 'suspended';

export type VdevAux =
  | 'open-failed'
  | 'corrupt-data'
  | 'no-replicas'
  | 'bad-guid-sum'
  | 'too-small'
  | 'bad-label'
  | 'version-newer'
  | 'unsupported-feature'
  | 'spared'
  | 'errors-exceeded'
  | 'external'
  | 'split-pool';

export interface Operations {
  count: number;
  bytes: number;
}

export interface Activity {
  state: 'active' | 'canceled' | 'suspended' | 'complete';
  time_s: number;
  done_bytes: number;
  total_bytes: number;
}

export interface Vdev {
  name: string;
  kind: string;
  guid: string;
  class: VdevClass;
  path: string | null;
  state: VdevState;
  aux: VdevAux | null;
  used_by: string | null;
  is_absent: boolean;
  is_removing: boolean;
  is_stale: boolean;
  is_deferred: boolean;
  scan_repaired_bytes: number;
  size_bytes: number;
  allocated_bytes: number;
  physical_bytes: number;
  fragmentation_percent: number | null;
  read_errors: number;
  write_errors: number;
  checksum_errors: number;
  slow_ios: number;
  initialize: Activity | null;
  trim: Activity | null;
  reads: Operations;
  writes: Operations;
  parity: number;
  children: Vdev[];
}

export interface DeviceSpec {
  path: string;
}

export type VdevLayout =
  | { device: DeviceSpec }
  | { mirror: { devices: DeviceSpec[] } }
  | { raidz: { parity: number; devices: DeviceSpec[] } };

export interface VdevSpec {
  class?: VdevClass;
  layout: VdevLayout;
}

export type PoolHealth = 'online' | 'degraded' | 'faulted' | 'suspended';

export type PoolCondition =
  | { condition: 'suspended'; why: string; failmode: 'wait' | 'continue' | 'panic' }
  | { condition: 'errata'; number: number }
  | { condition: 'compatibility-unreadable' | 'features-incompatible'; directories: string[] }
  | {
      condition:
        | 'data-errors'
        | 'faulted-devices'
        | 'missing-devices'
        | 'bad-labels'
        | 'resilvering'
        | 'rebuilt-unverified'
        | 'device-errors'
        | 'offline-devices'
        | 'removed-devices'
        | 'features-disabled'
        | 'legacy-version';
    };

export interface Scan {
  function: 'scrub' | 'resilver';
  state: 'scanning' | 'finished' | 'canceled';
  start_time_s: number;
  end_time_s: number;
  pause_time_s: number;
  elapsed_s: number;
  to_examine_bytes: number;
  examined_bytes: number;
  issued_bytes: number;
  pass_issued_bytes: number;
  repaired_bytes: number;
  errors: number;
}

export interface PoolStatus {
  name: string;
  guid: string;
  health: PoolHealth;
  condition: PoolCondition | null;
  is_healthy: boolean;
  scan: Scan | null;
  checkpoint: { created_s: number | null; space_bytes: number } | null;
  tree: Vdev;
  error_count: number;
  damaged: string[];
}

export interface Pool {
  name: string;
  guid: string;
  health: PoolHealth;
  uptime_ns: number;
  properties: PropertyMap;
  tree: Vdev;
}

export type DatasetKind = 'filesystem' | 'volume' | 'snapshot' | 'bookmark';

export interface Dataset {
  name: string;
  kind: DatasetKind;
  properties: PropertyMap;
}

export interface Hold {
  name: string;
  tag: string;
  time_s: number;
}

export interface HistoryRecord {
  time_s: number;
  command: string | null;
  internal: string | null;
  user: number | null;
  host: string | null;
}

export type Protocol = 'iscsi' | 'nfs' | 'smb';

export interface Traffic {
  reads: number;
  read_bytes: number;
  read_ns: number;
  writes: number;
  written_bytes: number;
  write_ns: number;
  others: number;
  failures: number;
}

export interface ShareClient {
  name: string | null;
  address: string;
  is_connected: boolean;
  idle_seconds: number | null;
  traffic: Traffic | null;
}

export interface ShareInfo {
  protocol: Protocol;
  dataset: string;
  name: string;
  address: string;
  other_addresses: string[];
  user?: string | null;
  secret?: string | null;
  only?: string[];
  is_open?: boolean;
}

export interface Share extends ShareInfo {
  traffic: Traffic | null;
  clients: ShareClient[];
}

export interface NotShared {
  protocol: Protocol;
  dataset: string;
  why: string;
}

export type JobState = 'running' | 'paused' | 'finished' | 'failed' | 'canceled';

export type ProgressUnit = 'bytes' | 'datasets' | 'blocks' | 'loads';

export interface Job {
  id: number;
  kind: string;
  pool: string | null;
  start_s: number;
  end_s: number | null;
  state: JobState;
  progress: { done: number; total: number; unit: ProgressUnit } | null;
  can_cancel: boolean;
  failure?: Failure | null;
  sequence: number;
}

export type ScheduleTask = 'scrub' | 'trim' | 'snapshot' | 'smart-short' | 'smart-long';

export type Weekday =
  'monday' | 'tuesday' | 'wednesday' | 'thursday' | 'friday' | 'saturday' | 'sunday';

export type ScheduleWhen =
  | { every: 'interval'; seconds: number }
  | { every: 'hour'; minute: number }
  | { every: 'day'; hour: number; minute: number }
  | { every: 'week'; day: Weekday; hour: number; minute: number }
  | { every: 'month'; day: number; hour: number; minute: number };

export interface Keep {
  hourly: number;
  daily: number;
  weekly: number;
  monthly: number;
}

export interface TimeOfDay {
  hour: number;
  minute: number;
}

export interface ScheduleHours {
  from: TimeOfDay;
  until: TimeOfDay;
}

export type ScheduleObstacle =
  | 'not-imported'
  | 'suspended'
  | 'resilvering'
  | 'scrubbing'
  | 'outside-hours'
  | 'scrub-paused'
  | 'trimming'
  | 'testing';

export interface ScheduleResult {
  begin_s: number;
  end_s: number;
  state: JobState;
  skipped: ScheduleObstacle | null;
  snapshot: string | null;
  destroyed: number;
  left: { snapshot: string; why: string }[];
  tested: number;
  untested: { disk: string; why: string }[];
  failure: Failure | null;
}

export interface Schedule {
  name: string;
  task: ScheduleTask;
  target: string;
  recursive: boolean;
  when: ScheduleWhen;
  keep: Keep | null;
  hours?: ScheduleHours | null;
  share?: number | null;
  is_paused: boolean;
  job: Job | null;
  next_s: number | null;
  waits: ScheduleObstacle | null;
  last: ScheduleResult | null;
  success_s: number | null;
  failures: number;
}

export interface ServerEvent {
  sequence: number;
  time_ns: string;
  class: string;
  pool?: string;
  guid?: string;
  names?: string[];
  job?: Job;
  missed?: number | null;
  /** Of an alert: the sentence that is said of it everywhere. */
  says?: string;
  severity?: 'info' | 'warning' | 'critical';
  eid?: string;
  pairs?: { name: string; type: string; value?: unknown }[];
}

/** Something that happened, maybe before the server started; its number goes on over restarts. */
export interface HistoryEvent {
  number: number;
  event: ServerEvent;
}

export interface ServerInfo {
  version: string;
  pools: string[];
  shares: ShareInfo[];
  not_shared: NotShared[];
}

export type DiskUse =
  | { use: 'pool'; pool: string }
  | { use: 'other-pool'; pool: string; is_exported: boolean }
  | { use: 'mounted'; at: string }
  | { use: 'swap' }
  | { use: 'holder'; by: string }
  | { use: 'content'; what: string }
  | { use: 'unreadable'; why: string };

export interface Disk {
  path: string;
  name: string;
  size_bytes: number;
  model: string | null;
  serial: string | null;
  is_rotational: boolean;
  in_use: DiskUse | null;
}

export type DiskCondition = 'unknown' | 'good' | 'warning' | 'failing' | 'missing';

export type SmartState =
  | { state: 'not-asked' }
  | { state: 'known' }
  | { state: 'standby' }
  | { state: 'unsupported'; why: string }
  | { state: 'failed'; why: string }
  | { state: 'no-answer' };

export interface SelfTest {
  kind: string;
  result: string;
  passed: boolean | null;
  at_hours: number | null;
}

/** A test that ended while the server looked. */
export interface DiskTested extends SelfTest {
  time_s: number;
}

export interface SmartReport {
  time_s: number;
  passed: boolean | null;
  temperature_c: number | null;
  temperature_limit_c: number | null;
  power_on_hours: number | null;
  wear_percent: number | null;
  reallocated_sectors: number | null;
  pending_sectors: number | null;
  uncorrectable_sectors: number | null;
  crc_errors: number | null;
  test_remaining_percent: number | null;
  tests: SelfTest[];
  model: string | null;
  serial: string | null;
}

export interface DiskMember {
  pool: string;
  guid: string;
  path: string;
  vdev: string;
  state: VdevState;
}

export interface DiskState {
  id: string;
  name: string;
  path: string;
  model: string | null;
  serial: string | null;
  size_bytes: number;
  is_rotational: boolean;
  transport: 'sata' | 'sas' | 'nvme' | 'usb' | 'virtio' | 'other';
  enclosure: string | null;
  bay: string | null;
  members: DiskMember[];
  condition: DiskCondition;
  smart_state: SmartState;
  smart: SmartReport | null;
  new_bad_sectors: number;
  lights: { by: 'enclosure' | 'npem' | 'ledctl'; fault: boolean; locate: boolean } | null;
}

export interface DiskSample {
  time_s: number;
  temperature_c?: number | null;
  bad_sectors?: number | null;
  wear_percent?: number | null;
}

export interface LightTested {
  place: string;
  disk: string | null;
  problem: string | null;
}
