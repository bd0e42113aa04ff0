/** What has changed in a pool's template, revision by revision. */

import { Table } from './table.js';
import { Time } from './time.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

/** @param {{pool: any}} props */
export function Revisions({ pool }) {
  const kept = pool.status?.revisions ?? [];
  const rows = kept.map((/** @type {any} */ one, /** @type {number} */ i) => ({ ...one, changes: i ? [...changes(kept[i - 1].template, one.template)] : null })).reverse();
  return html`<section><h2>Revisions</h2><${Table} stack caption="Revisions, newest first" rows=${rows} keyOf=${(/** @type {any} */ r) => String(r.number)}
    empty="None yet: no allocation was made from a template." columns=${[
      { head: 'Revision', main: true, cell: (/** @type {any} */ r) => r.number },
      { head: 'When', cell: (/** @type {any} */ r) => html`<${Time} at=${r.time} />` },
      { head: 'Changed', wide: true, cell: (/** @type {any} */ r) => (r.changes ? r.changes.map((/** @type {string} */ c) => html`<div key=${c}><code>${visible(c)}</code></div>`) : r.number === 1 ? 'the first' : 'not known: it is the oldest one that is kept') },
    ]} />
    <p class="dim">A revision is a template from which the pool's allocations were made. A change of the size makes none. <code>rollyard undo</code> gives the pool the template of an earlier one.</p></section>`;
}

/** The fields that differ, with their values. @param {any} before @param {any} after @param {string} [path] @returns {Generator<string>} */
export function* changes(before, after, path = '') {
  if (!isObject(before) || !isObject(after)) {
    if (JSON.stringify(before) !== JSON.stringify(after)) yield `${path}: ${text(before)} \u2192 ${text(after)}`;
    return;
  }
  for (const name of [...new Set([...Object.keys(before), ...Object.keys(after)])].sort()) yield* changes(before[name], after[name], path ? `${path}.${name}` : name);
}

/** @param {any} value */
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** @param {any} value */
const text = (value) => (value === undefined ? 'not set' : JSON.stringify(value));
