/** Allocations on one axis of time: pending, starting, running, draining, ended; the end of the walltime and the successor. */

import { clock, duration, timeOfDay } from './format.js';
import { link, ns } from './route.js';
import { message } from './visible_text.js';
import { html, memo, useLayoutEffect, useRef } from './view.js';

const [W, LANE, LEFT, TOP] = [1200, 20, 190, 20];
/** Colour of a job that was ready once. @type {Record<string, string>} */
const COLOURS = { draining: 'draining', ending: 'draining', suspended: 'silent', 'not ready': 'silent' };
const STEPS = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];

/** @typedef {import('./allocation_state.js').Followed} Followed */

/** Where a time is on the axis. @param {number} at @param {number} from @param {number} to */
const place = (at, from, to) => LEFT + (Math.min(Math.max(at, from), to) - from) / (to - from) * (W - LEFT - 6);

/** @param {{spans: Followed[], from: number, to: number, now: number}} props */
export function Timeline({ spans, from, to, now }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => { // in a narrow window, the present is in sight
    const element = /** @type {HTMLElement} */ (box.current);
    element.scrollLeft = place(now, from, to) / W * element.scrollWidth - element.clientWidth * 0.7;
  }, []);
  const px = (/** @type {number} */ at) => place(at, from, to);
  const height = TOP + spans.length * LANE + 6;
  const step = STEPS.find((s) => (to - from) / s <= 9) ?? 604800;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t < to; t += step) ticks.push(t);
  return html`<figure class="timeline"><div class="scroll" ref=${box} tabindex="0" role="region" aria-label="Time axis of allocations">
    <svg viewBox="0 0 ${W} ${height}" role="group" aria-label=${`${spans.length} allocations from ${clock(from)} to ${clock(to)}; the table below has the same`}>
      ${ticks.map((t) => html`<g key=${t}><line class="grid" x1=${px(t)} x2=${px(t)} y1=${TOP - 4} y2=${height} /><text x=${px(t)} y=${TOP - 8} text-anchor="middle">${step >= 86400 ? clock(t).slice(5, 10) : clock(t).slice(11, 16)}</text></g>`)}
      ${spans.map((s, i) => html`<g key=${`${s.name}/${s.job}`} transform=${`translate(0 ${TOP + i * LANE})`}><${Lane} s=${s} from=${from} to=${to} now=${now} /></g>`)}
      <line class="nowline" x1=${px(now)} x2=${px(now)} y1=${TOP - 4} y2=${height} />
    </svg></div>
    <figcaption><span class="legend">${[['pending', 'waits in Slurm'], ['starting', 'starting'], ['running', 'ready'], ['silent', 'not ready any more'], ['draining', 'draining'], ['ended', 'was ready, has ended'], ['failed', 'ended by a fault']].map(([k, text]) => html`<span key=${k}><svg class="key" width="16" height="10" aria-hidden="true"><rect class=${k} width="16" height="10" rx="2" /></svg>${text}</span>`)}
      <span><svg class="key" width="16" height="10" aria-hidden="true"><rect class="rest" x="1" y="1" width="14" height="8" /></svg>rest of the walltime</span>
      <span><svg class="key" width="12" height="12" aria-hidden="true"><path class="planned" d="M6 1L11 6L6 11L1 6Z" /></svg>a successor takes over</span></span></figcaption></figure>`;
}

const Lane = memo((/** @type {{s: Followed, from: number, to: number, now: number}} */ { s, from, to, now }) => {
  const px = (/** @type {number} */ at) => place(at, from, to);
  const end = s.ended ?? now;
  const start = s.started ?? end;
  const ready = s.ready !== undefined && s.ready >= start ? s.ready : undefined;
  const bar = (/** @type {string} */ kind, /** @type {number | undefined} */ a, /** @type {number} */ b, /** @type {string} */ text) => (a === undefined || b <= a || px(b) - px(a) <= 0 ? null
    : html`<rect class=${kind} x=${px(a)} y="3" width=${Math.max(px(b) - px(a), 1.5)} height="13" rx="2"><title>${`${s.name}: ${text}, ${duration(b - a)} from ${timeOfDay(a)}`}</title></rect>`);
  const [over, reason, next] = [s.ended !== undefined, message(s.reason), s.planned?.take_over_at];
  const main = over ? s.state : COLOURS[s.state] ?? 'running';
  return html`<a href=${link(['allocations', s.name], { ns: ns(s.namespace) })}><text class="name" x="2" y="14">${s.name.length > 28 ? `${s.name.slice(0, 26)}…` : s.name}</text></a>
    ${bar('pending', s.submitted, start, s.jobState === 'PENDING' ? `pending ${reason}` : 'was pending')}
    ${s.started !== undefined && bar(over && ready === undefined ? main : 'starting', s.started, ready ?? end, over && ready === undefined ? `ended ${s.jobState} ${reason}` : 'starting')}
    ${ready !== undefined && bar(main, ready, end, over ? `ended ${s.jobState} ${reason}` : s.state)}
    ${!over && s.walltimeEnd !== undefined && bar('rest', now, s.walltimeEnd, `walltime ends at ${clock(s.walltimeEnd)}${next ? `, a successor takes over about ${clock(next)}` : ''}; the rest`)}
    ${next && next > now - 60 && html`<path class="planned" d=${`M${px(next)} 4l5 5.5l-5 5.5l-5-5.5Z`}><title>${`${s.name}: a successor takes over about ${clock(next)}`}</title></path>`}`;
});
