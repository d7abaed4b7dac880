/** Puts files beside those of the build that are their compressed forms, where these are smaller. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

import type { Plugin } from 'vite';

/** What is compressed already shrinks no more. */
const KINDS = /\.(html|js|css|json|svg|txt|webmanifest)$/;
/** Where less than this is saved it is not worth another file. */
const WORTH = 0.9;

export function compress(): Plugin {
  let directory = '';
  return {
    name: 'compress',
    apply: 'build',
    configResolved(config) {
      directory = join(config.root, config.build.outDir);
    },
    closeBundle() {
      for (const name of readdirSync(directory, { recursive: true, encoding: 'utf8' })) {
        if (!KINDS.test(name)) continue;
        const path = join(directory, name);
        const bytes = readFileSync(path);
        const quality = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY };
        const made = {
          br: brotliCompressSync(bytes, { params: quality }),
          gz: gzipSync(bytes, { level: 9 }),
        };
        for (const [end, smaller] of Object.entries(made)) {
          if (smaller.length < bytes.length * WORTH) writeFileSync(`${path}.${end}`, smaller);
        }
      }
    },
  };
}
