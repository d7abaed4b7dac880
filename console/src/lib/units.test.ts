import { describe, expect, it } from 'vitest';

import { ago, bytes, duration, parseSize, percent, size } from './units';

const G = 2 ** 30;

describe('bytes', () => {
  it.each([
    [0, '0B'],
    [512, '512B'],
    [1024, '1K'],
    [131_072, '128K'],
    [1536, '1.50K'],
    [30_008, '29.3K'],
    [2_013_265_920, '1.87G'],
    [1.75 * G, '1.75G'],
    [1023.99 * G, '1023G'],
    [2 ** 60 * 3, '3E'],
    [-2048, '-2K'],
  ])('%d is %s, as zfs list has it', (value, text) => expect(bytes(value)).toBe(text));

  it('has units on screens', () => {
    expect(size(1536)).toBe('1.50 KiB');
    expect(size(7)).toBe('7 B');
  });
});

describe('parseSize', () => {
  it.each([
    ['10G', 10 * G],
    ['1.5 TiB', 1.5 * 1024 * G],
    ['512', 512],
    [' 100 mb ', 100 * 2 ** 20],
    ['7b', 7],
  ])('%s', (text, value) => expect(parseSize(text)).toBe(value));
  it.each(['', 'G', '-1G', '1..5G', '10X', '9000000P', '1 G B'])('refuses %j', (text) =>
    expect(parseSize(text)).toBeUndefined(),
  );
  it('reads what bytes writes', () => {
    for (const value of [1, 1023, 1024, 10 * G, 2 ** 50]) {
      expect(parseSize(bytes(value))).toBe(value);
    }
  });
});

it('never says that all is used where a little is left', () => {
  expect(percent(999, 1000)).toBe('99%');
  expect(percent(1000, 1000)).toBe('100%');
  expect(percent(1, 1000)).toBe('<1%');
  expect(percent(0, 0)).toBe('0%');
});

it('tells durations', () => {
  expect(duration(0)).toBe('0 s');
  expect(duration(65)).toBe('1 min 5 s');
  expect(duration(3 * 3600 + 20)).toBe('3 h');
  expect(duration(90_000)).toBe('1 day 1 h');
  expect(duration(3 * 86_400)).toBe('3 days');
  expect(ago(100, 105)).toBe('just now');
  expect(ago(100, 400)).toBe('5 min ago');
});
