/** Marks: a state as a symbol and a word. Colour only repeats what the symbol says. */

import { html } from './view.js';

/** @typedef {'good' | 'wait' | 'work' | 'warn' | 'bad' | 'none'} Tone */

/** @type {Record<Tone, string>} */
const SYMBOLS = { good: '●', wait: '○', work: '◐', warn: '▲', bad: '✕', none: '–' };

/** @type {Record<string, Tone>} */
const TONES = {
  Completed: 'good', Truncated: 'warn', Failed: 'bad', InfraFailed: 'bad', Cancelled: 'none', Queued: 'wait', Running: 'work',
  Exhausted: 'warn', Expired: 'warn', Pending: 'wait', Draining: 'warn', Ready: 'good', Starting: 'work', Ended: 'none',
  Complete: 'good', Updating: 'work', Superseded: 'none', informative: 'good', Done: 'good', Waiting: 'wait', Ordered: 'work',
};

/** @param {string} word @returns {Tone} */
export const toneOf = (word) => TONES[word] ?? 'none';

/** @param {{tone?: Tone, word: string, title?: string}} props */
export function Mark({ tone, word, title }) {
  const of = tone ?? toneOf(word);
  return html`<span class=${`mark ${of}`} title=${title}><span aria-hidden="true">${SYMBOLS[of]}</span> ${word}</span>`;
}
