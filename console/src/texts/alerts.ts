/** What the console says of alerts. */
import type { Alert, AlertRule, AlertSeverity, MailTls } from '../api/alerts';
import { ups } from './ups';

export const alerts = {
  title: 'Alerts',
  text: 'What somebody should know who does not look, and how they are told.',
  standing: 'Active alerts',
  nothing: 'Nothing is wrong.',
  since: (when: string) => `since ${when}`,
  toPool: (pool: string) => `Open ${pool}`,
  severities: {
    info: 'Good to know',
    warning: 'Warning',
    critical: 'Critical',
  } satisfies Record<AlertSeverity, string>,

  toDisks: 'Open disks',
  toSchedules: 'Open schedules',
  toReplications: 'Open replication',

  /** What to do about it. */
  todo({ pool, fact }: Pick<Alert, 'pool' | 'fact'>): string {
    switch (fact.is) {
      case 'disk-failing':
        return 'Replace it soon: it may be gone any time. The page of disks lights its bay.';
      case 'disk-sectors':
        return 'Have another disk ready. Test it on the page of disks and scrub its pool; replace it if they go on to become more.';
      case 'disk-temperature':
        return 'Look at the fans and the air.';
      case 'disk-wear':
        return 'Have another disk ready: it may soon take no more writes.';
      case 'disk-test':
        return 'Have another disk ready, and scrub its pool. A long test that finds nothing ends this.';
      case 'replication-late':
        return 'It is tried again by itself. Until it has worked, what was written since is here alone.';
      case 'ups':
        return ups.todo(fact.condition);
      case 'certificate':
        if (fact.by === 'person') {
          return `Put another one into ${fact.path}: it is taken up by itself.`;
        }
        return fact.by === 'server'
          ? 'The server makes another one by itself, and could not: its log says why.'
          : `The server gets another one by itself, and could not yet${fact.why ? `: ${fact.why}` : ''}. The page “Certificate” says more.`;
      case 'certificate-not-got':
        return 'It is tried again by itself, and the one that there is stays until then. The page “Certificate” says more.';
      case 'schedule':
        return 'It is tried again by itself. The page of schedules says more, and runs it now.';
      case 'suspended':
        return `Nothing is written, and who writes waits. Bring its devices back, then choose “Clear errors” on the page of ${pool}.`;
      case 'degraded':
      case 'faulted':
        return `Look at the devices of ${pool}: replace those that do not work.`;
      case 'not-imported':
        return 'Bring its devices back, then choose “Import pools”.';
      case 'state-file':
        if (fact.is_read && fact.part === 'people') {
          return `Where a user or a group of the host is named, see to that, and start the server again. Else see to the space and the permissions of ${fact.path}: a start does without what happened since.`;
        }
        return fact.is_read
          ? `See to the space and the permissions of ${fact.path}: a start does without what happened since.`
          : `${fact.path} is left as it is. Restore it from a backup, or take it away; then start the server again.`;
      case 'data-errors':
        return `The page of ${pool} names the files. Restore them from a snapshot or a backup, then scrub the pool.`;
      case 'device':
        return `Look at its cables and power. If it comes back, it is given what it missed; else replace it on the page of ${pool}.`;
      case 'device-errors':
        return `What could be repaired was. Scrub ${pool} and look whether they become more; replace the device if they do. “Clear errors” sets them to zero.`;
      case 'space':
        return 'Destroy snapshots or files that are not needed, or add devices. A pool that is full is slow, and then takes nothing more.';
      case 'scan':
        return fact.errors === 0
          ? 'Nothing.'
          : `The page of ${pool} names the files. Restore them from a snapshot or a backup.`;
    }
  },
  all: (count: number) => (count === 1 ? 'Open alerts' : `All ${count} alerts`),

  waiting: 'Waiting to be sent',
  waitingNone: 'No message waits.',
  message: 'Message',
  channel: 'By',
  mail: 'mail',
  waits: 'Waits',
  tries: 'Tries',
  next: 'Next try',
  problem: 'Why',
  notTried: 'not tried yet',

  settings: 'Who is told, and of what',
  onlyAdmins: 'Admins say who is told.',
  host: 'Mail server (SMTP)',
  hostHint: 'Such as mail.example.org, or with a port: mail.example.org:587',
  hostWrong: 'A host, perhaps with a colon and a port behind it.',
  addresses: 'Mail addresses',
  addressesHint: 'Separated by commas.',
  addressWrong: 'Something like ann@example.org.',
  more: 'More: sender, log in, encryption, web hooks, rules',
  from: 'Sender',
  fromHint: 'Empty: millpond@ and the name of the host.',
  user: 'User name at the mail server',
  userHint: 'Empty: it does not ask who sends.',
  password: 'Password at the mail server',
  passwordKept: 'There is one. Empty: it stays.',
  passwordNone: 'There is none yet.',
  tls: 'Encryption',
  tlsWords: {
    auto: 'Where the server can, and always with a password',
    tls: 'TLS from the beginning (port 465)',
    starttls: 'STARTTLS, always',
    none: 'None',
  } satisfies Record<MailTls, string>,
  hooks: 'Web hooks',
  hooksHint: 'An address on each line, https://…; each message is posted there as JSON.',
  hookWrong: 'Each line begins with https:// or http://.',
  key: 'Key that messages to web hooks are signed with',
  keyKept: 'There is one. Empty: it stays.',
  keyNone: 'There is none: messages are not signed.',
  rules: 'Tell of',
  ruleWords: {
    'pool-suspended': 'A pool that stopped',
    'pool-health': 'A pool without its redundancy, or that could not be imported',
    'data-errors': 'Lost data',
    'device-state': 'A device that is faulted, removed or cannot be opened',
    'device-errors': 'Errors of a device',
    space: 'A pool that gets full',
    'disk-health': 'A disk that says that it is failing',
    'disk-sectors': 'Bad sectors of a disk that become more',
    'disk-temperature': 'A disk that is too warm',
    'disk-wear': 'A disk that is nearly worn out',
    'disk-test': 'A disk that failed its test of itself',
    scrub: 'A scrub that is done',
    resilver: 'A resilver that is done',
    schedule: 'A schedule that fails',
    replication: 'A replication that is late',
    certificate: 'A certificate near its end, or that cannot be got',
    ups: 'A UPS that runs on its battery, or has a fault',
    state: 'A file of the server that is not understood, or cannot be written',
    report: 'How all is, every Monday',
  } satisfies Record<AlertRule, string>,
  low: 'Warn when a pool is full to, in percent',
  high: 'Warn loudly at, in percent',
  percentWrong: 'Two numbers from 1 to 100, the first one smaller.',
  warm: 'A disk is too warm from, in °C',
  warmHint: 'Empty: by its own limit, or else 60, and 70 where nothing turns.',
  remind: 'Tell again what still stands, after hours',
  remindHint: '0: never.',
  save: 'Save',
  saved: 'The settings of alerts are kept.',
  unchanged: 'Nothing is changed yet.',
  test: 'Send a test',
  testHint: 'By the settings that are kept.',
  testing: 'Sending…',
  testNobody: 'Nobody is told yet: give a mail server and an address, or a web hook.',
  arrived: 'taken',
  failed: 'failed',

  setup: {
    step: 'Alerts',
    title: 'Tell me when something fails',
    text: 'A disk that fails costs nothing if somebody hears of it in time. You can skip this, and come back to it on the page “Alerts”.',
    already: (who: string) => `Alerts go to ${who} already.`,
    try: 'Save and send a test mail',
    unsaved: 'This is not kept yet. Save it, or empty both fields to go on without.',
    kept: 'This is kept. Look whether the test mail has come.',
  },
};
