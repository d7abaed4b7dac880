/** The lines with which a client connects to a share. */
import type { Share } from '../api/types';
import { t } from '../texts/en';

/** An address and a port, also of `[::1]:445`. */
export function addressOf(address: string): { host: string; port: string } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: address.slice(at + 1) };
}

/** Where a client finds the server: what it listens on, or where the console is found. */
function reached(host: string, here: string): string {
  return host === '0.0.0.0' || host === '[::]' ? here : host;
}

/** By what, and what to type there; `here` is the host that the browser has found. */
export function connectLines(
  share: Share,
  here: string,
  user = 'USER',
): { how: string; line: string }[] {
  const { host: listens, port } = addressOf(share.address);
  const host = reached(listens, here);
  switch (share.protocol) {
    case 'nfs': {
      const options = port === '2049' ? 'vers=4.2' : `vers=4.2,port=${port}`;
      return [
        { how: t.shares.linux, line: `mount -t nfs -o ${options} ${host}:${share.name} /mnt` },
      ];
    }
    case 'smb': {
      const isUsual = port === '445';
      const at = isUsual ? host : `${host}:${port}`;
      const linux = isUsual ? '' : `,port=${port}`;
      const who = share.is_open ? 'guest' : `username=${user}`;
      const out = [
        { how: t.shares.mac, line: `smb://${at}/${share.name}` },
        {
          how: t.shares.linux,
          line: `mount -t cifs -o ${who}${linux} //${host}/${share.name} /mnt`,
        },
      ];
      // Windows knows no other port.
      return isUsual
        ? [{ how: t.shares.windows, line: `\\\\${host}\\${share.name}` }, ...out]
        : out;
    }
    case 'iscsi':
      return [
        {
          how: t.shares.initiator,
          line: `iscsiadm -m discovery -t st -p ${host}:${port}`,
        },
        { how: t.shares.initiator, line: `iscsiadm -m node -T ${share.name} --login` },
      ];
  }
}
