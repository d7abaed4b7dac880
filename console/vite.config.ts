import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

import { compress } from './scripts/compress';
import { licences } from './scripts/licences';

// Where `npm run dev` finds a server: one that runs on this machine, whose certificate is its own.
const server = process.env['MILLPOND_URL'] ?? 'https://127.0.0.1:8443';

export default defineConfig({
  plugins: [svelte(), licences(), compress()],
  server: {
    host: '127.0.0.1',
    proxy: { '/v1': { target: server, secure: false, changeOrigin: true } },
  },
  build: {
    target: 'es2022',
    // The page's policy allows files of its own origin, and no `data:`.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
});
