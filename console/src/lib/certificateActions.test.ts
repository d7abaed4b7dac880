import { expect, it } from 'vitest';

import {
  isName,
  isPlace,
  parseNames,
  renewCertificate,
  setCertificate,
} from './certificateActions';

it('understands names and places', () => {
  expect(parseNames(' nas.example.org,  b.example.org;192.0.2.1 ')).toEqual([
    'nas.example.org',
    'b.example.org',
    '192.0.2.1',
  ]);
  for (const name of ['nas', 'nas.example.org', 'nas.example.org.', '192.0.2.1', '2001:db8::1']) {
    expect(isName(name), name).toBe(true);
  }
  for (const name of ['*.example.org', 'a..b', '-a.org', 'a_b', 'näs.org', 'https://a']) {
    expect(isName(name), name).toBe(false);
  }
  expect(['0.0.0.0:80', '[::]:8080'].map(isPlace)).toEqual([true, true]);
  expect(['80', 'nas:80', '1.2.3.4:0', '1.2.3.4:70000', '::1:80'].map(isPlace)).toEqual(
    Array(5).fill(false),
  );
});

it('says as a command what is to be got, and from whom', () => {
  const acme = {
    names: ['nas.example.org', '192.0.2.1'],
    contact: null,
    directory: null,
    ca_file: null,
    listen: null,
  };
  expect(setCertificate(acme).command).toBe('millpond certificate acme nas.example.org 192.0.2.1');
  const other = {
    ...acme,
    contact: 'ann@example.org',
    directory: 'https://ca.example/dir',
    ca_file: '/etc/ca.pem',
    listen: '[::]:8080',
  };
  expect(setCertificate(other).command).toBe(
    'millpond certificate acme nas.example.org 192.0.2.1 --contact ann@example.org ' +
      "--directory https://ca.example/dir --ca-file /etc/ca.pem --listen '[::]:8080'",
  );
  expect(setCertificate(other).body).toEqual({ acme: other });
  expect(setCertificate(null)).toMatchObject({
    command: 'millpond certificate own',
    body: { acme: null },
  });
  expect(renewCertificate().command).toBe('millpond certificate renew');
});
