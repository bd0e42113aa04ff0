/** The rows of tokens that one sees, as elements. It makes them by hand: at each scroll only the new rows are made. */

import { tokenShape } from './token_rows.js';

export const ROW = 22; // pixels; the style sheet has the same number
const SPARE = 6; // rows drawn beyond the edges

/** The colour of a probability. @param {number} logprob */
function levelOf(logprob) {
  const p = Math.exp(logprob);
  return p >= 0.9 ? 0 : p >= 0.5 ? 1 : p >= 0.1 ? 2 : p >= 0.01 ? 3 : 4;
}

export class TokenPaper {
  /** @param {import('./columns.js').Trajectory} t @param {import('./token_rows.js').TokenLayout} layout @param {string} by what the colours show */
  constructor(t, layout, by) {
    this.t = t;
    this.layout = layout;
    this.by = by;
    this.chosen = -1;
    this.begins = new Set(t.segments.slice(1).map((s) => s.start));
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
  }

  /** Draw the rows in sight. @param {HTMLElement} into @param {number} top @param {number} height */
  draw(into, top, height) {
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(this.layout.rows, Math.ceil((top + height) / ROW) + SPARE);
    for (const [r, element] of this.drawn) {
      if (r >= first && r < last) continue;
      element.remove();
      this.drawn.delete(r);
    }
    const made = document.createDocumentFragment();
    for (let r = first; r < last; r += 1) if (!this.drawn.has(r)) made.append(this.row(r));
    into.append(made);
  }

  /** @param {number} r */
  row(r) {
    const start = this.layout.starts[r];
    const row = document.createElement('div');
    row.className = this.begins.has(start) ? 'row begins' : 'row';
    row.style.top = `${r * ROW}px`;
    const number = document.createElement('span');
    number.className = 'number';
    number.textContent = String(start);
    row.append(number);
    for (let i = start; i < this.layout.end(r); i += 1) {
      const one = document.createElement('span');
      one.className = this.kind(i);
      one.dataset.i = String(i);
      one.textContent = tokenShape(this.layout.texts[i]);
      row.append(one);
    }
    this.drawn.set(r, row);
    return row;
  }

  /** @param {number} i */
  kind(i) {
    const { mask, logprobs, version } = this.t;
    const of = !mask[i] ? 'given' : this.by === 'mask' ? 'sampled' : this.by === 'logprob' ? `p${levelOf(logprobs[i])}` : `v${version[i] % 6}`;
    return `tok ${of}${i === this.chosen ? ' chosen' : ''}`;
  }

  /** Mark a token. @param {number} token -1: none */
  choose(token) {
    const before = this.chosen;
    this.chosen = token;
    for (const i of [before, token]) {
      const r = this.layout.rowOf(i);
      const element = i < 0 ? undefined : this.drawn.get(r)?.children[i - this.layout.starts[r] + 1];
      if (element) element.className = this.kind(i);
    }
  }
}
