import { expect, it } from 'vitest';

import { settingOf, shown, SETTINGS } from './properties';
import { parseSize } from './units';

it('shows values as zfs does', () => {
  expect(shown('recordsize', '131072')).toBe('128K');
  expect(shown('quota', '0')).toBe('none');
  expect(shown('quota', '1073741824')).toBe('1G');
  expect(shown('used', '0')).toBe('0B');
  expect(shown('compressratio', '1.20')).toBe('1.20x');
  expect(shown('copies', '2')).toBe('2');
  expect(shown('fragmentation', '3')).toBe('3%');
  expect(shown('a:b', '131072')).toBe('131072');
});

it('knows what can be set where', () => {
  expect(settingOf('recordsize', 'filesystem')).toBeDefined();
  expect(settingOf('recordsize', 'volume')).toBeUndefined();
  expect(settingOf('used', 'filesystem')).toBeUndefined();
  expect(settingOf('autotrim', 'pool')).toBeDefined();
});

it('offers sizes that are what is shown of them', () => {
  for (const value of SETTINGS['recordsize']?.values ?? []) {
    expect(shown('recordsize', String(parseSize(value)))).toBe(value);
  }
});
