import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

import type { Plugin } from 'vite';

/** The folder of the package that a module is from; none for our own modules. */
function folderOf(module: string): string | undefined {
  const path = module.replace(/^\0/, '').split('?')[0] ?? '';
  if (!path.includes('/node_modules/')) return undefined;
  for (let folder = dirname(path); folder !== dirname(folder); folder = dirname(folder)) {
    const manifest = join(folder, 'package.json');
    if (existsSync(manifest) && 'version' in read(manifest)) return folder;
  }
  return undefined;
}

function read(manifest: string): { name?: string; version?: string; license?: string } {
  return JSON.parse(readFileSync(manifest, 'utf8')) as ReturnType<typeof read>;
}

/**
 * Writes `licences.txt` beside what is built: name, version and licence of every package of which
 * something is in it, fonts included.
 */
export function licences(fonts = '@fontsource'): Plugin {
  return {
    name: 'licences',
    apply: 'build',
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const part of Object.values(bundle)) {
        const modules = part.type === 'chunk' ? Object.keys(part.modules) : part.originalFileNames;
        for (const module of modules) {
          const folder = folderOf(part.type === 'chunk' ? module : resolve(module));
          if (folder !== undefined) folders.add(folder);
        }
      }
      if (![...folders].some((folder) => folder.includes(fonts))) {
        this.error(`nothing of ${fonts} was found in what was built`);
      }
      const texts = [...folders].sort().map((folder) => {
        const manifest = read(join(folder, 'package.json'));
        const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
        if (file === undefined) this.error(`${folder} has no file with its licence`);
        const text = readFileSync(join(folder, file), 'utf8').trim();
        return `${manifest.name} ${manifest.version} (${manifest.license})\n\n${text}\n`;
      });
      const source = texts.join(`\n${'-'.repeat(80)}\n\n`);
      this.emitFile({ type: 'asset', fileName: 'licences.txt', source });
    },
  };
}
