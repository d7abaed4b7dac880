/**
 * Goal: who has never seen this plans a pool, makes it, and measures it, in one sitting. Method: a
 * server without users and with empty disks; nothing but what pages offer. What it makes,
 * `storage.spec.ts` goes on with. With MILLPOND_PICTURES, pictures for the documents are put there.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test, type Page } from '@playwright/test';

import { go, look, PASSWORD, pool } from './person';

const disks = (process.env['MILLPOND_DISKS'] ?? '').split(',');

test.describe.configure({ mode: 'serial' });

let page: Page;
const complaints: string[] = [];

test.beforeAll(async ({ browser }) => {
  // axe wants a context that is made by itself.
  page = await (await browser.newContext()).newPage();
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
});

test.afterAll(async () => {
  await page.context().close();
});

/** A picture of what is there. */
async function picture(name: string): Promise<void> {
  const to = process.env['MILLPOND_PICTURES'];
  if (to === undefined) return;
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
  await page.setViewportSize({ width: 1120, height: 700 });
  await page.waitForTimeout(500);
  await page.screenshot({ path: join(to, `${name}.png`) });
  await page.setViewportSize({ width: 1280, height: 800 });
}

test('the link of the server leads to an overview that says what to do', async () => {
  await page.goto(`/#setup=${process.env['MILLPOND_TOKEN'] ?? ''}`);
  await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await page.getByLabel('Password again').fill(PASSWORD);
  await page.getByRole('button', { name: 'Make user' }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Overview');
});

test('a plan of the disks leads to the wizard', async () => {
  await page.getByRole('link', { name: 'Plan', exact: true }).click();
  await page.getByLabel('Number', { exact: true }).fill(`${disks.length}`);
  await page.getByLabel('Size of each').fill('4TB');
  await page.getByRole('button', { name: 'Plan', exact: true }).click();
  await expect(page.getByRole('region', { name: 'Recommended' })).toBeVisible();
  await expect(page.getByRole('table', { name: 'Layouts side by side' })).toContainText('raidz2');
  await look(page, 'a plan of a few disks');
  await picture('newcomer-plan');
  await page.locator('main').locator('a[href="#/setup"]').click();
});

test('the wizard makes what was planned', async () => {
  const next = page.getByRole('button', { name: 'Next' });
  for (const disk of disks) {
    const name = disk.split('/').at(-1) ?? disk;
    await page.getByRole('checkbox', { name: new RegExp(`^${name} .*Free$`) }).check();
  }
  await next.click();
  const raidz2 = page.getByRole('radio', { name: /RAID-Z2/ });
  await raidz2.check();
  await picture('newcomer-wizard');
  await next.click();
  await page.getByLabel('Pool name').fill(pool);
  await next.click();
  await page.getByRole('radio', { name: /A shared filesystem/ }).check();
  await page.getByLabel('Name', { exact: true }).fill('media');
  // This server was started with --smb off.
  await expect(page.getByText(/SMB cannot be offered here/)).toBeVisible();
  await expect(page.getByLabel('SMB')).toHaveCount(0);
  await page.getByLabel('NFS', { exact: true }).check();
  await page.getByLabel(/Hosts and networks/).fill('127.0.0.1');
  await expect(page.getByText(/Nobody is there to choose yet/)).toBeVisible();
  await expect(next).toBeDisabled();
  await page.getByLabel('New person').fill('Ann');
  await expect(page.getByText(/Small letters, digits, - and _/)).toBeVisible();
  for (const name of ['ann', 'bob']) {
    await page.getByLabel('New person').fill(name);
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    await expect(page.getByRole('checkbox', { name })).toBeChecked();
  }
  await page.getByRole('checkbox', { name: 'bob' }).uncheck();
  await look(page, 'who may use it');
  await picture('newcomer-people');
  await next.click();
  await expect(page.getByRole('heading', { level: 2 })).toHaveText('Tell me when something fails');
  await next.click();
  await page.getByRole('button', { name: 'Set it up' }).click();
  await expect(page.getByRole('heading', { name: 'It is ready' })).toBeVisible();
  await picture('newcomer-ready');

  // A client writes to it, by the line that is printed.
  const line = page.getByText(/mount -t nfs/);
  const found = /-o vers=4.2,port=(\d+) 127\.0\.0\.1:(\S+) \/mnt/.exec(await line.innerText());
  const [port, where] = [found?.[1] ?? '', found?.[2] ?? ''];
  expect(where).toBe(`/${pool}/media`);
  const url = `nfs://127.0.0.1${where}/letter?nfsport=${port}&mountport=${port}`;
  const own = mkdtempSync(join(tmpdir(), 'millpond-'));
  writeFileSync(join(own, 'letter'), 'dear mill');
  execFileSync('nfs-cp', [join(own, 'letter'), url]);
  expect(execFileSync('nfs-cat', [url]).toString()).toBe('dear mill');
  rmSync(own, { recursive: true });
  rmSync(join(where, 'letter'));
});

test('whose it is and who there is can be changed later', async () => {
  await go(page, `#/datasets/${pool}/media`);
  await page.getByRole('link', { name: 'Permissions' }).click();
  const owner = page.getByLabel('Owner', { exact: true });
  await expect(owner).toHaveValue('ann');
  await expect(page.getByLabel('Group', { exact: true })).toHaveValue(`${pool}-media`);
  await expect(page.getByText('Mode 2770')).toBeVisible();
  const others = page.getByLabel('Everybody else may');
  await expect(others).toHaveValue('nothing');
  await look(page, 'permissions');
  await picture('permissions');
  const save = page.getByRole('button', { name: 'Set permissions' });
  await expect(save).toBeDisabled();
  await others.selectOption('look');
  await owner.fill('nobody-of-this-name');
  await save.click();
  await expect(page.getByRole('alert')).toContainText('nobody-of-this-name');
  await owner.fill('bob');
  await save.click();
  await expect(page.getByText('The permissions are set.')).toBeVisible();
  await page.reload();
  await expect(page.getByLabel('Owner', { exact: true })).toHaveValue('bob');
  await expect(page.getByText('Mode 2775')).toBeVisible();
  await page.getByLabel('Folder', { exact: true }).fill('../..');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await expect(page.getByRole('alert')).toContainText("without '.' and '..'");

  await go(page, '#/shares');
  const people = page.getByRole('region', { name: 'People' });
  await expect(people.getByRole('listitem')).toHaveCount(2);
  const groups = page.getByRole('region', { name: 'Groups' });
  await expect(groups).toContainText(`${pool}-media`);
  await page.getByRole('button', { name: `Members… ${pool}-media` }).click();
  await page.getByRole('checkbox', { name: 'bob' }).check();
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(groups).toContainText('ann, bob');
  await look(page, 'people of shares');
  await page.getByRole('button', { name: 'Remove… bob' }).click();
  await page.getByRole('button', { name: 'Remove', exact: true }).click();
  await expect(people.getByRole('listitem')).toHaveCount(1);
  await expect(groups).not.toContainText('bob');
});

test('what was made is measured', async () => {
  test.setTimeout(300_000);
  await page.getByRole('link', { name: 'Bench', exact: true }).click();
  await expect(page.getByText('Nothing was measured yet.')).toBeVisible();
  await page.getByLabel('Below the filesystem').selectOption(`${pool}/media`);
  await page.getByLabel('Loads', { exact: true }).selectOption('vmware');
  await page.getByLabel('Size', { exact: true }).fill('16M');
  await page.getByText('Blocks, compression, times').click();
  await page.getByLabel('Seconds of each load').fill('2');
  await page.getByLabel('Seconds until it is steady').fill('0');
  await page.getByRole('button', { name: 'What will it do?' }).click();
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('Everybody else who uses the pool will be slower meanwhile.');
  await picture('newcomer-told');
  await dialog.getByRole('button', { name: 'Measure', exact: true }).click();
  const kept = page.getByRole('region', { name: 'Reports' });
  await expect(kept.getByRole('row')).toHaveCount(2, { timeout: 200_000 });
  await kept.getByRole('button', { name: 'Show the report' }).click();
  const figures = page.getByRole('table', { name: /^Report of/ });
  await expect(figures.getByRole('row')).toHaveCount(5);
  await picture('newcomer-bench');
  await kept.getByRole('button', { name: 'Forget the report' }).click();
  await expect(page.getByText('Nothing was measured yet.')).toBeVisible();
  await go(page, '#/datasets');
  await expect(page.getByText('millpond-bench')).toHaveCount(0);
});

test('the browser had nothing to complain about', () => {
  expect(complaints).toEqual([]);
});
