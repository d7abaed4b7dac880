/** What can be done about alerts, each with its command line. */
import type { AlertSettings } from '../api/alerts';
import { action, line, type Action } from './actions';

/** `HOST` or `HOST:PORT`, as a person types it; nothing where that makes no sense. */
export function parseHost(
  text: string,
): { smtp_host: string | null; smtp_port: number | null } | undefined {
  const typed = text.trim();
  if (typed === '') return { smtp_host: null, smtp_port: null };
  const found = /^(\[[\da-f:.]+\]|[^\s:[\]]+)(?::(\d{1,5}))?$/i.exec(typed);
  // An address of version 6 without brackets has no port.
  const host = found?.[1] ?? (/^[\da-f:.]+$/i.test(typed) ? typed : undefined);
  if (host === undefined) return undefined;
  const port = found?.[2] === undefined ? null : Number(found[2]);
  if (port !== null && (port < 1 || port > 65_535)) return undefined;
  return { smtp_host: host.replace(/^\[|\]$/g, ''), smtp_port: port };
}

export function hostText({
  smtp_host: host,
  smtp_port: port,
}: Pick<AlertSettings, 'smtp_host' | 'smtp_port'>): string {
  if (host === null) return '';
  if (port === null) return host;
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Addresses that commas or spaces separate. */
export function parseAddresses(text: string): string[] {
  return text.split(/[\s,;]+/).filter((address) => address !== '');
}

export function isAddress(text: string): boolean {
  return /^[^\s@]+@[^\s@]+$/.test(text);
}

export function isHook(text: string): boolean {
  return /^https?:\/\/[^\s/]+/i.test(text);
}

function same(a: readonly unknown[], b: readonly unknown[]): boolean {
  return a.length === b.length && a.every((value, index) => value === b[index]);
}

/** An option that replaces a whole list; an empty value leaves none. */
function list(flag: string, values: readonly string[]): string[] {
  return values.length === 0 ? [flag, ''] : values.flatMap((value) => [flag, value]);
}

/**
 * Keeps settings in place of others; nothing where they are the same. Secrets that are empty stay
 * as they are.
 */
export function setAlerts(
  before: AlertSettings,
  next: AlertSettings,
  secrets: { password?: string; webhookKey?: string } = {},
): Action<'/v1/alerts/settings-set'> | undefined {
  const words: string[] = [];
  if (hostText(before) !== hostText(next)) words.push('--smtp', hostText(next));
  if (before.smtp_tls !== next.smtp_tls) words.push('--tls', next.smtp_tls);
  if (before.from !== next.from) words.push('--from', next.from ?? '');
  if (!same(before.to, next.to)) words.push(...list('--mail', next.to));
  if (!same(before.webhooks, next.webhooks)) words.push(...list('--webhook', next.webhooks));
  for (const rule of before.off) if (!next.off.includes(rule)) words.push('--on', rule);
  for (const rule of next.off) if (!before.off.includes(rule)) words.push('--off', rule);
  if (!same(before.space_percent, next.space_percent)) {
    words.push('--space', next.space_percent.join(','));
  }
  if (before.disk_temperature_c !== next.disk_temperature_c) {
    words.push('--temperature', String(next.disk_temperature_c ?? 'auto'));
  }
  if (before.remind_hours !== next.remind_hours) {
    words.push('--remind', String(next.remind_hours));
  }
  const isUser = before.smtp_user !== next.smtp_user || !!secrets.password;
  if (isUser) words.push('--user', next.smtp_user ?? '');
  const set = ['millpond', 'alerts', 'set'];
  const commands = words.length === 0 ? [] : [line(...set, ...words)];
  // It is asked for by itself.
  if (secrets.webhookKey) commands.push(line(...set, '--webhook-key'));
  if (commands.length === 0) return undefined;
  // Without a user the password is of no use, as with the command.
  const password = next.smtp_user === null && isUser ? '' : secrets.password || null;
  return action('/v1/alerts/settings-set', commands.join(' && '), {
    settings: next,
    password,
    webhook_key: secrets.webhookKey || null,
  });
}

export function testAlerts(): Action<'/v1/alerts/test'> {
  return action('/v1/alerts/test', line('millpond', 'alerts', 'test'), {});
}
