import { expect, it } from 'vitest';

import {
  addGroup,
  addPerson,
  isPersonName,
  octal,
  removePerson,
  rightOf,
  setAccess,
  setPassword,
  withRight,
} from './peopleActions';

it('knows names', () => {
  for (const name of ['ann', '_a', 'j-doe_2', 'a'.repeat(32)]) {
    expect(isPersonName(name), name).toBe(true);
  }
  for (const name of ['', 'root', 'Ann', '1', '-a', 'a b', 'a:b', 'ä', 'a'.repeat(33)]) {
    expect(isPersonName(name), name).toBe(false);
  }
});

it('makes people and groups, and never shows a password', () => {
  const added = addPerson('ann', 'hush hush');
  expect(added.command).toBe(
    'useradd --no-create-home --shell /usr/sbin/nologin ann && millpond user add ann',
  );
  expect(addPerson('ann', '').command).not.toContain('millpond');
  expect(addPerson('ann', '').body.password).toBeNull();
  const ann = { name: 'ann', uid: 3000, has_password: true, is_of_host: false };
  expect(setPassword(ann, 'x').command).toBe('millpond user passwd ann');
  expect(setPassword({ ...ann, has_password: false }, 'x').command).toBe('millpond user add ann');
  expect(removePerson(ann).command).toBe('millpond user remove ann && userdel ann');
  expect(removePerson({ ...ann, is_of_host: true }).command).toBe('millpond user remove ann');
  expect(addGroup('photos', 3001, ['ann', 'bob']).command).toBe(
    'groupadd --gid 3001 photos && gpasswd --members ann,bob photos',
  );
  const chosen = addGroup('photos', null, []);
  expect(chosen.command).toBe('groupadd photos');
  expect(chosen.body.gid).toBeNull();
});

it('gives directories away', () => {
  const root = setAccess('tank/a', '', '/tank/a', 'ann', '3001', 0o2770);
  expect(root.command).toBe('chown ann:3001 /tank/a && chmod 2770 /tank/a');
  expect(root.body).toMatchObject({ path: '', mode: 0o2770 });
  const sub = setAccess('tank/a', 'my pictures', '/', '0', '0', 0o755);
  expect(sub.command).toBe("chown 0:0 '/my pictures' && chmod 0755 '/my pictures'");
  const command = (owner: string | null, group: string | null): string =>
    setAccess('tank/a', '', '/tank/a', owner, group, 0o755).command;
  expect(command('ann', null)).toBe('chown ann /tank/a && chmod 0755 /tank/a');
  expect(command(null, 'photos')).toBe('chown :photos /tank/a && chmod 0755 /tank/a');
  expect(command(null, null)).toBe('chmod 0755 /tank/a');
});

it('says a mode in words, and changes what was chosen alone', () => {
  expect([0, 5, 7, 4, 6].map(rightOf)).toEqual(['nothing', 'look', 'change', 'other', 'other']);
  expect(octal(withRight(0o2755, 3, 'change'))).toBe('2775');
  expect(octal(withRight(0o2775, 0, 'nothing'))).toBe('2770');
  expect(octal(withRight(0o1764, 3, 'other'))).toBe('1764');
});
