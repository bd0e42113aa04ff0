/** The list of batches; two batches side by side. */

import { url } from './api.js';
import { Batch } from './batch.js';
import { StepCharts, useSteps } from './batch_steps.js';
import { count, decimal, duration, percent, share, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { go, link, namespaceOf, ns } from './route.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

/** @param {{route: import('./route.js').Route}} props */
export function Batches({ route }) {
  if (route.path.length > 2) return html`<${Two} route=${route} />`;
  return route.path.length > 1 ? html`<${Batch} route=${route} />` : html`<${All} route=${route} />`;
}

/** @param {{route: import('./route.js').Route}} props */
function All({ route }) {
  const namespace = namespaceOf(route);
  const answer = usePoll(url('/v1/batches', { namespace, limit: 200 }), 5);
  const marked = (route.query.mark ?? '').split(',').filter(Boolean);
  /** @param {string} id */
  const mark = (id) => go(link(['batches'], { ns: ns(namespace), mark: (marked.includes(id) ? marked.filter((m) => m !== id) : [...marked, id].slice(-2)).join(',') }), true);
  return html`<h1>Trainings and batches</h1>
    <p>${marked.length === 2 ? html`<a href=${link(['batches', ...marked], { ns: ns(namespace) })}>Show ${marked[0]} and ${marked[1]} side by side</a>` : html`<span class="dim">Mark two batches to see them side by side.</span>`}</p>
    <${Loaded} of=${answer} what="batches">${(/** @type {any} */ d) => html`<${Table} caption="Batches, newest first" rows=${d.batches} keyOf=${(/** @type {any} */ b) => b.id} mark=${(/** @type {any} */ b) => (marked.includes(b.id) ? 'chosen' : '')}
      empty=${html`No batch is stored in this namespace. <code>client.batch(BatchRequest(…))</code> or <code>POST /v1/batches</code> makes one.`} columns=${[
        { head: 'Mark', cell: (/** @type {any} */ b) => html`<input type="checkbox" aria-label=${`Mark ${b.id}`} checked=${marked.includes(b.id)} onChange=${() => mark(b.id)} />` },
        { head: 'Batch', main: true, cell: (/** @type {any} */ b) => html`<a href=${link(['batches', b.id], { ns: ns(namespace) })}>${b.id}</a>` },
        { head: 'Status', cell: (/** @type {any} */ b) => html`<${Mark} word=${b.status} />` },
        { head: 'Series', cell: (/** @type {any} */ b) => (b.series === b.id ? html`<span class="dim">itself</span>` : b.series) },
        { head: 'Pool', cell: (/** @type {any} */ b) => b.pool },
        { head: 'Delivered', figure: true, title: 'groups delivered / target', cell: (/** @type {any} */ b) => html`${count(b.delivered)}${b.target === null ? '' : html`<span class="dim">/${count(b.target)}</span>`}` },
        { head: 'Used', figure: true, title: 'acknowledged by the trainer', cell: (/** @type {any} */ b) => count(b.acknowledged) },
        { head: 'In flight', figure: true, cell: (/** @type {any} */ b) => count(b.in_flight) },
        { head: 'Informative', figure: true, title: 'groups whose rewards differ, of those with a verdict and at least two rewards', cell: (/** @type {any} */ b) => percent(b.informative_share) },
        { head: 'Wasted', figure: true, title: 'share of the sampled tokens that is in no delivered group', cell: (/** @type {any} */ b) => percent(share(b.wasted_tokens, b.wasted_tokens + b.delivered_tokens)) },
        { head: 'Staleness', figure: true, title: 'mean training steps between draw and use', cell: (/** @type {any} */ b) => decimal(b.staleness_mean) },
        { head: 'To target', figure: true, cell: (/** @type {any} */ b) => duration(b.seconds_to_target) },
        { head: 'Created', cell: (/** @type {any} */ b) => html`<${Time} at=${b.created_at} />` },
        { head: 'Waits for', wide: true, cell: (/** @type {any} */ b) => visible(b.waiting ?? '') },
      ]} />`}<//>`;
}

/** @param {{route: import('./route.js').Route}} props */
function Two({ route }) {
  const namespace = namespaceOf(route);
  const [first, second] = [route.path[1], route.path[2]];
  const [a, b] = [usePoll(url(`/v1/batches/${encodeURIComponent(first)}`, { namespace }), 10), usePoll(url(`/v1/batches/${encodeURIComponent(second)}`, { namespace }), 10)];
  const apart = a.data?.series !== b.data?.series; // two batches of one series are steps of one training
  const [sa, sb] = [useSteps(namespace, first, apart), useSteps(namespace, second, apart)];
  /** @type {[string, (b: any) => string][]} */
  const rows = [
    ['Status', (v) => v.status], ['Series', (v) => v.series], ['Pool', (v) => v.pool], ['Rollouts in a group', (v) => count(v.n)], ['Delivered groups', (v) => count(v.delivered)], ['Drawn groups', (v) => count(v.drawn)],
    ['Held back: all low', (v) => count(v.filtered.all_low)], ['Held back: all high', (v) => count(v.filtered.all_high)], ['Held back: other', (v) => count(v.filtered.other)], ['Faulty groups', (v) => count(v.faulty)],
    ['Informative share', (v) => percent(v.informative_share)], ['Delivered tokens', (v) => count(v.delivered_tokens)], ['Wasted tokens', (v) => count(v.wasted_tokens)],
    ['Staleness', (v) => decimal(v.staleness_mean)], ['Bias in seconds', (v) => decimal(v.bias.seconds)], ['Time to target', (v) => duration(v.seconds_to_target)],
  ];
  /** @param {import('./poll.js').Answer} of */
  const cell = (of) => (/** @type {[string, (b: any) => string]} */ [, make]) => (of.data ? make(of.data) : UNKNOWN);
  const to = (/** @type {string} */ id) => html`<a href=${link(['batches', id], { ns: ns(namespace) })}>${id}</a>`;
  return html`<h1><span class="kind">Batches</span> ${to(first)} <span class="kind">and</span> ${to(second)}</h1>
    ${[a, b].map((one, i) => one.error && html`<p key=${i} class="problem">${route.path[1 + i]}: ${one.error.message}</p>`)}
    <${Table} caption="Two batches" fit rows=${rows} keyOf=${(/** @type {any} */ r) => r[0]} columns=${[
      { head: '', main: true, cell: (/** @type {any} */ r) => r[0] }, { head: first, figure: true, cell: cell(a) }, { head: second, figure: true, cell: cell(b) },
    ]} />
    <${StepCharts} answers=${[{ name: first, answer: sa }, { name: second, answer: sb }]} />`;
}
