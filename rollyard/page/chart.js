/** A chart of series over time or over steps. A value that is not known is a gap. */

import { clock, count, decimal, known } from './format.js';
import { html, useState } from './view.js';

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {(number | null | undefined)[]} y one for each x
 * @property {(number | null | undefined)[]} [low] with `high`: a band around the line
 * @property {(number | null | undefined)[]} [high]
 * @property {boolean} [steps] true: the value holds until the next one
 */
/** @typedef {{x: number, text: string}} Note something that happened at x */

const [W, H, RIGHT, TOP, BOTTOM] = [460, 150, 8, 8, 18];
const LEAST_LEFT = 40;
const LABEL_GAP = 6;
const FONT = '10px system-ui, "DejaVu Sans", sans-serif'; // as `svg text` of style.css
const TIME_STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** @param {{title: string, x: number[], series: Series[], time?: boolean, from?: number, to?: number, notes?: Note[], format?: (v: unknown) => string, most?: number, xName?: string}} props */
export function Chart({ title, x, series, time = false, from, to, notes = [], format = (v) => decimal(v), most, xName = 'step' }) {
  const [at, setAt] = useState(-1);
  const values = series.flatMap((s) => [...s.y, ...(s.high ?? []), ...(s.low ?? [])]).filter(known);
  if (!values.length) return html`<figure class="chart"><h3>${title}</h3><p class="empty">Nothing was measured in this time.</p></figure>`;
  const [x0, x1] = [from ?? x[0], Math.max(to ?? x[x.length - 1], (from ?? x[0]) + 1e-9)];
  const [y0, y1, ticks] = scale(Math.min(0, ...values), most ?? Math.max(...values), values.every(Number.isInteger));
  const LEFT = Math.max(LEAST_LEFT, 8 + Math.max(...ticks.map((v) => widthOf(format(v)))));
  const px = (/** @type {number} */ v) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const py = (/** @type {number} */ v) => H - BOTTOM - ((v - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const shown = at >= 0 && at < x.length ? at : -1;
  const near = notes.filter((n) => at >= 0 && Math.abs(px(n.x) - px(x[at])) < 5);
  /** @param {any} event */
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const v = x0 + (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * (x1 - x0);
    setAt(nearest(x, v));
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    setAt(Math.min(Math.max((at < 0 ? x.length : at) + step, 0), x.length - 1));
  };
  const name = (/** @type {number} */ i) => (time ? clock(x[i]) : `${xName} ${x[i]}`);
  return html`<figure class="chart"><h3>${title}<span class="now">${shown >= 0 ? `${name(shown)}: ` : ''}${series.map((s) => `${series.length > 1 ? `${s.name} ` : ''}${format(shown >= 0 ? s.y[shown] : lastOf(s))}`).join(' · ')}</span></h3>
    <svg viewBox="0 0 ${W} ${H}" role="img" tabindex="0" aria-label=${summary(title, series, format)} onPointerMove=${point} onPointerLeave=${() => setAt(-1)} onKeyDown=${key} onBlur=${() => setAt(-1)}>
      ${ticks.map((v) => html`<g key=${v}><line class="grid" x1=${LEFT} x2=${W - RIGHT} y1=${py(v)} y2=${py(v)} /><text x=${LEFT - 5} y=${py(v) + 3} text-anchor="end">${format(v)}</text></g>`)}
      ${apart(xTicks(x0, x1, time).map(([v, text]) => [Math.min(px(v), W - 1 - widthOf(text) / 2), text])).map(([at, text]) => html`<text key=${text} x=${at} y=${H - 5} text-anchor="middle">${text}</text>`)}
      ${notes.filter((n) => n.x >= x0 && n.x <= x1).map((n, i) => html`<line key=${i} class="event" x1=${px(n.x)} x2=${px(n.x)} y1=${TOP} y2=${H - BOTTOM}><title>${n.text}</title></line>`)}
      ${series.map((s, i) => html`<g key=${s.name}>
        ${s.low && s.high && html`<path class=${`band s${i % 6}`} d=${band(x, s.low, s.high, px, py)} />`}
        <path class=${`line s${i % 6}`} d=${line(x, s.y, px, py, s.steps)} />
        ${x.length <= 60 && s.y.map((v, j) => known(v) && alone(s.y, j) && html`<circle key=${j} class=${`s${i % 6}`} cx=${px(x[j])} cy=${py(v)} r="2" />`)}</g>`)}
      ${at >= 0 && html`<line class="cursor" x1=${px(x[at])} x2=${px(x[at])} y1=${TOP} y2=${H - BOTTOM} />`}
    </svg>
    <figcaption aria-live="off">${series.length > 1 && html`<span class="legend">${series.map((s, i) => html`<span key=${s.name}><svg class="key" width="22" height="8" aria-hidden="true"><path class=${`line s${i % 6}`} d="M1 4H21" /></svg>${s.name}</span>`)}</span>`}
      ${near.length > 0 && near.map((n, i) => html`<div key=${i}>${n.text}</div>`)}</figcaption>
  </figure>`;
}

/** The last value that is known; undefined if there is none. @param {Series} series */
const lastOf = (series) => series.y.filter(known).pop();

/** @type {CanvasRenderingContext2D | null} */
let pen = null;

/** Width of a label in the chart's units. @param {string} text */
function widthOf(text) {
  pen ??= document.createElement('canvas').getContext('2d');
  if (!pen) return text.length * 7;
  pen.font = FONT;
  return pen.measureText(text).width;
}

/** Labels that do not touch each other; the last one stays. @param {[number, string][]} labels @returns {[number, string][]} */
function apart(labels) {
  /** @type {[number, string][]} */
  const found = [];
  for (const [at, text] of labels.reverse()) {
    const next = found[0];
    if (!next || at + widthOf(text) / 2 + LABEL_GAP < next[0] - widthOf(next[1]) / 2) found.unshift([at, text]);
  }
  return found;
}

/** @param {string} title @param {Series[]} series @param {(v: unknown) => string} format */
function summary(title, series, format) {
  return `${title}. ${series.map((s) => { const v = s.y.filter(known); return `${s.name}: ${v.length ? `last ${format(v[v.length - 1])}, least ${format(Math.min(...v))}, greatest ${format(Math.max(...v))}` : 'not known'}`; }).join('; ')}. Arrow keys read the values.`;
}

/** @param {(number | null | undefined)[]} y @param {number} i */
const alone = (y, i) => !known(y[i - 1]) || !known(y[i + 1]) || y.length <= 40;

/** @param {number[]} x @param {number} v */
function nearest(x, v) {
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < v) low = middle + 1;
    else high = middle;
  }
  return low > 0 && v - x[low - 1] < x[low] - v ? low - 1 : low;
}

/** Round bounds with at most six lines. @param {number} low @param {number} high @param {boolean} [whole] lines at whole numbers only @param {number} [parts] @returns {[number, number, number[]]} */
function scale(low, high, whole = false, parts = 4) {
  const span = Math.max(high - low, Math.abs(high) * 1e-6, 1e-9);
  const raw = span / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999 && (!whole || Number.isInteger(s))) ?? Math.max(power * 10, whole ? 1 : 0);
  const first = Math.floor(low / step + 1e-9) * step;
  const ticks = [];
  for (let v = first; v < high + step * 0.999 || ticks.length < 2; v += step) ticks.push(Number(v.toPrecision(12)));
  return [ticks[0], ticks[ticks.length - 1], ticks];
}

/** @param {number} x0 @param {number} x1 @param {boolean} time @returns {[number, string][]} */
function xTicks(x0, x1, time) {
  if (!time) {
    const [, , ticks] = scale(x0, x1, true, 7);
    return [...new Set([...ticks.filter((v) => Number.isInteger(v) && v >= x0 && v <= x1), x1].filter(Number.isInteger))].map((v) => [v, count(v)]);
  }
  const step = TIME_STEPS.find((s) => (x1 - x0) / s <= 6) ?? 604800;
  const zone = new Date(x0 * 1000).getTimezoneOffset() * 60;
  /** @type {[number, string][]} */
  const found = [];
  for (let v = Math.ceil((x0 - zone) / step) * step + zone; v <= x1; v += step) found.push([v, step >= 86400 ? clock(v).slice(5, 10) : clock(v).slice(11, 16)]);
  return found;
}

/** @param {number[]} x @param {(number | null | undefined)[]} y @param {(v: number) => number} px @param {(v: number) => number} py @param {boolean} [steps] */
function line(x, y, px, py, steps) {
  let d = '';
  let open = false;
  for (let i = 0; i < x.length; i += 1) {
    const v = y[i];
    if (known(v)) {
      d += open ? (steps ? `H${px(x[i]).toFixed(1)}V${py(v).toFixed(1)}` : `L${px(x[i]).toFixed(1)} ${py(v).toFixed(1)}`) : `M${px(x[i]).toFixed(1)} ${py(v).toFixed(1)}`;
      open = true;
    } else open = false;
  }
  return d;
}

/** @param {number[]} x @param {(number | null | undefined)[]} low @param {(number | null | undefined)[]} high @param {(v: number) => number} px @param {(v: number) => number} py */
function band(x, low, high, px, py) {
  const there = x.map((_, i) => i).filter((i) => known(low[i]) && known(high[i]));
  if (there.length < 2) return '';
  const up = there.map((i) => `${px(x[i]).toFixed(1)} ${py(/** @type {number} */ (high[i])).toFixed(1)}`);
  const down = there.reverse().map((i) => `${px(x[i]).toFixed(1)} ${py(/** @type {number} */ (low[i])).toFixed(1)}`);
  return `M${up.join('L')}L${down.join('L')}Z`;
}
