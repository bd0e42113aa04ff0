/** Answers that may be missing: what is not known says so, with the reason. */

import { timeOfDay } from './format.js';
import { live } from './live.js';
import { html } from './view.js';

/** Draw an answer, or say why there is none.
 * @param {{of: import('./poll.js').Answer, what: string, children: (data: any) => unknown}} props */
export function Loaded({ of, what, children }) {
  const told = !live.connected && of.error?.isAway; // the head of the page says why, and since when
  const note = of.error && (told ? of.data === undefined && html`<p class="dim" role="status">Not known: ${what}.</p>` : html`<p class="problem" role="status">${why(of, what)}</p>`);
  if (of.data === undefined) return note || html`<p class="dim">Reading ${what} …</p>`;
  return html`${note}${children(of.data)}`;
}

/** @param {import('./poll.js').Answer} of @param {string} what */
function why(of, what) {
  if (of.error?.isUnknownRoute) return `Not known: this server has no ${what}. A newer release has.`;
  const text = sentence(of.error?.message ?? '');
  return of.at === undefined ? `Not known: ${what}. ${text}` : `${text} What you see of ${what} is from ${timeOfDay(of.at)}.`;
}

/** @param {string} text */
const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}` : '');
