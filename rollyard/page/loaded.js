/** Answers that may be missing: what is not known says so, with the reason. */

import { timeOfDay } from './format.js';
import { useLive } from './live.js';
import { html } from './view.js';

/** Draw an answer, or say why there is none.
 * @param {{of: import('./poll.js').Answer, what: string, children: (data: any) => unknown}} props */
export function Loaded({ of, what, children }) {
  if (of.data === undefined && !of.error) return html`<p class="dim">Reading ${what} …</p>`;
  return html`<${Missed} of=${of} what=${what} />${of.data !== undefined && children(of.data)}`;
}

/** Say that there is no newer answer, and of when the shown one is. @param {{of: import('./poll.js').Answer, what: string}} props */
export function Missed({ of, what }) {
  const { connected } = useLive((now) => now.connected);
  if (!of.error) return null;
  const told = !connected && of.error.isAway; // the head of the page says why, and since when
  if (told) return of.data === undefined ? html`<p class="dim" role="status">Not known: ${what}.</p>` : null;
  return html`<p class="problem" role="status">${why(of, what)}</p>`;
}

/** @param {import('./poll.js').Answer} of @param {string} what */
function why(of, what) {
  if (of.error?.isUnknownRoute) return `Not known: this server has no ${what}. A newer release has.`;
  const text = sentence(of.error?.message ?? '');
  return of.at === undefined ? `Not known: ${what}. ${text}` : `${text} What you see of ${what} is from ${timeOfDay(of.at)}.`;
}

/** @param {string} text */
const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}` : '');
