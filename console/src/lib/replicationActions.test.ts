import { expect, it } from 'vitest';

import type { Replication } from '../api/replications';
import {
  changeReplication,
  createReplication,
  everyText,
  isFingerprint,
  KEEP,
  keepText,
  parseEvery,
  parseTarget,
  targetText,
} from './replicationActions';

it('understands intervals and says them as short as is exact', () => {
  for (const text of ['15m', '1h', '36h', '1d', '90s', '14d']) {
    expect(everyText(parseEvery(text) ?? 0)).toBe(text);
  }
  expect(parseEvery('2w')).toBe(14 * 86_400);
  for (const text of ['', '0h', '1', 'h', '1.5h', '1y', '-1h']) {
    expect(parseEvery(text), text).toBeUndefined();
  }
});

it('understands targets as the command does', () => {
  expect(parseTarget('backup/a:b')).toEqual({ local: { dataset: 'backup/a:b' } });
  for (const text of ['root@nas:backup/home', 'me@[fe80::1]:tank', 'me@10.0.0.1:tank/x']) {
    const target = parseTarget(text);
    expect(target && 'ssh' in target && targetText(target)).toBe(text);
  }
  for (const text of ['https://nas/b/h', 'https://nas.lan:443/b', 'https://[fe80::1]:8443/b']) {
    const target = parseTarget(text);
    expect(target && 'tls' in target && targetText(target)).toBe(text);
  }
  for (const text of ['https://nas', 'https://nas/', 'https://me@nas/b', 'https://nas/b@s']) {
    expect(parseTarget(text), text).toBeUndefined();
  }
  for (const text of ['', 'tank/a@s', '@nas:a', 'root@nas:', 'root@:a', 'a b', 'me@h:a@s']) {
    expect(parseTarget(text), text).toBeUndefined();
  }
});

it('says what is made as a command', () => {
  const target = { ssh: { host: 'root@nas', dataset: 'b/h', command: '/opt/zfs' } };
  const made = createReplication({
    name: 'home',
    source: 'tank/home',
    target,
    recursive: true,
    every_s: 3600,
    keep: null,
    limit_bytes: 50 * 2 ** 20,
    key: null,
  });
  expect(made.command).toBe(
    'millpond replicate -r --every 1h --keep all --limit 50M --name home --remote-command /opt/zfs tank/home root@nas:b/h',
  );
});

it('tells the certificate of a target by TLS, and never the key', () => {
  const fingerprint = '0a'.repeat(32);
  expect(isFingerprint(`SHA256:${fingerprint.toUpperCase()}`)).toBe(true);
  expect(isFingerprint(fingerprint.slice(1))).toBe(false);
  const target = parseTarget('https://nas/b/h', 'zfs', fingerprint);
  const made = createReplication({
    name: null,
    source: 'tank/home',
    target: target ?? { local: { dataset: '' } },
    recursive: false,
    every_s: null,
    keep: KEEP,
    limit_bytes: null,
    key: 'mpk_secret',
  });
  expect(made.command).toBe(
    `millpond replicate --fingerprint ${fingerprint} tank/home https://nas/b/h`,
  );
});

it('changes only what is different', () => {
  const one: Replication = {
    name: 'home',
    source: 'tank/home',
    target: { local: { dataset: 'backup/home' } },
    recursive: false,
    every_s: null,
    keep: KEEP,
    limit_bytes: null,
    is_paused: false,
    job: null,
    next_s: null,
    last: null,
  };
  const { recursive, every_s, keep, limit_bytes } = one;
  const rule = { recursive, every_s, keep, limit_bytes };
  expect(changeReplication(one, rule)).toBeUndefined();
  const changed = changeReplication(one, { ...rule, every_s: 900, keep: { ...KEEP, hourly: 0 } });
  expect(changed?.command).toBe(
    `millpond replicate --change home --every 15m --keep ${keepText({ ...KEEP, hourly: 0 })}`,
  );
});
