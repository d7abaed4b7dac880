import { readFileSync } from 'node:fs';

import { expect, it } from 'vitest';

interface Lock {
  packages: Record<string, { license?: string; dev?: boolean }>;
}

/** Of what is in the built console, and of the tools that build it. */
const FOR_USERS = ['MIT', 'ISC', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'OFL-1.1'];
/** Of what only developers and CI run. */
const FOR_DEVELOPERS = [
  ...FOR_USERS,
  ...['MPL-2.0', 'BlueOak-1.0.0', 'Python-2.0', '(MIT OR CC0-1.0)'],
];

it('every package has a licence that goes with ours', () => {
  const lock = JSON.parse(readFileSync('package-lock.json', 'utf8')) as Lock;
  const packages = Object.entries(lock.packages).filter(([path]) => path !== '');
  expect(packages.length).toBeGreaterThan(30);
  const bad = packages.filter(([, { license = 'none', dev }]) => {
    return !(dev ? FOR_DEVELOPERS : FOR_USERS).includes(license);
  });
  expect(bad.map(([path, { license }]) => `${path}: ${license}`)).toEqual([]);
});
