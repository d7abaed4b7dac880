/** A mail server for tests, which takes everything. */
import { createServer, type Server } from 'node:net';
import type { AddressInfo } from 'node:net';

export interface MailServer {
  port: number;
  /** Mails as they came. */
  mails: string[];
  close: () => void;
}

export async function mailServer(): Promise<MailServer> {
  const mails: string[] = [];
  const server: Server = createServer((socket) => {
    let rest = '';
    let mail: string[] | undefined;
    const say = (text: string): void => void socket.write(`${text}\r\n`);
    socket.on('error', () => undefined);
    socket.on('data', (data) => {
      rest += data.toString();
      const lines = rest.split('\r\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (mail) {
          if (line === '.') {
            // Long lines are broken, with a sign for that (RFC 2045, section 6.7).
            mails.push(mail.join('\r\n').replaceAll('=\r\n', ''));
            mail = undefined;
            say('250 taken');
          } else {
            mail.push(line);
          }
        } else if (/^DATA/i.test(line)) {
          mail = [];
          say('354 go on');
        } else if (/^QUIT/i.test(line)) {
          say('221 bye');
          socket.end();
        } else if (/^(STARTTLS|AUTH)/i.test(line)) {
          say('502 there is none');
        } else {
          say('250 fine');
        }
      }
    });
    say('220 test');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return { port, mails, close: () => server.close() };
}
