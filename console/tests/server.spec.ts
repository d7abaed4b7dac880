/**
 * Goal: the server's power and certificate, as a person meets them. Method: goes on where
 * `console.spec.ts` ends. The UPS is a small program of the test `browser` of crate `cli`; no
 * authority answers.
 */
import { expect, test, type Page } from '@playwright/test';

import { go, look, signedIn } from './person';

test.describe.configure({ mode: 'serial' });

let page: Page;
const complaints: string[] = [];

test.beforeAll(async ({ browser }) => {
  page = await signedIn(browser, complaints);
});

test.afterAll(async () => {
  await page.context().close();
});

test('how the UPS is, is on the overview', async () => {
  await go(page, '#/');
  await expect(page.getByText(/The UPS cellar@127\.0\.0\.1:\d+ has power/)).toBeVisible();
});

test('a certificate is to be got, and what goes wrong is told', async () => {
  await go(page, '#/certificate');
  const now = page.getByRole('region', { name: 'In use' });
  await expect(now).toContainText('this server, which signs it itself');
  await expect(now).toContainText('localhost');
  await expect(page.getByRole('button', { name: 'Renew now' })).toHaveCount(0);
  const save = page.getByRole('button', { name: 'Save', exact: true });
  await expect(save).toBeDisabled();
  const names = page.getByLabel('Names of this server');
  await names.fill('*.example.org');
  await expect(page.getByText('Names of hosts or addresses, without asterisks.')).toBeVisible();
  await names.fill('nas.example.org, files.example.org');
  await page.getByLabel('Mail address').fill('ann@example.org');
  await page.getByText('More: another authority').click();
  await page.getByLabel('Directory of the authority').fill('http://127.0.0.1:1/dir');
  await expect(page.getByText('It begins with https://.')).toBeVisible();
  await expect(save).toBeDisabled();
  // Nobody listens there.
  await page.getByLabel('Directory of the authority').fill('https://127.0.0.1:1/dir');
  await expect(
    page.getByText(
      'millpond certificate acme nas.example.org files.example.org --contact ann@example.org ' +
        '--directory https://127.0.0.1:1/dir',
    ),
  ).toBeVisible();
  await look(page, 'a certificate that is to be got');
  await save.click();
  await expect(page.getByText('The settings are kept; a certificate is got.')).toBeVisible();
  await expect(now).toContainText(/None was got: https:\/\/127\.0\.0\.1:1\/dir/);
  await expect(now).toContainText('Another one is got');
  await look(page, 'a certificate that cannot be got');

  await page.reload();
  await expect(names).toHaveValue('nas.example.org, files.example.org');
  await page.getByRole('button', { name: 'Renew now' }).click();
  await expect(page.getByText(/None was got: https/).last()).toBeVisible();
  await page.getByRole('button', { name: 'Use the server’s own' }).click();
  await expect(page.getByText('The server’s own certificate is used.')).toBeVisible();
  await expect(page.getByRole('button', { name: 'Renew now' })).toHaveCount(0);
  await expect(names).toHaveValue('');
});

/** More than a browser has connections for, by HTTP/1.1. */
const TABS = 9;

test('nine tabs share a connection and a stream of events, and hand it over', async ({
  browser,
}) => {
  const first = await signedIn(browser, complaints);
  const context = first.context();
  const asked: string[] = [];
  const others: Page[] = [];
  while (others.length < TABS - 1) {
    const tab = await context.newPage();
    tab.on('request', (request) => asked.push(new URL(request.url()).pathname));
    await tab.goto('/');
    await expect(tab.getByRole('heading', { level: 1 })).toHaveText('Overview');
    await expect(tab.getByText('Loading…')).toHaveCount(0);
    others.push(tab);
  }
  expect(asked.filter((path) => path === '/v1/events')).toEqual([]);
  const [tab] = others;
  const loaded = await tab?.evaluate(() => {
    const of = (type: string) => performance.getEntriesByType(type) as PerformanceResourceTiming[];
    const script = of('resource').find(({ name }) => name.endsWith('.js'));
    return {
      protocol: of('navigation')[0]?.nextHopProtocol,
      share: (script?.encodedBodySize ?? 1) / (script?.decodedBodySize ?? 1),
    };
  });
  expect(loaded?.protocol).toBe('h2');
  expect(loaded?.share).toBeLessThan(0.4);

  await first.close();
  await expect.poll(() => asked.filter((path) => path === '/v1/events').length).toBe(1);
  for (const other of others) {
    await expect(other.getByText('The connection to the server is lost')).toHaveCount(0);
  }
  await context.close();
});

test('the browser had nothing to complain about', () => {
  expect(complaints).toEqual([]);
});
