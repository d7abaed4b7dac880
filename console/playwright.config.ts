import { defineConfig } from '@playwright/test';

/** A server to test: its address. The test `browser` of crate `cli` starts one. */
const url = process.env['MILLPOND_URL'] ?? 'https://127.0.0.1:8443/';

export default defineConfig({
  testDir: 'tests',
  // One server, whose state goes from test to test.
  workers: 1,
  fullyParallel: false,
  retries: 0,
  timeout: 120_000,
  expect: { timeout: 30_000 },
  reporter: [['list']],
  outputDir: process.env['MILLPOND_RESULTS'] ?? 'test-results',
  use: {
    baseURL: url,
    // The certificate is the server's own.
    ignoreHTTPSErrors: true,
    locale: 'en-GB',
    actionTimeout: 30_000,
    launchOptions: {
      executablePath: process.env['MILLPOND_CHROMIUM'] ?? '/usr/bin/chromium',
      // Root, as which CI runs, has no sandbox.
      args: ['--no-sandbox'],
    },
  },
});
