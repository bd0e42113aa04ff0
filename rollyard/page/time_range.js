/** The choice of how much of the past a view shows. It is the word `hours` of the view's address. */

import { link } from './route.js';
import { html } from './view.js';

/** @type {[number, string][]} */
const RANGES = [[1, '1 hour'], [6, '6 hours'], [24, '1 day'], [168, '1 week'], [720, '30 days']];

/** @param {import('./route.js').Route} route @param {number} [usual] */
export function hoursOf(route, usual = 1) {
  const given = Number(route.query.hours);
  return given > 0 && given <= 24 * 366 ? given : usual;
}

/** @param {{route: import('./route.js').Route, usual?: number}} props */
export function TimeRange({ route, usual = 1 }) {
  const now = hoursOf(route, usual);
  return html`<p class="choice" role="group" aria-label="Time shown">Shown ${RANGES.map(([hours, text]) => html` <a key=${hours} href=${link(route.path, { ...route.query, hours: hours === usual ? undefined : hours })} aria-current=${hours === now ? 'true' : undefined}>${text}</a>`)}</p>`;
}
