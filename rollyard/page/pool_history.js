/** A pool over time: its size with each scaling decision, its queues, its load. */

import { url } from './api.js';
import { Chart } from './chart.js';
import { clock, count, decimal, duration, percent } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { hoursOf, TimeRange } from './time_range.js';
import { html } from './view.js';

const REFRESH_SECONDS = 15;
const POINTS = 240;

/** The address of a history, which stays the same for a while. @param {string} path @param {number} hours @param {Record<string, unknown>} [more] */
export function historyUrl(path, hours, more = {}) {
  const step = Math.max(10, Math.ceil((hours * 3600) / POINTS / 10) * 10);
  const now = Math.floor(Date.now() / 1000 / 60) * 60;
  return url(path, { since: now - hours * 3600, step, ...more });
}

/** @param {{pool: any, route: import('./route.js').Route}} props */
export function PoolHistory({ pool, route }) {
  const { namespace, name } = pool.metadata;
  const hours = hoursOf(route);
  const answer = usePoll(historyUrl(`/v1/history/pools/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, hours, { kind: pool.kind }), REFRESH_SECONDS, `${pool.metadata.uid} ${hours}`);
  return html`<section aria-labelledby="past"><h2 id="past">Over time</h2><${TimeRange} route=${route} />
    <${Loaded} of=${answer} what="history of pools">${(/** @type {any} */ h) => html`<div class="charts">${charts(pool.kind, h)}</div>
      ${recordedFrom(h) > h.since && html`<p class="dim">Measured since ${clock(recordedFrom(h))}.</p>`}
      ${h.decisions.length > 0 && html`<p class="dim">Dashed lines are scaling decisions. Point at one to read its reason; the table below has all.</p>`}`}<//></section>`;
}

/** The first time at which something was measured, so that a new pool's charts are not empty for the most part.
 * @param {{times: number[], since: number}} h @param {any} [metrics] */
export function recordedFrom(h, metrics = /** @type {any} */ (h).metrics) {
  const first = metrics.samples.findIndex((/** @type {number} */ n) => n > 0);
  return first > 0 ? h.times[first] : h.since;
}

/** @param {string} kind @param {any} h */
function charts(kind, h) {
  const m = h.metrics;
  const notes = h.decisions.map((/** @type {any} */ d) => ({ x: d.time, text: `${d.desired} desired: ${d.message}` }));
  const common = { x: h.times, time: true, from: recordedFrom(h), to: h.until };
  /** @param {string} name @param {string} of */
  const mean = (name, of) => ({ name, y: m.mean[of] ?? [] });
  const steps = (/** @type {string} */ of) => ({ name: of, y: m.max[of] ?? [], steps: true });
  const size = html`<${Chart} key="size" title="Allocations" ...${common} notes=${notes} series=${['desired', 'observed', 'ready'].map(steps)} format=${count} />`;
  if (kind === 'InferencePool') {
    return [size,
      html`<${Chart} key="demand" title="Sessions" ...${common} notes=${notes} series=${[mean('demand', 'demand'), mean('live', 'sessions')]} format=${(/** @type {number} */ v) => decimal(v)} />`,
      html`<${Chart} key="rate" title="Tokens per second" ...${common} series=${[mean('sampled', 'tokens_per_second'), mean('prompt', 'prompt_tokens_per_second')]} format=${count} />`,
      html`<${Chart} key="requests" title="Requests in the engines" ...${common} series=${[mean('running', 'running'), mean('waiting', 'waiting')]} />`,
      html`<${Chart} key="kv" title="KV use and prefix hits" ...${common} series=${[mean('KV use', 'kv_usage'), mean('prefix hits', 'prefix_hit_rate')]} format=${percent} most=${1} />`,
      html`<${Chart} key="first" title="Time to the first token" ...${common} series=${[mean('mean', 'first_token_seconds')]} format=${duration} />`];
  }
  /** @param {string} stage */
  const stage = (stage) => html`<${Chart} key=${stage} title=${`${stage.toUpperCase()}: in flight and width`} ...${common} series=${[mean('in flight', `${stage}_in_flight`), mean('width', `${stage}_width`)]} />`;
  return [size,
    html`<${Chart} key="demand" title="Demand: queued and in flight" ...${common} notes=${notes} series=${[mean('demand', 'demand'), mean('queued', 'queued'), mean('in flight', 'in_flight')]} />`,
    html`<${Chart} key="pace" title="Rollouts that ended, per minute" ...${common} series=${[mean('ended', 'ended_per_minute')]} />`,
    stage('init'), stage('run'), stage('eval')];
}
