import { describe, expect, it } from 'vitest';

import {
  formatIscsi,
  formatNfs,
  formatSmb,
  isHost,
  isShared,
  parseIscsi,
  parseList,
  parseNfs,
  parseSmb,
} from './sharing';

it('knows what is shared', () => {
  for (const value of ['on', 'ro', 'rw=@10.0.0.0/8']) expect(isShared(value)).toBe(true);
  for (const value of ['off', '', '-', undefined]) expect(isShared(value)).toBe(false);
});

describe('NFS', () => {
  it.each([
    'on',
    'ro',
    'rw=@192.168.1.0/24:10.0.0.7',
    'ro=10.0.0.7,insecure',
    'no_root_squash',
    'rw=10.0.0.7,all_squash',
    'all_squash,anonuid=3000,anongid=3001',
  ])('keeps %s', (value) => {
    const options = parseNfs(value);
    expect(options.rest).toEqual([]);
    expect(formatNfs(options)).toBe(value);
  });
  it('takes addresses with colons', () => {
    expect(parseNfs('rw=[fe80::1]:[2001:db8::]/32:host').hosts).toEqual([
      '[fe80::1]',
      '[2001:db8::]/32',
      'host',
    ]);
    expect(formatNfs(parseNfs('rw=[fe80::1]:host'))).toBe('rw=[fe80::1]:host');
  });
  it('never widens a share: what it has no place for is told', () => {
    expect(parseNfs('rw=10.0.0.1,ro=10.0.0.2').rest).toEqual(['ro=10.0.0.2']);
    expect(parseNfs('rw=10.0.0.1,root=10.0.0.1').rest).toEqual(['root=10.0.0.1']);
    expect(parseNfs('anonuid=7,anonuid=x').rest).toEqual(['anonuid=x', 'anonuid=7']);
  });
});

describe('SMB', () => {
  it.each([
    'on',
    'ro,name=Photos',
    'user=ann,group=staff,encrypt',
    'guest,groupwrite',
    'timemachine',
  ])('keeps %s', (value) => {
    expect(parseSmb(value).rest).toEqual([]);
    expect(formatSmb(parseSmb(value))).toBe(value);
  });
  it('tells what it has no place for', () => {
    expect(parseSmb('on,timemachine=500G,hide').rest).toEqual(['timemachine=500G', 'hide']);
  });
});

describe('iSCSI', () => {
  it.each(['on', 'ro,chap=web', 'initiator=iqn.2003-01.org:*,chap=a'])('keeps %s', (value) =>
    expect(formatIscsi(parseIscsi(value))).toBe(value),
  );
  it('tells what it has no place for', () => {
    expect(parseIscsi('on,chap=a,mutual=b,blocksize=4096').rest).toEqual([
      'mutual=b',
      'blocksize=4096',
    ]);
  });
});

it('reads lists', () => {
  expect(parseList(' a, b\nc ')).toEqual(['a', 'b', 'c']);
  expect(parseList('  ')).toEqual([]);
  for (const host of ['*', '10.0.0.0/8', 'box.example', '[::1]', '[fe80::]/10']) {
    expect(isHost(host)).toBe(true);
  }
  for (const host of ['', 'a b', 'rw=x', 'a,b', '::1', 'x:y']) expect(isHost(host)).toBe(false);
});
