/** Tables of a list: columns with a head, right-aligned figures, a caption for readers of screens. */

import { html } from './view.js';

/**
 * @typedef {object} Column
 * @property {string} head
 * @property {(row: any) => unknown} cell
 * @property {boolean} [figure] right-aligned
 * @property {boolean} [main] header of its row
 * @property {boolean} [wide] may wrap, and takes the rest of the width
 * @property {string} [title] what the column means
 */

/** @param {{caption: string, columns: Column[], rows: any[], keyOf: (row: any) => string, empty?: unknown, mark?: (row: any) => string, fit?: boolean, stack?: boolean}} props fit: no wider than its content.
 * stack: in a narrow window the wide column is below the others of its row */
export function Table({ caption, columns, rows, keyOf, empty, mark, fit, stack }) {
  if (!rows.length) return html`<p class="empty">${empty ?? 'There are none.'}</p>`;
  const kind = (/** @type {Column} */ c) => [c.figure ? 'figure' : '', c.wide ? 'wide' : ''].join(' ').trim() || undefined;
  return html`<div class=${`scroll${fit ? ' fit' : ''}${stack ? ' stack' : ''}`} role="region" aria-label=${caption} tabindex="0"><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map((c) => html`<th scope="col" class=${kind(c)} title=${c.title}>${c.head}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)} class=${mark?.(row)}>${columns.map((c) => (c.main
      ? html`<th scope="row" class=${kind(c)}>${c.cell(row)}</th>`
      : html`<td class=${kind(c)} data-head=${stack ? c.head : undefined}>${c.cell(row)}</td>`))}</tr>`)}</tbody>
  </table></div>`;
}

/** Pairs of a name and a value. @param {{pairs: [string, unknown][]}} props */
export function Facts({ pairs }) {
  return html`<dl class="facts">${pairs.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
