import { describe, expect, it } from 'vitest';

import * as actions from './actions';

describe('command lines', () => {
  it('are what a shell takes', () => {
    expect(actions.quote('tank/a')).toBe('tank/a');
    expect(actions.quote('tank/my films')).toBe("'tank/my films'");
    expect(actions.quote("it's")).toBe(String.raw`'it'\''s'`);
    expect(actions.quote('$(reboot)')).toBe("'$(reboot)'");
    expect(actions.quote('')).toBe("''");
    expect(actions.set('tank/a', 'comment:x', 'a; b').command).toBe(
      "zfs set 'comment:x=a; b' tank/a",
    );
  });

  it('do what the request does', () => {
    expect(actions.scrub('tank', 'start').command).toBe('zpool scrub tank');
    expect(actions.scrub('tank', 'pause')).toMatchObject({
      command: 'zpool scrub -p tank',
      body: { names: ['tank'], action: 'pause' },
    });
    expect(actions.replace('tank', '/dev/a', '/dev/b', true)).toMatchObject({
      command: 'zpool replace -f tank /dev/a /dev/b',
      body: { replace: true, allow_in_use: true, device: '/dev/a', new_device: '/dev/b' },
    });
    expect(actions.snapshot('tank/a', 'now', true)).toMatchObject({
      command: 'zfs snapshot -r tank/a@now',
      body: { names: ['tank/a@now'], recursive: true },
    });
    expect(actions.rollback('tank/a@now', false).command).toBe('zfs rollback tank/a@now');
    expect(actions.destroy('tank/a@now', false).body).toMatchObject({
      recursive: false,
      dependents: false,
      force: false,
    });
  });

  it('tell sizes so that they are the same ones', () => {
    const volume = (size: number): string => actions.createVolume('tank/v', size, true, {}).command;
    expect(volume(10 * 2 ** 30)).toBe('zfs create -s -V 10G tank/v');
    expect(volume(1.5 * 2 ** 30)).toBe('zfs create -s -V 1610612736 tank/v');
    expect(volume(2 ** 30 + 512)).toBe('zfs create -s -V 1073742336 tank/v');
  });

  it('are of users as well', () => {
    expect(actions.changeUser('ann', { role: 'viewer', totp: false }).command).toBe(
      'millpond user role ann viewer && millpond user totp --off ann',
    );
    expect(actions.makeKey('a b', 'operator', 30, 1000)).toMatchObject({
      command: "millpond apikey make --role operator --days 30 'a b'",
      body: { expires_s: 1000 + 30 * 86_400 },
    });
  });

  it('are kept with what is asked for', () => {
    const { body, command } = actions.createFilesystem('tank/a', { compression: 'zstd' });
    expect(command).toBe('zfs create -o compression=zstd tank/a');
    expect(body.command).toBe(command);
  });
});

it('never shows a password or a secret', () => {
  for (const action of [
    actions.setSecret('web', 'hunter2'),
    actions.addUser('ann', 'viewer', 'hunter2'),
    actions.changeUser('ann', { password: 'hunter2' }),
  ]) {
    expect(action.command).not.toContain('hunter2');
    expect(JSON.stringify(action.body)).toContain('hunter2');
  }
});
