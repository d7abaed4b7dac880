/** What can be done about the console's certificate, each with its command line. */
import type { AcmeSettings } from '../api/certificate';
import { action, line, type Action } from './actions';

/** Names that commas or spaces separate. */
export function parseNames(text: string): string[] {
  return text.split(/[\s,;]+/).filter((name) => name !== '');
}

/** Whether a certificate can be got for a name; what else is wrong with it, the server says. */
export function isName(text: string): boolean {
  if (/^[\da-f:]*:[\da-f:.]*$/i.test(text)) return true;
  return /^[a-z\d](?:[a-z\d-]*[a-z\d])?(?:\.[a-z\d](?:[a-z\d-]*[a-z\d])?)*\.?$/i.test(text);
}

export function isPlace(text: string): boolean {
  const found = /^(?:\[[\da-f:.]+\]|\d+(?:\.\d+){3}):(\d{1,5})$/i.exec(text);
  const port = Number(found?.[1] ?? 0);
  return port >= 1 && port <= 65_535;
}

/** Has a certificate be got, or none. */
export function setCertificate(acme: AcmeSettings | null): Action<'/v1/certificate/settings-set'> {
  const words: string[] = [];
  if (acme === null) {
    words.push('own');
  } else {
    words.push('acme', ...acme.names);
    if (acme.contact !== null) words.push('--contact', acme.contact);
    if (acme.directory !== null) words.push('--directory', acme.directory);
    if (acme.ca_file !== null) words.push('--ca-file', acme.ca_file);
    if (acme.listen !== null) words.push('--listen', acme.listen);
  }
  return action('/v1/certificate/settings-set', line('millpond', 'certificate', ...words), {
    acme,
  });
}

export function renewCertificate(): Action<'/v1/certificate/renew'> {
  return action('/v1/certificate/renew', line('millpond', 'certificate', 'renew'), {});
}
