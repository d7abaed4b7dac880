/**
 * Goal: the page of caches tells what memory and cache devices do, as it happens. Method: goes on
 * where `console.spec.ts` ends; a file is the cache device, and of a filesystem nothing but metadata
 * is kept in memory, so that its data is read from there.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test, type Page } from '@playwright/test';

import type { CacheReply, PoolCache } from '../src/api/cache';
import { size } from '../src/lib/units';
import { ask, go, look, pool, signedIn } from './person';

const DEVICE_BYTES = 512 * 2 ** 20;
const DATA_BYTES = 24 * 2 ** 20;

test.describe.configure({ mode: 'serial' });

let page: Page;
let directory = '';
let device = '';
const file = `/${pool}/warm/data`;
const complaints: string[] = [];

test.beforeAll(async ({ browser }) => {
  page = await signedIn(browser, complaints);
  directory = mkdtempSync(join(tmpdir(), 'millpond-cache-'));
  device = join(directory, 'ssd');
  const made = openSync(device, 'w');
  ftruncateSync(made, DEVICE_BYTES);
  closeSync(made);
});

test.afterAll(async () => {
  await page.context().close();
  rmSync(directory, { recursive: true });
});

async function told(): Promise<PoolCache> {
  const { pools } = (await ask(page, '/v1/cache/get', { pools: [pool] })) as CacheReply;
  const [one] = pools;
  if (!one) throw new Error(`nothing is told of ${pool}`);
  return one;
}

/** Reads the file past what the kernel keeps of it. */
function read(): void {
  execFileSync('dd', [`if=${file}`, 'of=/dev/null', 'bs=128k', 'iflag=direct', 'status=none']);
}

test('a pool without a cache device tells of memory, and how to add one', async () => {
  await go(page, '#/');
  await page.getByRole('link', { name: 'Cache', exact: true }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Cache');
  await page.getByLabel('Pool', { exact: true }).selectOption(pool);
  const pools = page.getByRole('table', { name: 'Reads that memory answers' });
  const row = pools.getByRole('row').filter({ hasText: pool });
  await expect(row).toContainText(/\d+%/, { timeout: 60_000 });
  await expect(row).toContainText('Twice as much memory would');
  const kinds = page.getByRole('table', { name: `By kind of block: ${pool}` });
  await expect(kinds.getByRole('row').filter({ hasText: /^Metadata/ })).toContainText(/[1-9]\d*%/);
  await expect(page.getByText('This pool has none.')).toBeVisible();
  await expect(page.getByText(`zpool add ${pool} cache DEVICE`)).toBeVisible();
  await expect(
    page.getByRole('img', { name: `How warm it is of ${pool}, the last hour` }),
  ).toBeVisible();
  await expect(page.getByRole('heading', { name: 'Cache devices: in use' })).toHaveCount(0);
});

test('a cache device that gets warm is seen getting warm', async () => {
  await ask(page, '/v1/zpool/add', {
    name: pool,
    vdevs: [{ class: 'cache', layout: { device: { path: device } } }],
    ashift: null,
  });
  await ask(page, '/v1/zfs/create', {
    name: `${pool}/warm`,
    properties: { primarycache: 'metadata', compression: 'off', direct: 'disabled' },
    volume_size_bytes: null,
  });
  writeFileSync(file, randomBytes(DATA_BYTES));
  await ask(page, '/v1/zpool/sync', { names: [pool] });
  await expect
    .poll(
      async () => {
        read();
        return (await told()).second?.devices[0]?.hits ?? 0;
      },
      { timeout: 60_000 },
    )
    .toBeGreaterThan(DATA_BYTES / 2 ** 17);

  await go(page, '#/cache');
  await page.getByLabel('Pool', { exact: true }).selectOption(pool);
  const devices = page.getByRole('table', { name: `Cache devices: ${pool}` });
  const row = devices.getByRole('row').filter({ hasText: device });
  await expect(row).toContainText('Online');
  await expect(row.getByRole('meter')).toHaveAttribute('aria-label', /\d MiB of \d+ MiB in use/);
  await expect(row.getByRole('meter')).not.toHaveAttribute('aria-valuenow', '0');
  await expect(row).toContainText(/Full in|Not filling/);
  // The page says what the server says.
  const { second } = await told();
  const answered = row.getByRole('cell').nth(4);
  await expect(answered).toHaveText((second?.devices[0]?.hits ?? 0).toLocaleString('en'));
  const region = page.getByRole('region', { name: 'Cache devices', exact: true });
  await expect(region).toContainText(`takes ${size(second?.index_bytes ?? 0)} of memory`);

  // The curve, and the same as a table.
  const curve = page.getByRole('table', { name: `How warm it is: ${pool}` });
  const both = curve.getByRole('row').filter({ hasText: 'By memory or cache devices' });
  await expect(both).toContainText(/\d%$/);
  await page.getByText('As a table: How warm it is').click();
  const fill = page.getByRole('table', { name: `Cache devices: in use: ${pool}` });
  await expect(fill).toContainText(/[1-9][\d.]* MiB/, { timeout: 60_000 });
  const reads = page.getByRole('table', { name: `Cache devices: reads: ${pool}` });
  await expect(reads.getByRole('row').filter({ hasText: /^Found/ })).toContainText(/[1-9]\d*$/);
  for (const span of ['Day', 'Week', 'Month', 'Year', 'Hour']) {
    await page.getByLabel('Time', { exact: true }).selectOption(span);
    const name = `How warm it is of ${pool}, the last ${span.toLowerCase()}`;
    await expect(page.getByRole('img', { name })).toBeVisible();
    await expect(both).toContainText(/\d%$/);
  }
  await expect(page.getByText(`zpool iostat --cache ${pool} 10`)).toBeVisible();
  await look(page, 'a cache device in use');

  // Reports have it as well.
  await go(page, '#/reports');
  const of = page.getByLabel('Of', { exact: true });
  const caches = of.locator('optgroup[label="Caches of pools"] option');
  await of.selectOption(await caches.filter({ hasText: pool }).getAttribute('value'));
  await expect(page.getByRole('heading', { name: 'Found in memory', exact: true })).toBeVisible();
});

test('one that is removed is gone from the page', async () => {
  await ask(page, '/v1/zpool/remove', { name: pool, devices: [device] });
  await ask(page, '/v1/zfs/destroy', { target: `${pool}/warm` });
  await go(page, '#/cache');
  await page.getByLabel('Pool', { exact: true }).selectOption(pool);
  await expect(page.getByText('This pool has none.')).toBeVisible();
  await expect(page.getByText(device)).toHaveCount(0);
});

test('the browser had nothing to complain about', () => {
  expect(complaints).toEqual([]);
});
