/** What the console says of files in snapshots. */
import { many } from './many';

export const files = {
  browse: 'Browse files…',
  title: (snapshot: string) => `Files in ${snapshot}`,
  where: 'Directories above',
  root: 'All',
  name: 'Name',
  size: 'Size',
  changed: 'Changed',
  empty: 'This directory is empty.',
  more: 'Show more',
  count: (count: number, isAll: boolean) =>
    `${many(count, 'entry', 'entries')}${isAll ? '' : ' so far'}`,
  open: (name: string) => `Open ${name}`,
  download: 'Download',
  restore: 'Restore…',
  types: {
    file: 'File',
    directory: 'Directory',
    link: 'Link',
    fifo: 'Named pipe',
    socket: 'Socket',
    'char-device': 'Character device',
    'block-device': 'Block device',
  },
  points: (target: string) => `to ${target}`,
  unread: 'cannot be read',
  restoreTitle: (name: string) => `Restore ${name}`,
  restoreText: 'With its owner, permissions, times and attributes, as they were.',
  directoryText: 'A directory is restored with all below it.',
  how: 'Where to',
  beside: 'Beside what is there',
  besideHint: (name: string) => `As ${name}.restored- and the date. Nothing else is changed.`,
  place: 'In its place',
  placeHint: (name: string) =>
    `What is called ${name} now stays, as ${name}.replaced- and the date.`,
  restoreVerb: 'Restore',
  restored: (path: string) => `Restored as ${path}.`,
  replaced: (path: string) => `What was there is ${path} now.`,
  missing: (count: number) =>
    `${many(count, 'file')} could not be read and ${count === 1 ? 'is' : 'are'} missing:`,
  lacking: (count: number) =>
    `${many(count, 'attribute')} could not be kept (see the properties acltype and xattr):`,
  done: 'What was restored',
  terminalHint: 'The same as root on the server, while the filesystem is mounted:',
};
