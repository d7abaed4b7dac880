/**
 * Goal: alerts, replications and the files of snapshots, as a person meets them. Method: goes on
 * where `newcomer.spec.ts` ends, with its user, pool and filesystem.
 */
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';

import { expect, test, type Browser, type Locator, type Page } from '@playwright/test';

import { ask, go as open, look as lookAt, pool, signedIn } from './person';
import { mailServer, type MailServer } from './smtp';

test.describe.configure({ mode: 'serial' });

let page: Page;
let server: MailServer;
const complaints: string[] = [];

const go = (path: string): Promise<void> => open(page, path);
const look = (what: string): Promise<void> => lookAt(page, what);

test.beforeAll(async ({ browser }: { browser: Browser }) => {
  server = await mailServer();
  page = await signedIn(browser, complaints);
});

test.afterAll(async () => {
  server.close();
  await page.context().close();
});

test('who is told is said in two fields, and a test arrives', async () => {
  await go('#/alerts');
  await page.getByLabel('Mail server (SMTP)').fill(`127.0.0.1:${server.port}`);
  await page.getByLabel('Mail addresses').fill('ann');
  await expect(page.getByText('Something like ann@example.org.')).toBeVisible();
  const save = page.getByRole('button', { name: 'Save', exact: true });
  await expect(save).toBeDisabled();
  await page.getByLabel('Mail addresses').fill('ann@example.org, bob@example.org');
  await expect(page.getByText(/--mail ann@example.org --mail bob@example.org/)).toBeVisible();
  await save.click();
  await expect(page.getByText('The settings of alerts are kept.')).toBeVisible();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
  await page.getByRole('button', { name: 'Send a test' }).click();
  await expect(page.getByText('taken', { exact: true })).toBeVisible();
  const isTest = (mail: string): boolean => /a test/.test(mail) && mail.includes('bob@example.org');
  await expect.poll(() => server.mails.some(isTest)).toBe(true);

  // A password is written, and never read.
  await page.getByText('More: sender').click();
  await look('alerts');
  await page.getByLabel('User name at the mail server').fill('ann');
  await page.getByLabel('Password at the mail server').fill('hush hush');
  await expect(page.getByText('millpond alerts set --user ann')).toBeVisible();
  await save.click();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
  await page.reload();
  await page.getByText('More: sender').click();
  await expect(page.getByText('There is one. Empty: it stays.')).toBeVisible();
  await expect(page.getByLabel('Password at the mail server')).toHaveValue('');
  // With one, mail goes encrypted or not at all.
  await page.getByRole('button', { name: 'Send a test' }).click();
  await expect(page.getByText('failed', { exact: true })).toBeVisible();
  await page.getByLabel('User name at the mail server').fill('');
  await save.click();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
  await page.getByText('More: sender').click();
  await expect(page.getByText('There is none yet.')).toBeVisible();
});

test('a pool that gets full is told of: on the page, on the overview, by mail', async () => {
  test.setTimeout(300_000);
  await go(`#/datasets/${pool}/media`);
  const where = (await page.locator('code').first().innerText()).trim();
  writeFileSync(join(where, 'noise'), randomBytes(96 << 20));
  await go('#/alerts');
  await page.getByText('More: sender').click();
  await page.getByLabel('Warn when a pool is full to, in percent').fill('1');
  await page.getByLabel('Warn loudly at, in percent').fill('1');
  await expect(page.getByText('the first one smaller')).toBeVisible();
  await page.getByLabel('Warn loudly at, in percent').fill('2');
  await page.getByRole('checkbox', { name: 'A scrub that is done' }).uncheck();
  await expect(page.getByText('--off scrub --space 1,2')).toBeVisible();
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
  const standing = page.getByRole('region', { name: 'Active alerts' });
  // Pools are looked at once a minute.
  await expect(standing.getByText(new RegExp(`${pool} is \\d+% full`))).toBeVisible({
    timeout: 100_000,
  });
  await expect(standing.getByText('Critical').first()).toBeVisible();
  await expect(standing.getByText(/Destroy snapshots or files/)).toBeVisible();
  await expect
    .poll(() => server.mails.some((mail) => mail.includes('full')), { timeout: 60_000 })
    .toBe(true);
  await look('a standing alert');
  await go('#/');
  const health = page.getByRole('region', { name: 'Condition' });
  await expect(health).toContainText('% full');
  await health.getByRole('link', { name: /alerts/ }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Alerts');
});

test('what cannot be sent waits, and is seen waiting', async () => {
  const gone = server.port;
  server.close();
  await go(`#/alerts`);
  await page.getByText('More: sender').click();
  await page.getByRole('checkbox', { name: 'A scrub that is done' }).check();
  await page.getByLabel('Mail server (SMTP)').fill('127.0.0.1:1');
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
  await go(`#/pools/${pool}`);
  await page.getByRole('button', { name: 'Scrub', exact: true }).click();
  await expect(page.getByText(/Scrub finished/)).toBeVisible();
  await go('#/alerts');
  const waiting = page.getByRole('region', { name: 'Waiting to be sent' });
  await expect(waiting.getByText(/scrub of pool/).first()).toBeVisible({ timeout: 60_000 });
  await expect(waiting.getByRole('cell', { name: 'mail', exact: true }).first()).toBeVisible();
  await look('messages that wait');
  server = await mailServer();
  expect(server.port).not.toBe(gone);
  await page.getByLabel('Mail server (SMTP)').fill(`127.0.0.1:${server.port}`);
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(page.getByText('Nothing is changed yet.')).toBeVisible();
});

test('a filesystem is replicated, again and again', async () => {
  await go('#/replication');
  await expect(page.getByText('Nothing is replicated yet.')).toBeVisible();
  await page.getByRole('button', { name: 'New replication' }).click();
  const verb = page.getByRole('button', { name: 'Replicate', exact: true });
  await page.getByLabel('Source', { exact: true }).selectOption(`${pool}/media`);
  await page.getByRole('textbox', { name: 'Target' }).fill(`${pool}/media/below`);
  await expect(page.getByText('one below the other')).toBeVisible();
  await expect(verb).toBeDisabled();
  await page.getByRole('textbox', { name: 'Target' }).fill('root@nas:backup/home');
  await expect(page.getByLabel('How zfs is called')).toHaveValue('zfs');
  await look('a new replication');

  // What the server says is shown.
  await page.getByRole('textbox', { name: 'Target' }).fill('nonesuch/replica');
  await page.getByLabel('Every', { exact: true }).fill('1h');
  await verb.click();
  await expect(page.getByRole('alert')).toContainText('nonesuch');
  await page.getByRole('textbox', { name: 'Target' }).fill(`${pool}/replica`);
  await page.getByRole('radio', { name: 'All of them' }).check();
  await page.getByLabel('Name', { exact: true }).fill('again');
  await expect(
    page.getByText(
      `millpond replicate --every 1h --keep all --name again ${pool}/media ${pool}/replica`,
    ),
  ).toBeVisible();
  await verb.click();
  const one = page.getByRole('region', { name: 'again' });
  await expect(one).toContainText(/Done .*millpond-again-/s);
  await expect(one).toContainText('every 1h');

  await page.getByRole('button', { name: 'Pause again' }).click();
  await expect(one.getByText('Paused')).toBeVisible();
  await page.getByRole('button', { name: 'Resume again' }).click();
  await expect(one.getByText('Paused')).toHaveCount(0);
  await page.getByRole('button', { name: 'Edit… again' }).click();
  await expect(page.getByRole('button', { name: 'Save', exact: true })).toBeDisabled();
  await page.getByLabel('Every', { exact: true }).fill('2d');
  await page.getByLabel('At most, per second').fill('50M');
  await expect(page.getByText('replicate --change again --every 2d')).toBeVisible();
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await expect(one).toContainText('every 2d');
  await expect(one).toContainText('at most 50 MiB/s');
  await page.getByRole('button', { name: 'Run now again' }).click();
  await expect(page.getByText('again runs.')).toBeVisible();
  await expect(page.getByRole('button', { name: 'Run now again' })).toBeVisible();
  await look('replications');
  await page.getByRole('button', { name: 'Remove… again' }).click();
  await page.getByRole('button', { name: 'Remove', exact: true }).click();
  await expect(page.getByText('Nothing is replicated yet.')).toBeVisible();
  await go(`#/datasets/${pool}/replica`);
  await expect(page.getByText(/millpond-again-/).first()).toBeVisible();
});

test('files of a snapshot are looked at, saved and restored', async () => {
  const dataset = `${pool}/media`;
  await go(`#/datasets/${dataset}`);
  const where = (await page.locator('code').first().innerText()).trim();
  mkdirSync(join(where, 'docs', 'deep'), { recursive: true });
  writeFileSync(join(where, 'docs', 'a letter.txt'), 'as it was');
  writeFileSync(join(where, 'docs', 'deep', 'inner'), 'inside');
  symlinkSync('/etc', join(where, 'docs', 'out'));
  mkdirSync(join(where, 'below'));
  await page.getByRole('button', { name: 'Take a snapshot' }).click();
  await page.getByLabel('Name').fill('kept');
  await page.getByRole('button', { name: 'Take snapshot', exact: true }).click();
  const kept = page.getByRole('button', { name: 'kept', exact: true });
  await expect(kept).toBeVisible();
  writeFileSync(join(where, 'docs', 'a letter.txt'), 'spoilt');
  writeFileSync(join(where, 'docs', 'newer'), 'only here');

  await kept.click();
  await page.getByRole('button', { name: 'Browse files…' }).click();
  await page.getByRole('button', { name: 'docs', exact: true }).click();
  await expect(page.getByText(/^3 entries/)).toBeVisible();
  await expect(page.getByText('to /etc')).toBeVisible();
  // Links lead nowhere, and what is newer is not in it.
  await expect(page.getByRole('button', { name: 'out', exact: true })).toHaveCount(0);
  await expect(page.getByText('newer')).toHaveCount(0);
  await look('files of a snapshot');
  await page.getByRole('button', { name: 'deep', exact: true }).click();
  await expect(page.getByText('inner').first()).toBeVisible();
  await page.getByRole('button', { name: 'docs', exact: true }).click();
  await expect(page.getByText(/^3 entries/)).toBeVisible();

  const saving = page.waitForEvent('download');
  await page.getByRole('link', { name: 'Download a letter.txt' }).click();
  const saved = await saving;
  expect(saved.suggestedFilename()).toBe('a letter.txt');
  expect(readFileSync(await saved.path(), 'utf8')).toBe('as it was');

  // Beside what is there.
  await page.getByRole('button', { name: 'Restore… a letter.txt' }).click();
  await expect(
    page.getByText(`cp -a '${where}/.zfs/snapshot/kept/docs/a letter.txt'`),
  ).toBeVisible();
  await look('restoring');
  await page.getByRole('button', { name: 'Restore', exact: true }).click();
  await expect(page.getByText(/Restored as docs\/a letter.txt.restored-/)).toBeVisible();
  const docs = (): string[] => readdirSync(join(where, 'docs')).sort();
  const beside = docs().find((name) => name.startsWith('a letter.txt.restored-')) ?? '';
  expect(readFileSync(join(where, 'docs', beside), 'utf8')).toBe('as it was');
  expect(readFileSync(join(where, 'docs', 'a letter.txt'), 'utf8')).toBe('spoilt');
  await page.getByRole('button', { name: 'Close' }).last().click();

  // A directory in its place: the kernel sees it at once, and what was there stays.
  await page.getByRole('button', { name: 'All', exact: true }).click();
  await page.getByRole('button', { name: 'Restore… docs' }).click();
  await page.getByRole('radio', { name: /In its place/ }).check();
  await page.getByRole('button', { name: 'Restore', exact: true }).click();
  await expect(page.getByText('Restored as docs.', { exact: true })).toBeVisible();
  expect(docs()).toEqual(['a letter.txt', 'deep', 'out']);
  expect(readFileSync(join(where, 'docs', 'a letter.txt'), 'utf8')).toBe('as it was');
  expect(lstatSync(join(where, 'docs', 'out')).isSymbolicLink()).toBe(true);
  const replaced = readdirSync(where).find((name) => name.startsWith('docs.replaced-')) ?? '';
  expect(readFileSync(join(where, replaced, 'newer'), 'utf8')).toBe('only here');
  expect(existsSync(join(where, replaced, beside))).toBe(true);
  await page.getByRole('button', { name: 'Close' }).last().click();

  // What another filesystem is mounted at is not replaced: the mount would go with it.
  const made = await page.evaluate(async (name) => {
    const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
    const { csrf } = (await info.json()) as { csrf: string };
    const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
    const body = JSON.stringify({
      name,
      properties: {},
      volume_size_bytes: null,
      sparse: false,
      parents: false,
      no_mount: false,
      command: '',
    });
    return (await fetch('/v1/zfs/create', { method: 'POST', headers, body })).status;
  }, `${dataset}/below`);
  expect(made).toBe(200);
  writeFileSync(join(where, 'below', 'mounted'), 'here');
  await page.getByRole('button', { name: 'Restore… below' }).click();
  await page.getByRole('radio', { name: /In its place/ }).check();
  await page.getByRole('button', { name: 'Restore', exact: true }).click();
  await expect(page.getByRole('alert')).toContainText('something is mounted at it');
  expect(readFileSync(join(where, 'below', 'mounted'), 'utf8')).toBe('here');
  // Each dialog leads back to the one before it, which a key that comes earlier does not close.
  await page.getByRole('button', { name: 'Cancel' }).click();
  await expect(page.getByRole('button', { name: 'Restore… below' })).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('button', { name: 'Browse files…' })).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('dialog')).toHaveCount(0);
});

test('who may only look sees no files, and no replications', async ({ browser }) => {
  await ask(page, '/v1/users/add', { name: 'ann', role: 'viewer', password: 'only looks around' });
  const viewer = await browser.newPage();
  await viewer.goto('/');
  await viewer.getByLabel('User name').fill('ann');
  await viewer.getByLabel('Password').fill('only looks around');
  await viewer.getByRole('button', { name: 'Sign in' }).click();
  await expect(viewer.getByRole('heading', { level: 1 })).toHaveText('Overview');
  await viewer.goto(`/#/datasets/${pool}/media`);
  await viewer.getByRole('button', { name: 'kept', exact: true }).click();
  await expect(viewer.getByRole('dialog')).toBeVisible();
  await expect(viewer.getByRole('button', { name: 'Browse files…' })).toHaveCount(0);
  await expect(viewer.getByRole('link', { name: 'Replication' })).toHaveCount(0);
  const answers = await viewer.evaluate(async (name) => {
    const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
    const { csrf } = (await info.json()) as { csrf: string };
    const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
    const ask = (path: string, body: unknown): Promise<Response> =>
      fetch(path, { method: 'POST', headers, body: JSON.stringify(body) });
    const snapshot = `${name}/media@kept`;
    const asked = await Promise.all([
      ask('/v1/files/list', { dataset: snapshot, path: '' }),
      ask('/v1/files/restore', { snapshot, path: 'docs', in_place: true }),
      fetch(`/v1/files/download?dataset=${encodeURIComponent(snapshot)}&path=data`),
      ask('/v1/replications/list', {}),
      ask('/v1/alerts/settings', {}),
    ]);
    return asked.map(({ status }) => status);
  }, pool);
  expect(answers).toEqual([403, 403, 403, 403, 403]);
  await viewer.close();
});

test('what disks will do is planned before they are bought', async () => {
  await go('#/plan');
  const plan = page.getByRole('button', { name: 'Plan', exact: true });
  await page.getByLabel('Number', { exact: true }).fill('16');
  await page.getByLabel('Size of each').fill('big');
  await expect(page.getByText('A size is a number with a unit')).toBeVisible();
  await expect(plan).toBeDisabled();
  await page.getByLabel('Size of each').fill('500GB');
  await page.getByLabel('Spares', { exact: true }).fill('1');
  await page.getByLabel('Layouts', { exact: true }).fill('mirror:7x2 raidz2:2x6');
  await plan.click();
  const table = page.getByRole('table', { name: 'Layouts side by side' });
  const rows = table.getByRole('row');
  await expect(rows).toHaveCount(3);
  const fixed = page.getByRole('region', { name: 'What cannot be changed later' });
  await expect(fixed).toContainText('raidz2:2x6: its parity is 2 for good');
  const usable = table.getByRole('columnheader', { name: 'Usable' });
  await usable.getByRole('button').click();
  await expect(usable).toHaveAttribute('aria-sort', 'descending');
  await expect(rows.nth(1)).toContainText('raidz2:2x6');
  await usable.getByRole('button').click();
  await expect(rows.nth(1)).toContainText('mirror:7x2');
  const command =
    'millpond plan --disks 16x500GB --spares 1 --layout mirror:7x2 --layout raidz2:2x6';
  await expect(page.getByText(command)).toBeVisible();
  await look('a plan');

  // What cannot be planned is told in the planner's words.
  await page.getByLabel('Layouts', { exact: true }).fill('mirror:9x2');
  await plan.click();
  await expect(page.getByRole('alert')).toContainText('mirror:9x2 needs 18 disks');
  await expect(table).toHaveCount(0);
});

/** Fills in what is to be measured, and goes as far as what is said before. */
async function askToMeasure(seconds: string): Promise<Locator> {
  await page.getByLabel('Below the filesystem').selectOption(pool);
  await page.getByLabel('Loads', { exact: true }).selectOption('sio');
  await page.getByLabel('Size', { exact: true }).fill('16M');
  const more = page.getByLabel('Seconds of each load');
  if (!(await more.isVisible())) await page.getByText('Blocks, compression, times').click();
  await more.fill(seconds);
  await page.getByLabel('Seconds until it is steady').fill('0');
  await page.getByRole('button', { name: 'What will it do?' }).click();
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('Everybody else who uses the pool will be slower meanwhile.');
  return dialog;
}

test('what storage does is measured, watched, stopped and compared', async () => {
  test.setTimeout(300_000);
  await go('#/bench');
  await expect(page.getByText('Nothing was measured yet.')).toBeVisible();
  await page.getByLabel('Size', { exact: true }).fill('1K');
  await expect(page.getByText('A size such as 8G, of 1M or more.')).toBeVisible();
  await expect(page.getByRole('button', { name: 'What will it do?' })).toBeDisabled();
  await page.getByLabel('Size', { exact: true }).fill('900T');
  await page.getByRole('button', { name: 'What will it do?' }).click();
  await expect(page.getByRole('alert')).toContainText('half of them is the most');

  // It can be stopped as soon as it is there, and leaves nothing.
  let dialog = await askToMeasure('600');
  await expect(dialog).toContainText(`A file or volume of 16 MiB is written below ${pool}`);
  await look('what a measurement will do');
  await dialog.getByRole('button', { name: 'Measure', exact: true }).click();
  const running = page.getByRole('region', { name: 'Under way' });
  await expect(running).toContainText('Load 1 of 2', { timeout: 60_000 });
  await look('a measurement that is under way');
  await running.getByRole('button', { name: 'Stop' }).click();
  await expect(running).toHaveCount(0, { timeout: 60_000 });
  await expect(page.getByText('Nothing was measured yet.')).toBeVisible();
  await go('#/datasets');
  await expect(page.getByText('millpond-bench')).toHaveCount(0);

  const kept = page.getByRole('region', { name: 'Reports' });
  for (const count of [1, 2]) {
    await go('#/bench');
    dialog = await askToMeasure('1');
    await dialog.getByRole('button', { name: 'Measure', exact: true }).click();
    await expect(kept.getByRole('row')).toHaveCount(count + 1, { timeout: 100_000 });
  }
  await kept.getByRole('button', { name: 'Show the report' }).first().click();
  const figures = page.getByRole('table', { name: /^Report of/ });
  await expect(figures.getByRole('row')).toHaveCount(3);
  await expect(figures).toContainText('sio 0 0 64K: writes, 50 deep');
  await expect(page.getByRole('img', { name: /^Operations a second/ })).toBeVisible();
  await page.getByLabel('Before', { exact: true }).selectOption({ index: 2 });
  await page.getByLabel('After', { exact: true }).selectOption({ index: 1 });
  await page.getByRole('button', { name: 'Compare', exact: true }).click();
  const compared = page.getByRole('table', { name: 'Side by side' });
  await expect(compared.getByRole('row')).toHaveCount(3);
  await expect(compared).toContainText('×');
  await look('reports of measurements');
  await kept.getByRole('button', { name: 'Forget the report' }).first().click();
  await expect(kept.getByRole('row')).toHaveCount(2);
});

test('the browser had nothing to complain about', () => {
  expect(complaints).toEqual([]);
});
