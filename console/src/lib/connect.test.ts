import { expect, it } from 'vitest';

import type { Protocol, Share } from '../api/types';
import { addressOf, connectLines } from './connect';

function share(protocol: Protocol, name: string, address: string): Share {
  return {
    protocol,
    name,
    address,
    dataset: 'tank/a',
    other_addresses: [],
    traffic: null,
    clients: [],
  };
}

it('takes addresses apart', () => {
  expect(addressOf('10.0.0.1:2049')).toEqual({ host: '10.0.0.1', port: '2049' });
  expect(addressOf('[::1]:445')).toEqual({ host: '[::1]', port: '445' });
});

it('names the host that is found where the server listens on all addresses', () => {
  const lines = connectLines(share('nfs', '/tank/a', '0.0.0.0:2049'), 'box').map(
    ({ line }) => line,
  );
  expect(lines).toEqual(['mount -t nfs -o vers=4.2 box:/tank/a /mnt']);
});

it('names another port where there is one, and nothing that cannot work', () => {
  const smb = connectLines(share('smb', 'photos', '127.0.0.1:1445'), 'box').map(({ line }) => line);
  expect(smb).toEqual([
    'smb://127.0.0.1:1445/photos',
    'mount -t cifs -o username=USER,port=1445 //127.0.0.1/photos /mnt',
  ]);
  const open = { ...share('smb', 'photos', '10.0.0.1:445'), is_open: true };
  expect(connectLines(open, 'box').at(-1)?.line).toContain('-o guest //10.0.0.1/photos');
  const ann = connectLines(share('smb', 'photos', '10.0.0.1:445'), 'box', 'ann').at(-1);
  expect(ann?.line).toContain('-o username=ann //10.0.0.1/photos');
  expect(connectLines(share('smb', 'photos', '0.0.0.0:445'), 'box')[0]?.line).toBe(
    String.raw`\\box\photos`,
  );
  expect(connectLines(share('nfs', '/a', '10.0.0.1:12049'), 'x')[0]?.line).toContain('port=12049');
});
