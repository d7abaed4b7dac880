/** Messages about alerts (crate `api`, module `alerts`). */
import type { Empty, ScheduleTask, VdevAux, VdevState } from './types';
import type { UpsCondition } from './ups';

export const ALERT_RULES = [
  'pool-suspended',
  'pool-health',
  'data-errors',
  'device-state',
  'device-errors',
  'space',
  'disk-health',
  'disk-sectors',
  'disk-temperature',
  'disk-wear',
  'disk-test',
  'scrub',
  'resilver',
  'schedule',
  'replication',
  'certificate',
  'ups',
  'state',
  'report',
] as const;
export type AlertRule = (typeof ALERT_RULES)[number];

export type AlertSeverity = 'info' | 'warning' | 'critical';

/** What a file of the state directory is about. */
export type StatePart =
  | 'pools'
  | 'replications'
  | 'schedules'
  | 'alerts'
  | 'iscsi-secrets'
  | 'users'
  | 'certificate'
  | 'lights'
  | 'people';

export type AlertFact =
  | { is: 'suspended'; why: string }
  | { is: 'degraded' }
  | { is: 'faulted' }
  | { is: 'not-imported'; why: string }
  | { is: 'data-errors'; count: number }
  | {
      is: 'device';
      device: string;
      state: VdevState;
      aux?: VdevAux | null;
      is_log: boolean;
      disk?: AlertDisk | null;
      survives?: number | null;
    }
  | {
      is: 'device-errors';
      device: string;
      read: number;
      write: number;
      checksum: number;
      disk?: AlertDisk | null;
    }
  | { is: 'space'; percent: number; limit_percent: number }
  | { is: 'disk-failing' }
  | { is: 'disk-sectors'; count: number; new: number }
  | { is: 'disk-temperature'; celsius: number; limit_celsius: number }
  | { is: 'disk-wear'; percent: number }
  | { is: 'disk-test'; kind: 'short' | 'long'; result: string; at_hours: number | null }
  | {
      is: 'replication-late';
      name: string;
      source: string;
      every_s: number;
      success_s: number | null;
      is_running: boolean;
      why: string | null;
    }
  | {
      is: 'ups';
      name: string;
      condition: UpsCondition;
      charge_percent: number | null;
      runtime_s: number | null;
      are_pools_exported: boolean;
    }
  | {
      is: 'certificate';
      path: string;
      by: 'server' | 'person' | 'acme';
      end_s: number;
      is_over: boolean;
      why?: string | null;
    }
  | { is: 'certificate-not-got'; names: string[]; why: string }
  | { is: 'state-file'; part: StatePart; path: string; why: string; is_read: boolean }
  | { is: 'schedule'; name: string; task: ScheduleTask; target: string; why: string }
  | {
      is: 'scan';
      examined_bytes: number;
      repaired_bytes: number;
      errors: number;
      took_s: number;
    };

/** A disk that an alert is about. */
export interface AlertDisk {
  id: string;
  path: string;
  model: string | null;
  serial: string | null;
  bay: string | null;
}

export interface Alert {
  rule: AlertRule;
  severity: AlertSeverity;
  pool: string;
  pool_guid: string;
  disk?: AlertDisk | null;
  device_guid?: string | null;
  fact: AlertFact;
  since_s: number;
  told_s: number;
  /** The sentence that mails, the command and the console say of it. */
  says: string;
}

/** A message that waits to be sent. */
export interface Delivery {
  channel: string;
  subject: string;
  since_s: number;
  tries: number;
  next_s: number;
  problem?: string | null;
}

export type MailTls = 'auto' | 'tls' | 'starttls' | 'none';

export interface AlertSettings {
  smtp_host: string | null;
  smtp_port: number | null;
  smtp_tls: MailTls;
  smtp_user: string | null;
  from: string | null;
  to: string[];
  webhooks: string[];
  off: AlertRule[];
  space_percent: [number, number];
  disk_temperature_c: number | null;
  remind_hours: number;
}

export interface AlertSettingsReply {
  settings: AlertSettings;
  has_password: boolean;
  has_webhook_key: boolean;
}

export interface AlertCalls {
  '/v1/alerts/list': [Empty, { alerts: Alert[]; waiting: Delivery[] }];
  '/v1/alerts/settings': [Empty, AlertSettingsReply];
  '/v1/alerts/settings-set': [
    { settings: AlertSettings; password?: string | null; webhook_key?: string | null },
    Empty,
  ];
  '/v1/alerts/test': [Empty, { channels: [string, string | null][] }];
}
