import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import globals from 'globals';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['dist', 'test-results', 'contract/schema.ts'] },
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser, ...globals.node } } },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: { parserOptions: { parser: ts.parser } },
  },
  {
    rules: {
      // TypeScript knows better what is there.
      'no-undef': 'off',
      eqeqeq: 'error',
      // Maps in the state are replaced, never changed ($state.raw).
      'svelte/prefer-svelte-reactivity': 'off',
      // The router's links are hashes.
      'svelte/no-navigation-without-resolve': 'off',
    },
  },
);
