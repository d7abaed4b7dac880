import './styles/tokens.css';
import './styles/base.css';
import './styles/parts.css';

import { mount } from 'svelte';

import App from './App.svelte';
import { scheme } from './state/scheme.svelte';

scheme.apply();

const target = document.getElementById('app');
if (!target) throw new Error('the page has no place for the console');
mount(App, { target });
