/**
 * Goal: pictures for the documents of the pages that need something to show: in light and in dark,
 * and on a phone. Method: with MILLPOND_PICTURES alone, after `storage.spec.ts`, with what it made.
 */
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test, type Page } from '@playwright/test';

import { ask as asked, go, pool, signedIn } from './person';

const to = process.env['MILLPOND_PICTURES'] ?? '';

test.describe.configure({ mode: 'serial' });
test.skip(to === '', 'MILLPOND_PICTURES is not set');

let page: Page;

test.beforeAll(async ({ browser }) => {
  page = await signedIn(browser, []);
  await page.emulateMedia({ reducedMotion: 'reduce' });
});

test.afterAll(async () => {
  await page.context().close();
});

/** The page as it is, three times; a dialog that is open stays so. */
async function shots(name: string): Promise<void> {
  const shot = async (suffix: string): Promise<void> => {
    // Graphs are drawn anew.
    await page.waitForTimeout(500);
    await page.screenshot({ path: join(to, `${name}${suffix}.png`) });
  };
  await page.setViewportSize({ width: 1120, height: 700 });
  await page.emulateMedia({ colorScheme: 'light' });
  await shot('');
  await page.emulateMedia({ colorScheme: 'dark' });
  await shot('-dark');
  await page.setViewportSize({ width: 360, height: 640 });
  await page.emulateMedia({ colorScheme: 'light' });
  await shot('-phone');
  await page.setViewportSize({ width: 1280, height: 800 });
}

async function ask(path: string, body: object): Promise<void> {
  await asked(page, path, body);
}

test('schedules', async () => {
  const night = { hour: 2, minute: 0 };
  const add = async (task: string, target: string, when: object): Promise<void> =>
    ask('/v1/schedules/set', {
      name: task === 'scrub' ? 'scrub' : 'disks',
      task,
      target,
      recursive: false,
      when: { ...when, ...night },
      keep: null,
    });
  await add('scrub', pool, { every: 'month', day: 1 });
  await add('smart-short', '', { every: 'week', day: 'sunday' });
  await go(page, '#/schedules');
  await shots('schedules');
});

test('alerts', async () => {
  await go(page, '#/alerts');
  await shots('alerts');
});

test('replication', async () => {
  await ask('/v1/replications/create', {
    spec: {
      name: 'second',
      source: `${pool}/media`,
      target: { local: { dataset: `${pool}/second` } },
      recursive: false,
      every_s: 3600,
      keep: { hourly: 24, daily: 7, weekly: 8, monthly: 12 },
      limit_bytes: null,
    },
  });
  await go(page, '#/replication');
  await expect(page.getByRole('region', { name: 'second' })).toContainText('Done');
  await shots('replication');
});

test('disks', async () => {
  await go(page, '#/disks');
  await shots('disks');
});

test('reports', async () => {
  for (let index = 0; index < 12; index += 1) {
    writeFileSync(`/${pool}/media/noise`, randomBytes((1 + (index % 4)) << 22));
    await page.waitForTimeout(2500);
  }
  await go(page, '#/reports');
  await page.getByLabel('Of', { exact: true }).selectOption({ label: pool });
  await shots('reports');
});

test('the cache', async () => {
  await go(page, '#/cache');
  await page.getByLabel('Pool', { exact: true }).selectOption(pool);
  await shots('cache');
});

test('files of a snapshot', async () => {
  mkdirSync(`/${pool}/media/Photos`, { recursive: true });
  await go(page, `#/datasets/${pool}/media`);
  await page.getByRole('button', { name: 'kept', exact: true }).click();
  await page.getByRole('button', { name: 'Browse files…' }).click();
  await expect(page.getByRole('button', { name: 'docs', exact: true })).toBeVisible();
  await shots('files');
  await page.keyboard.press('Escape');
  await expect(page.getByRole('button', { name: 'Browse files…' })).toBeVisible();
  await page.keyboard.press('Escape');
  await expect(page.getByRole('dialog')).toHaveCount(0);
});

test('users and keys', async () => {
  await go(page, '#/users');
  await shots('users');
});

test('the certificate', async () => {
  await go(page, '#/certificate');
  await shots('certificate');
});

test('power', async () => {
  await go(page, '#/');
  await expect(page.getByText(/The UPS cellar@/)).toBeVisible();
  await shots('power');
});
