/** The spread of some rewards: mean, deviation, and a strip with one mark for each. */

import { decimal } from './format.js';
import { html } from './view.js';

/** @param {number[]} values @returns {{mean: number, deviation: number, least: number, most: number} | undefined} */
export function spreadOf(values) {
  if (!values.length) return undefined;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const deviation = Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length);
  return { mean, deviation, least: Math.min(...values), most: Math.max(...values) };
}

/** @param {{values: number[], label: string}} props */
export function Strip({ values, label }) {
  const least = Math.min(0, ...values);
  const most = Math.max(1, ...values);
  const x = (/** @type {number} */ v) => 6 + (188 * (v - least)) / (most - least);
  /** @type {Map<number, number>} */
  const seen = new Map();
  return html`<svg class="strip" viewBox="0 0 200 34" role="img" aria-label=${`${label}: ${values.map((v) => decimal(v)).join(', ')}`}>
    <line x1="6" x2="194" y1="22" y2="22" class="axis" />
    ${values.map((v, i) => { const n = seen.get(v) ?? 0; seen.set(v, n + 1); return html`<circle key=${i} cx=${x(v)} cy=${19 - Math.min(n, 4) * 3.4} r="2.6" class="dot" />`; })}
    <text x="6" y="32">${decimal(least)}</text><text x="194" y="32" text-anchor="end">${decimal(most)}</text></svg>`;
}
