/** What tests of pages have in common: an admin who is signed in, and how pages have to look. */
import { AxeBuilder } from '@axe-core/playwright';
import { expect, type Browser, type Page } from '@playwright/test';

/** That of the first user, whom `console.spec.ts` or `newcomer.spec.ts` makes. */
export const PASSWORD = 'correct horse battery';

/** The pool that they make. */
export const pool = process.env['MILLPOND_POOL'] ?? '';

/** A page of an admin; what the browser complains about comes into the list. */
export async function signedIn(browser: Browser, complaints: string[]): Promise<Page> {
  // axe wants a context that is made by itself.
  const context = await browser.newContext();
  const page = await context.newPage();
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    const isOurs = !message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && isOurs) complaints.push(message.text());
  });
  await page.goto('/');
  await page.getByLabel('User name').fill('admin');
  await page.getByLabel('Password').fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await expect(page.getByRole('heading', { level: 1 })).toHaveText('Overview');
  return page;
}

/** Opens a page, and waits until all of it is there. */
export async function go(page: Page, path: string): Promise<void> {
  await page.goto(`/${path}`);
  await expect(page.locator('h1')).toBeVisible();
  await expect(page.getByText('Loading…')).toHaveCount(0);
}

/** Asks the server as a page does; what it answers. */
export async function ask(page: Page, path: string, body: object): Promise<unknown> {
  const { status, text } = await page.evaluate(
    async ([where, what]) => {
      const info = await fetch('/v1/session/info', { method: 'POST', body: '{}' });
      const { csrf } = (await info.json()) as { csrf: string };
      const headers = { 'X-Millpond-CSRF': csrf, 'Content-Type': 'application/json' };
      const answer = await fetch(where ?? '', { method: 'POST', headers, body: what ?? '' });
      return { status: answer.status, text: await answer.text() };
    },
    [path, JSON.stringify(body)],
  );
  expect(status, `${path}: ${text}`).toBe(200);
  return JSON.parse(text);
}

/** Neither in light nor in dark, nor on a phone, is anything wrong with what is there. */
export async function look(page: Page, what: string): Promise<void> {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    const axe = new AxeBuilder({ page });
    // All else is the same in the dark.
    const rules = colorScheme === 'dark' ? axe.withRules(['color-contrast']) : axe;
    const { violations } = await rules.analyze();
    const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
    expect(
      grave.map(({ id, nodes }) => `${id}: ${nodes[0]?.html} ${nodes[0]?.failureSummary}`),
      `${what}, ${colorScheme}`,
    ).toEqual([]);
  }
  await page.setViewportSize({ width: 360, height: 780 });
  const over = await page.evaluate(() =>
    Math.max(
      ...[document.documentElement, ...document.querySelectorAll('dialog')].map(
        (element) => element.scrollWidth - element.clientWidth,
      ),
    ),
  );
  expect(over, what).toBeLessThanOrEqual(0);
  await page.setViewportSize({ width: 1280, height: 800 });
}
