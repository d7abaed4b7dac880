import { expect, it } from 'vitest';

import type { AlertSettings } from '../api/alerts';
import { hostText, isAddress, isHook, parseAddresses, parseHost, setAlerts } from './alertActions';

const none: AlertSettings = {
  smtp_host: null,
  smtp_port: null,
  smtp_tls: 'auto',
  smtp_user: null,
  from: null,
  to: [],
  webhooks: [],
  off: ['scrub'],
  space_percent: [80, 90],
  disk_temperature_c: null,
  remind_hours: 24,
};

it('understands hosts with and without a port', () => {
  for (const text of ['mail.example.org', 'mail:587', '10.0.0.1:25', '[fe80::1]:25', 'fe80::1']) {
    const parsed = parseHost(` ${text} `);
    expect(parsed && hostText(parsed)).toBe(text);
  }
  expect(parseHost('')).toEqual({ smtp_host: null, smtp_port: null });
  for (const text of ['a b', 'mail:', 'mail:x', 'mail:0', 'mail:70000', '[x', 'x:y:z']) {
    expect(parseHost(text), text).toBeUndefined();
  }
});

it('understands lists', () => {
  expect(parseAddresses(' a@b.org, c@d.org;e@f ')).toEqual(['a@b.org', 'c@d.org', 'e@f']);
  expect(parseAddresses('  ')).toEqual([]);
  expect(['a@b', 'a', '@b', 'a@', 'a b@c'].map(isAddress)).toEqual([
    true,
    false,
    false,
    false,
    false,
  ]);
  expect(['https://x/y', 'HTTP://x', 'ftp://x', 'x', 'https://'].map(isHook)).toEqual([
    true,
    true,
    false,
    false,
    false,
  ]);
});

it('says as a command what is different', () => {
  expect(setAlerts(none, { ...none, to: [], off: ['scrub'] })).toBeUndefined();
  const next: AlertSettings = {
    ...none,
    smtp_host: 'mail',
    smtp_port: 587,
    to: ['a@b', 'c@d'],
    off: ['space'],
    space_percent: [70, 95],
  };
  const made = setAlerts(none, next);
  expect(made?.command).toBe(
    'millpond alerts set --smtp mail:587 --mail a@b --mail c@d --on scrub --off space --space 70,95',
  );
  expect(made?.body).toEqual({ settings: next, password: null, webhook_key: null });
  expect(setAlerts(next, { ...next, to: [] })?.command).toBe("millpond alerts set --mail ''");
});

it('keeps secrets out of commands, and takes them away with the user', () => {
  const user = { ...none, smtp_user: 'ann' };
  const made = setAlerts(none, user, { password: 'hush', webhookKey: 'key' });
  expect(made?.command).toBe('millpond alerts set --user ann && millpond alerts set --webhook-key');
  expect(made?.body).toMatchObject({ password: 'hush', webhook_key: 'key' });
  expect(setAlerts(user, user, { password: 'new' })?.command).toBe(
    'millpond alerts set --user ann',
  );
  expect(setAlerts(user, none)?.body.password).toBe('');
  expect(setAlerts(user, { ...user, remind_hours: 1 })?.body.password).toBeNull();
});
