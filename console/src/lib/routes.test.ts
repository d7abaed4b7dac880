import { expect, it } from 'vitest';

import { datasetLink, pageOf, poolLink } from './routes';

it('has an address for each page', () => {
  expect(pageOf('/')).toEqual({ page: 'overview' });
  expect(pageOf('/jobs')).toEqual({ page: 'jobs' });
  expect(pageOf('/schedules')).toEqual({ page: 'schedules' });
  expect(pageOf('/disks')).toEqual({ page: 'disks' });
  expect(pageOf('/plan')).toEqual({ page: 'plan' });
  expect(pageOf('/bench')).toEqual({ page: 'bench' });
  expect(pageOf('/reports')).toEqual({ page: 'reports' });
  expect(pageOf('/cache')).toEqual({ page: 'cache' });
  expect(pageOf('/certificate')).toEqual({ page: 'certificate' });
  expect(pageOf('/jobs/1')).toEqual({ page: 'missing' });
  expect(pageOf('/nowhere')).toEqual({ page: 'missing' });
  expect(pageOf('/pools')).toEqual({ page: 'pools' });
});

it('keeps names as they are, whatever ZFS allows in them', () => {
  for (const name of ['tank', 'tank/a b', 'tank/x:y-z_1.2', 'tank/50%', 'tank/a/b']) {
    const path = datasetLink(name, 'properties').slice(1);
    expect(pageOf(path)).toEqual({ page: 'dataset', name, tab: 'properties' });
  }
  expect(pageOf(poolLink('tank').slice(1))).toEqual({ page: 'pool', name: 'tank', tab: 'devices' });
  expect(pageOf(poolLink('tank', 'history').slice(1))).toMatchObject({ tab: 'history' });
  expect(pageOf('/pools/tank?nonsense')).toMatchObject({ tab: 'devices' });
});
