/** Tables of a list: columns with a head, right-aligned figures, a caption for readers of screens. */

import { useGrowing } from './growing.js';
import { html, memo } from './view.js';

const PIECE = 100; // rows

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
  const drawn = useGrowing(rows.length, PIECE);
  if (!rows.length) return html`<p class="empty">${empty ?? 'There are none.'}</p>`;
  return html`<div class=${`scroll${fit ? ' fit' : ''}${stack ? ' stack' : ''}`} role="region" aria-label=${caption} tabindex="0"><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map((c) => html`<th scope="col" class=${classOf(c)} title=${c.title}>${c.head}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, drawn).map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${columns} mark=${mark?.(row)} stack=${stack} />`)}</tbody>
  </table></div>`;
}

/** @param {Column} c */
const classOf = (c) => [c.figure ? 'figure' : '', c.wide ? 'wide' : ''].join(' ').trim() || undefined;

/** One row. Where the columns are always the same, only a row that has changed is drawn again. */
const Row = memo((/** @type {{row: any, columns: Column[], mark?: string, stack?: boolean}} */ { row, columns, mark, stack }) => html`<tr class=${mark}>${columns.map((c) => (c.main
  ? html`<th scope="row" class=${classOf(c)}>${c.cell(row)}</th>`
  : html`<td class=${classOf(c)} data-head=${stack ? c.head : undefined}>${c.cell(row)}</td>`))}</tr>`);

/** Pairs of a name and a value. @param {{pairs: [string, unknown][]}} props */
export function Facts({ pairs }) {
  return html`<dl class="facts">${pairs.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
