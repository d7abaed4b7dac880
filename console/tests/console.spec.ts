/**
 * Goal: the console works for a person, in a browser, against a real server. Method: the system's
 * Chromium and a server that the test `browser` of crate `cli` starts, with empty disks. What one
 * test makes, the next ones use.
 *
 * The environment has: MILLPOND_URL; MILLPOND_TOKEN, which makes the first user; MILLPOND_DISKS,
 * paths of empty disks of DISK_SIZE, separated by commas; MILLPOND_SYSFS, a tree as the kernel's in
 * which each has a slot; MILLPOND_NFS_PORT; MILLPOND_POOL, the name of the pool to make. With MILLPOND_PICTURES, pictures for the documents are put there.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { AxeBuilder } from '@axe-core/playwright';
import { expect, test, type Browser, type Page } from '@playwright/test';

import { mailServer } from './smtp';

const PASSWORD = 'correct horse battery';
const VIEWER_PASSWORD = 'only looks around';
const DISK_SIZE = '512M';
const DISK_BYTES = 512 * 2 ** 20;

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set: see the head of this file`);
  return value;
}

const disks = given('MILLPOND_DISKS').split(',');
const pool = given('MILLPOND_POOL');

const PAGES = [
  '#/',
  '#/pools',
  `#/pools/${pool}`,
  `#/pools/${pool}?properties`,
  '#/datasets',
  `#/datasets/${pool}/media`,
  `#/datasets/${pool}/media?sharing`,
  `#/datasets/${pool}/media?properties`,
  '#/shares',
  '#/schedules',
  '#/alerts',
  '#/disks',
  '#/plan',
  '#/bench',
  '#/reports',
  '#/cache',
  '#/jobs',
  '#/events',
  '#/account',
];
const ADMIN_PAGES = [
  `#/pools/${pool}?history`,
  '#/setup',
  '#/replication',
  '#/users',
  '#/audit',
  '#/certificate',
];

/** Everything on the page is there: nothing is loading any more. */
async function settled(page: Page): Promise<void> {
  await expect(page.locator('h1')).toBeVisible();
  await expect(page.getByText('Loading…')).toHaveCount(0);
}

async function go(page: Page, path: string): Promise<void> {
  await page.goto(`/${path}`);
  await settled(page);
}

async function signIn(page: Page, user: string, password: string): Promise<void> {
  await page.goto('/');
  await page.getByLabel('User name').fill(user);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Overview');
}

/** What the browser complained about. */
const complaints: string[] = [];

function listen(page: Page): void {
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    const isOurs = !message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && isOurs) complaints.push(message.text());
  });
}

/** Chooses one of the disks that the server has, or else a file. */
async function choose(page: Page, path: string): Promise<void> {
  const name = path.split('/').at(-1) ?? path;
  if (path.startsWith('/dev/')) {
    await page.getByRole('checkbox', { name: new RegExp(`^${name} .*Free$`) }).check();
    return;
  }
  await page.getByLabel('Path').fill(path);
  await page.getByLabel('Its size').fill(DISK_SIZE);
  await page.getByRole('button', { name: 'Add', exact: true }).click();
  await expect(page.getByRole('button', { name: `Remove ${path}` })).toBeVisible();
}

test.describe.configure({ mode: 'serial' });

let page: Page;

test.beforeAll(async ({ browser }: { browser: Browser }) => {
  // axe wants a context that is made by itself.
  const context = await browser.newContext();
  page = await context.newPage();
  listen(page);
});

test.afterAll(async () => {
  await page.context().close();
});

test('the link of the server makes the first user', async () => {
  await page.goto(`/#setup=${given('MILLPOND_TOKEN')}`);
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Welcome to Millpond');
  // The token does not stay in the address, nor in the history.
  expect(page.url()).not.toContain('setup');
  await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await page.getByLabel('Password again').fill('another one');
  await page.getByRole('button', { name: 'Make user' }).click();
  await expect(page.getByText('The two passwords differ.')).toBeVisible();
  await page.getByLabel('Password again').fill(PASSWORD);
  await page.getByRole('button', { name: 'Make user' }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Overview');
});

test('a wrong password is refused, the right one is not', async () => {
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('User name').fill('admin');
  await page.getByLabel('Password').fill('a wrong password');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await expect(page.getByRole('alert')).toBeVisible();
  await signIn(page, 'admin', PASSWORD);
});

test('the wizard leads from empty disks to a shared filesystem with data on it', async () => {
  await go(page, '#/setup');
  const next = page.getByRole('button', { name: 'Next' });
  await expect(next).toBeDisabled();
  await page.getByText('Add by path').click();
  await choose(page, '/a/mistake');
  await page.getByRole('button', { name: 'Remove /a/mistake' }).click();
  for (const disk of disks.slice(0, 4)) await choose(page, disk);
  await expect(page.getByText('4 disks chosen, 2 GiB in all')).toBeVisible();
  await next.click();

  await expect(page.getByRole('heading', { level: 2 })).toHaveText(/laid out/);
  const raidz2 = page.getByRole('radio', { name: /RAID-Z2/ });
  await raidz2.check();
  const told = page.locator('label').filter({ has: raidz2 });
  await expect(told).toContainText('Any 2 disks may fail.');
  const usable = /([\d.]+) (MiB|GiB) usable/.exec((await told.innerText()).replace(/\s+/g, ' '));
  await next.click();

  await page.getByLabel('Pool name').fill('mirror');
  await expect(page.getByText('meaning of its own')).toBeVisible();
  await page.getByLabel('Pool name').fill(pool);
  await next.click();

  await page.getByRole('radio', { name: /A shared filesystem/ }).check();
  await page.getByLabel('Name', { exact: true }).fill('media');
  // Samba need not be here.
  await expect(page.getByText(/Who may use it|SMB cannot be offered here/)).toBeVisible();
  const smb = page.getByLabel('SMB');
  if (await smb.isVisible()) await smb.uncheck();
  await page.getByLabel('NFS', { exact: true }).check();
  await page.getByLabel(/Hosts and networks/).fill('127.0.0.1');
  await expect(next).toBeDisabled();
  await page.getByRole('radio', { name: /Everyone on the network/ }).check();
  await next.click();

  // Who hears of failures: it can be skipped, and a test arrives.
  await expect(page.getByRole('heading', { level: 2 })).toHaveText('Tell me when something fails');
  const mail = await mailServer();
  const send = page.getByRole('button', { name: 'Save and send a test mail' });
  await expect(send).toBeDisabled();
  await page.getByLabel('Mail server (SMTP)').fill(`127.0.0.1:${mail.port}`);
  await expect(next).toBeDisabled();
  await page.getByLabel('Mail addresses').fill('ann@example.org');
  await send.click();
  await expect(page.getByText('taken', { exact: true })).toBeVisible();
  await expect.poll(() => mail.mails.length).toBe(1);
  expect(mail.mails[0]).toContain('To: ann@example.org');
  mail.close();
  await next.click();

  const command = `zfs create -o sharenfs=rw=127.0.0.1,all_squash ${pool}/media`;
  await expect(page.getByText(command)).toBeVisible();
  await page.getByRole('button', { name: 'Set it up' }).click();
  await expect(page.getByRole('heading', { name: 'It is ready' })).toBeVisible();
  await expect(page.getByText(/mount -t nfs/)).toBeVisible();

  // What it has told is what the server has, within a tenth.
  await page.getByRole('link', { name: 'Open the dataset' }).click();
  await settled(page);
  const facts = page.locator('dl').first();
  const available = /Available\s*([\d.]+) (MiB|GiB)/.exec(await facts.innerText());
  const bytes = (found: RegExpExecArray | null): number =>
    Number(found?.[1]) * (found?.[2] === 'GiB' ? 2 ** 30 : 2 ** 20);
  expect(bytes(usable)).toBeGreaterThan(DISK_BYTES / 2);
  expect(bytes(usable) / bytes(available)).toBeGreaterThan(0.9);
  expect(bytes(usable) / bytes(available)).toBeLessThan(1.1);

  // Data that a program writes comes out of the share.
  const where = (await page.locator('code').first().innerText()).trim();
  const data = 'still water\n'.repeat(100_000);
  writeFileSync(join(where, 'data'), data);
  const port = given('MILLPOND_NFS_PORT');
  const url = `nfs://127.0.0.1${where}/data?nfsport=${port}&mountport=${port}`;
  const got = execFileSync('nfs-cat', [url], { maxBuffer: 16 << 20 });
  expect(got.toString()).toBe(data);
  await go(page, '#/shares');
  await expect(page.getByRole('link', { name: `${pool}/media` })).toBeVisible();
});

test('disks that are used cannot be chosen', async () => {
  const { status, list } = await page.evaluate(async () => {
    const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
    const { csrf } = (await info.json()) as { csrf: string };
    const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
    const answer = await fetch('/v1/disks/list', { method: 'POST', headers, body: '{}' });
    const { disks } = (await answer.json()) as { disks: { name: string; in_use: unknown }[] };
    return { status: answer.status, list: disks };
  });
  expect(status).toBe(200);
  await go(page, '#/setup');
  const used = list.filter(({ in_use: use }) => use !== null);
  for (const { name } of used) {
    const box = page.locator('label.disk').filter({ hasText: name }).getByRole('checkbox');
    await expect(box.first()).toBeDisabled();
  }
});

test('a scrub runs, and its progress is told', async () => {
  await go(page, `#/pools/${pool}`);
  await page.getByRole('button', { name: 'Scrub', exact: true }).click();
  await expect(page.getByText(/Scrub finished/)).toBeVisible();
  await go(page, '#/jobs');
  await expect(page.getByRole('cell', { name: 'Scrub' }).first()).toBeVisible();
});

test('a device goes offline, is replaced by a click, and all is well again', async () => {
  const name = (path: string | undefined): string => (path ?? '').split('/').at(-1) ?? '';
  const [old] = disks;
  const by = disks[4];
  await go(page, `#/pools/${pool}`);
  await page.getByRole('button', { name: new RegExp(`^${name(old)}`) }).click();
  await page.getByRole('button', { name: 'Take offline…' }).click();
  await expect(page.getByText(`zpool offline ${pool} ${old}`)).toBeVisible();
  await page.getByRole('button', { name: 'Take offline', exact: true }).click();
  await expect(page.getByText('was taken offline')).toBeVisible();
  await go(page, '#/');
  await expect(page.getByText(`A device of ${pool} was taken offline.`)).toBeVisible();

  await go(page, `#/pools/${pool}`);
  await page.getByRole('button', { name: new RegExp(`^${name(old)}`) }).click();
  await page.getByRole('button', { name: 'Replace…' }).click();
  await page.getByLabel('New device').fill(by ?? '');
  await expect(page.getByText(`zpool replace ${pool} ${old} ${by}`)).toBeVisible();
  await page.getByRole('button', { name: 'Replace', exact: true }).click();
  await expect(page.getByText(/Resilver finished/)).toBeVisible();
  const tree = page.getByRole('region', { name: 'Data', exact: true });
  await expect(tree.getByText(name(by)).first()).toBeVisible();
  await expect(tree.getByText(name(old), { exact: true })).toHaveCount(0);
  await expect(page.getByText('was taken offline')).toHaveCount(0);
});

test('a disk fails, its light goes on, it is replaced, and the light goes off', async () => {
  const [by, failed] = disks;
  const name = (path: string | undefined): string => (path ?? '').split('/').at(-1) ?? '';
  const light = (index: number, which: string): string => {
    const slot = `class/enclosure/0:0:24:0/Slot 0${index}/${which}`;
    return readFileSync(join(given('MILLPOND_SYSFS'), slot), 'utf8').trim();
  };
  await go(page, '#/disks');
  const row = page.getByRole('row').filter({ hasText: 'Slot 01' });
  await expect(row).toContainText(pool);
  await expect(row).toContainText('serial Z1');

  // What it tells of itself, and a test of it.
  await row.getByRole('button', { name: name(failed), exact: true }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Ask it now' }).click();
  await expect(dialog.getByText('32 °C')).toBeVisible();
  await expect(dialog.getByText('Completed without error')).toBeVisible();
  await dialog.getByRole('button', { name: 'Short test' }).click();
  await expect(page.getByText(`${name(failed)} is testing itself.`)).toBeVisible();
  await page.keyboard.press('Escape');

  await row.getByRole('button', { name: `Locate ${name(failed)}` }).click();
  await expect.poll(() => light(1, 'locate')).toBe('1');
  await row.getByRole('button', { name: `Stop locating ${name(failed)}` }).click();
  await expect.poll(() => light(1, 'locate')).toBe('0');

  const status = await page.evaluate(
    async ([of, device]) => {
      const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
      const { csrf } = (await info.json()) as { csrf: string };
      const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
      const asked = {
        name: of,
        device,
        temporary: false,
        fault: true,
        command: 'zpool offline -f',
      };
      const body = JSON.stringify(asked);
      return (await fetch('/v1/zpool/offline', { method: 'POST', headers, body })).status;
    },
    [pool, failed],
  );
  expect(status).toBe(200);
  await expect.poll(() => light(1, 'fault')).toBe('1');
  await expect(row).toContainText('Failing');
  await expect(row).toContainText('Fault light on');

  await go(page, `#/pools/${pool}`);
  await page.getByRole('button', { name: new RegExp(`^${name(failed)}`) }).click();
  await page.getByRole('button', { name: 'Replace…' }).click();
  await page.getByLabel('New device').fill(by ?? '');
  // It was offline when it was replaced, so the pool's label is on it still.
  await page.getByRole('checkbox').check();
  await page.getByRole('button', { name: 'Replace', exact: true }).click();
  await expect.poll(() => light(1, 'fault'), { timeout: 120_000 }).toBe('0');
  await go(page, '#/disks');
  await expect(row).toContainText('Nothing');
  await expect(page.getByRole('row').filter({ hasText: 'Slot 00' })).toContainText(pool);

  await page.getByRole('button', { name: 'Test the lights…' }).click();
  await page.getByRole('button', { name: 'Switch them on' }).click();
  await expect(page.getByText('How the lights are')).toBeVisible();
  await expect(dialog.getByText('Lit', { exact: true })).toHaveCount(disks.length);
  expect(light(2, 'fault')).toBe('0');
  await page.keyboard.press('Escape');
});

test('a snapshot is taken, rolled back to, held, cloned and destroyed', async () => {
  const dataset = `${pool}/media`;
  await go(page, `#/datasets/${dataset}`);
  const where = (await page.locator('code').first().innerText()).trim();
  await page.getByRole('button', { name: 'Take a snapshot' }).click();
  await page.getByLabel('Name').fill('before');
  await page.getByRole('button', { name: 'Take snapshot', exact: true }).click();
  const before = page.getByRole('button', { name: 'before', exact: true });
  await expect(before).toBeVisible();

  writeFileSync(join(where, 'mistake'), 'oh');
  await before.click();
  await page.getByRole('button', { name: 'Roll back…' }).click();
  await page.getByRole('button', { name: 'Roll back', exact: true }).click();
  await expect(page.getByText('It is as it was at before.')).toBeVisible();
  // The kernel hears of it in a moment.
  await expect.poll(() => existsSync(join(where, 'mistake'))).toBe(false);
  expect(readFileSync(join(where, 'data')).length).toBe(1_200_000);

  await before.click();
  await page.getByRole('button', { name: 'Hold…' }).click();
  await page.getByRole('button', { name: 'Hold', exact: true }).click();
  await expect(page.getByText('Holds: 1')).toBeVisible();

  const dialog = page.getByRole('dialog');
  // What is held is not destroyed, and that is said.
  await before.click();
  await dialog.getByRole('button', { name: 'Destroy…' }).click();
  const destroy = page.getByRole('button', { name: 'Destroy', exact: true });
  await expect(destroy).toBeDisabled();
  await page.getByLabel('Type before to confirm').fill('before');
  await destroy.click();
  await expect(page.getByRole('alert')).toBeVisible();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await page.getByRole('button', { name: 'Release “keep”' }).click();
  await page.getByRole('button', { name: 'Release “keep”' }).last().click();
  await expect(page.getByText('A hold on before is released.')).toBeVisible();

  await page.getByRole('button', { name: 'Clone…' }).click();
  await page.getByLabel('Full name of the clone').fill(`${pool}/copy`);
  await page.getByRole('button', { name: 'Clone', exact: true }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('copy');
  await expect(page.getByText(`${dataset}@before`, { exact: true })).toBeVisible();
  await page.getByRole('button', { name: 'Destroy…' }).click();
  await page.getByLabel(/to confirm/).fill(`${pool}/copy`);
  await page.getByRole('button', { name: 'Destroy', exact: true }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText(pool);

  await go(page, `#/datasets/${dataset}`);
  await before.click();
  await dialog.getByRole('button', { name: 'Destroy…' }).click();
  await page.getByLabel('Type before to confirm').fill('before');
  await destroy.click();
  await expect(page.getByText('There are no snapshots.')).toBeVisible();
});

test('a property is set, says so, and is inherited again', async () => {
  await go(page, `#/datasets/${pool}/media?properties`);
  await page.getByLabel('Filter properties').fill('recordsize');
  const row = page.getByRole('row').filter({ hasText: 'recordsize' });
  await expect(row).toContainText('default');
  await page.getByRole('button', { name: 'Edit recordsize' }).click();
  await page.getByLabel('New value').selectOption('1M');
  await page.getByRole('button', { name: 'Set', exact: true }).click();
  await expect(row).toContainText('1M');
  await expect(row).toContainText('set here');
  await page.getByRole('button', { name: 'Inherit recordsize' }).click();
  await page.getByRole('button', { name: 'Inherit', exact: true }).last().click();
  await expect(row).toContainText('default');
  await go(page, `#/pools/${pool}?history`);
  await expect(page.getByText(`zfs set recordsize=1M ${pool}/media`)).toBeVisible();
});

test('a volume is made and shared by iSCSI', async () => {
  await go(page, '#/datasets');
  await page.getByRole('button', { name: 'New volume' }).click();
  await page.getByLabel('In', { exact: true }).selectOption(pool);
  await page.getByLabel('Name', { exact: true }).fill('disk');
  await page.getByLabel('Size', { exact: true }).fill('64M');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('disk');
  await page.getByRole('link', { name: 'Sharing' }).click();
  await page.getByLabel('Share by iSCSI').check();
  await page.getByRole('button', { name: 'Save' }).click();
  await expect(page.getByText('The sharing of')).toBeVisible();
  await go(page, '#/shares');
  await expect(page.getByText(new RegExp(`^iqn\\..*${pool}:disk$`))).toBeVisible();
});

test('reports show what was read and written, over an hour to a year', async () => {
  await go(page, '#/reports');
  const of = page.getByLabel('Of', { exact: true });
  await expect(of).toContainText(pool, { timeout: 30_000 });
  await of.selectOption({ label: pool });
  await expect(
    page.getByRole('img', { name: `Throughput of ${pool}, the last hour` }),
  ).toBeVisible();
  const figures = page.getByRole('table', { name: `Throughput: ${pool}` });
  // What the wizard and the tests before this one wrote is in it.
  const written = figures.getByRole('row').filter({ hasText: 'Written' });
  await expect(written).toContainText(/[1-9][\d.]* [KMG]iB$/);
  await page.getByText('As a table: Throughput').click();
  await expect(page.getByRole('columnheader', { name: 'Time', exact: true })).toBeVisible();
  await expect(page.getByText(`millpond reports ${pool} --last hour --points`)).toBeVisible();
  for (const span of ['Day', 'Week', 'Month', 'Year']) {
    await page.getByLabel('Time', { exact: true }).selectOption(span);
    const name = `Throughput of ${pool}, the last ${span.toLowerCase()}`;
    await expect(page.getByRole('img', { name })).toBeVisible();
    await expect(written).toContainText(/[1-9][\d.]* [KMG]iB$/);
  }
  // A device has its queue, and the log its most.
  await expect(page.getByRole('heading', { name: 'Intent logs' })).toBeVisible();
  await of.selectOption(
    await of.locator('optgroup[label="Devices"] option').first().getAttribute('value'),
  );
  await expect(page.getByRole('heading', { name: 'Queue' })).toBeVisible();
});

test('a schedule is made, run, changed, paused and removed', async () => {
  const dataset = `${pool}/media`;
  await go(page, '#/schedules');
  await expect(page.getByText('There are no schedules yet.')).toBeVisible();
  await page.getByRole('button', { name: 'Add schedule' }).click();
  const dialog = page.getByRole('dialog');
  const add = dialog.getByRole('button', { name: 'Add schedule' });
  await expect(add).toBeDisabled();
  await dialog.getByLabel('Filesystem or volume').selectOption(dataset);
  await dialog.getByLabel('How often').selectOption('day');
  await dialog.getByLabel('Time').fill('04:30');
  await dialog.getByLabel('Days').fill('7');
  await dialog.getByLabel('Name (optional)').fill('media');
  const command =
    `millpond schedule set snapshot ${dataset} --every day --at 04:30 ` +
    '--keep hourly=24,daily=7,weekly=8,monthly=12 --name media';
  await expect(dialog.getByText(command)).toBeVisible();
  await add.click();
  const row = page.getByRole('row').filter({ hasText: 'media' });
  await expect(row).toContainText('Each day at 04:30');
  await expect(row).toContainText('New');

  await row.getByRole('button', { name: 'Run now' }).click();
  await expect(row).toContainText('Done');
  await expect(row).toContainText(/Took auto-media-\d{4}-\d\d-\d\d-\d{4}/);
  await row.getByRole('button', { name: 'Pause' }).click();
  await expect(row).toContainText('Paused');
  await row.getByRole('button', { name: 'Resume' }).click();
  await expect(row).not.toContainText('Paused');

  await row.getByRole('button', { name: 'Change…' }).click();
  await dialog.getByLabel('How often').selectOption('hour');
  await dialog.getByLabel('Minute of the hour').fill('15');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await expect(row).toContainText('Each hour at :15');

  // A scrub is offered as it is usual.
  await page.getByRole('button', { name: 'Add schedule' }).click();
  await dialog.getByRole('radio', { name: /Scrub/ }).check();
  await dialog.getByLabel('Pool').selectOption(pool);
  await expect(
    dialog.getByText(
      `millpond schedule set scrub ${pool} --every month --on 1 --at 02:00 --name scrub-${pool}`,
    ),
  ).toBeVisible();
  await add.click();
  const scrub = page.getByRole('row').filter({ hasText: `scrub-${pool}` });
  await expect(scrub).toContainText('Each month on day 1 at 02:00');
  await scrub.getByRole('button', { name: 'Remove…' }).click();
  await dialog.getByRole('button', { name: 'Remove', exact: true }).click();
  await expect(page.getByText(`scrub-${pool} is removed.`)).toBeVisible();
  await expect(scrub).toHaveCount(0);
});

test('who may only look can change nothing', async ({ browser }) => {
  await go(page, '#/users');
  await page.getByRole('button', { name: 'Add user' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('ann');
  await page.getByRole('radio', { name: /Viewer/ }).check();
  await page.getByLabel('Password', { exact: true }).fill(VIEWER_PASSWORD);
  await page.getByRole('button', { name: 'Add user' }).last().click();
  await expect(page.getByRole('cell', { name: 'ann' }).first()).toBeVisible();

  const viewer = await browser.newPage();
  listen(viewer);
  await signIn(viewer, 'ann', VIEWER_PASSWORD);
  const words =
    /^(Scrub|Clear|Export|Destroy|New|Take|Save|Add|Make|Edit|Inherit|Rename|Replace|Set |Roll|Mount|Unmount|Import|Run|Pause|Change(?! password)|Remove)/;
  for (const path of PAGES) {
    await go(viewer, path);
    await expect(viewer.getByRole('button', { name: words })).toHaveCount(0);
    await expect(viewer.getByRole('alert'), path).toHaveCount(0);
  }
  for (const path of ['#/setup', '#/users', '#/audit', '#/certificate']) {
    await viewer.goto(`/${path}`);
    await expect(viewer.locator('h1')).toBeVisible();
    await expect(viewer.getByRole('button', { name: words })).toHaveCount(
      path === '#/users' ? 2 : 0,
    );
  }
  // Nor by going round the page.
  const answers = await viewer.evaluate(async (name) => {
    const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
    const { csrf } = (await info.json()) as { csrf: string };
    const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
    const body = {
      names: [`${name}/media@x`],
      recursive: false,
      properties: {},
      command: '',
    };
    const options = { method: 'POST', headers, body: JSON.stringify(body) };
    const scrub = { names: [name], all: false, action: 'start' };
    const asked = await Promise.all([
      fetch('/v1/zfs/snapshot', options),
      fetch('/v1/zpool/scrub', { ...options, body: JSON.stringify(scrub) }),
      fetch('/v1/users/list', { ...options, body: '{}' }),
    ]);
    return asked.map(({ status }) => status);
  }, pool);
  expect(answers).toEqual([403, 403, 403]);
  await viewer.close();

  await go(page, '#/audit');
  await expect(page.getByRole('cell', { name: 'ann' }).first()).toBeVisible();
});

for (const scheme of ['light', 'dark'] as const) {
  test(`axe finds no serious fault, ${scheme}`, async ({ browser }) => {
    test.setTimeout(600_000);
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    const look = async (at: Page, what: string): Promise<void> => {
      const axe = new AxeBuilder({ page: at });
      // All else is the same in the dark.
      const rules = scheme === 'dark' ? axe.withRules(['color-contrast']) : axe;
      const { violations } = await rules.analyze();
      const grave = violations.filter(
        ({ impact }) => impact === 'serious' || impact === 'critical',
      );
      const told = grave.map(
        ({ id, nodes }) => `${id}: ${nodes[0]?.html} ${nodes[0]?.failureSummary}`,
      );
      expect(told, what).toEqual([]);
    };
    for (const path of [...PAGES, ...ADMIN_PAGES]) {
      await go(page, path);
      await look(page, path);
    }
    await go(page, `#/pools/${pool}`);
    await page.getByRole('button', { name: 'Destroy…' }).click();
    await look(page, 'a dialog');
    await page.keyboard.press('Escape');
    await go(page, '#/disks');
    await page.getByRole('row').nth(1).getByRole('button').first().click();
    await look(page, 'a disk');
    await page.keyboard.press('Escape');

    const stranger = await browser.newContext({ colorScheme: scheme, ignoreHTTPSErrors: true });
    const login = await stranger.newPage();
    await login.goto('/');
    await expect(login.getByRole('button', { name: 'Sign in' })).toBeVisible();
    await look(login, 'signing in');
    await stranger.close();
  });
}

test('a phone shows all without scrolling sideways', async () => {
  await page.setViewportSize({ width: 360, height: 780 });
  for (const path of [...PAGES, ...ADMIN_PAGES]) {
    await go(page, path);
    const over = await page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    expect(over, path).toBeLessThanOrEqual(0);
  }
  await page.getByRole('button', { name: 'Menu' }).click();
  await page.getByRole('link', { name: 'Pools' }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Pools');
  await page.setViewportSize({ width: 1280, height: 800 });
});

test('the keyboard reaches what the mouse does', async () => {
  await go(page, '#/pools');
  await page.reload();
  await settled(page);
  await page.keyboard.press('Tab');
  await expect(page.getByRole('link', { name: 'Skip to content' })).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.locator('h1')).toBeFocused();
  await go(page, `#/pools/${pool}`);
  const device = page.getByRole('region', { name: 'Data', exact: true }).getByRole('button').nth(1);
  await device.focus();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('dialog')).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('dialog')).toHaveCount(0);
  await expect(device).toBeFocused();
});

test('pictures for the documents', async () => {
  const to = process.env['MILLPOND_PICTURES'];
  test.skip(to === undefined, 'MILLPOND_PICTURES is not set');
  const shot = async (name: string, path: string): Promise<void> => {
    await go(page, path);
    await page.waitForTimeout(name.startsWith('overview') ? 10_000 : 500);
    await page.screenshot({ path: join(to ?? '', `${name}.png`) });
  };
  await page.emulateMedia({ colorScheme: 'light' });
  await go(page, '#/setup');
  await page.getByText('Add by path').click();
  for (let index = 1; index <= 6; index += 1) {
    await page.getByLabel('Path').fill(`/dev/disk/by-id/ata-EXAMPLE_${index}`);
    await page.getByLabel('Its size').fill('4T');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
  }
  await page.getByRole('button', { name: 'Next' }).click();
  await page.screenshot({ path: join(to ?? '', 'wizard.png') });
  await go(page, '#/');
  for (let index = 0; index < 12; index += 1) {
    writeFileSync(`/${pool}/media/noise`, randomBytes((1 + (index % 4)) << 22));
    await page.waitForTimeout(2500);
  }
  await shot('overview', '#/');
  await shot('pool', `#/pools/${pool}`);
  await shot('dataset', `#/datasets/${pool}/media?sharing`);
  await page.emulateMedia({ colorScheme: 'dark' });
  await shot('overview-dark', '#/');
  await shot('shares-dark', '#/shares');
  await page.setViewportSize({ width: 390, height: 780 });
  await shot('pool-phone', `#/pools/${pool}`);
});

test('the browser had nothing to complain about', () => {
  expect(complaints).toEqual([]);
});
