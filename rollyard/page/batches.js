/** The lists of trainings and batches; two batches side by side. */

import { url } from './api.js';
import { Batch } from './batch.js';
import { useSteps } from './batch_steps.js';
import { count, decimal, duration, known, percent, share } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { go, link, namespaceOf, ns } from './route.js';
import { SideBySide } from './side_by_side.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

const LISTED = 200;
const NEWEST = 10;

/** @param {{route: import('./route.js').Route}} props */
export function Batches({ route }) {
  if (route.path.length > 2) return html`<${Two} route=${route} />`;
  return route.path.length > 1 ? html`<${Batch} route=${route} />` : html`<${All} route=${route} />`;
}

/** @param {{route: import('./route.js').Route}} props */
function All({ route }) {
  const namespace = namespaceOf(route);
  const answer = usePoll(url('/v1/batches', { namespace, limit: LISTED }), 5);
  const marked = marksOf(route, 'mark');
  const trainings = marksOf(route, 'training');
  return html`<div><h1>Trainings and batches</h1>
    <${Loaded} of=${answer} what="batches">${(/** @type {any} */ d) => html`<h2>Trainings</h2>
      <${Chosen} kind="trainings" marked=${trainings.marked} namespace=${namespace} />
      <${Trainings} batches=${d.batches} namespace=${namespace} ...${trainings} />
      ${d.batches.length >= LISTED && html`<p class="dim">Of the newest ${count(LISTED)} batches.</p>`}
      <h2>Batches</h2><${Chosen} kind="batches" marked=${marked.marked} namespace=${namespace} />
      <p>${newestMean(d.batches)}</p>
      <${Table} caption="Batches, newest first" rows=${d.batches} keyOf=${(/** @type {any} */ b) => b.id} mark=${(/** @type {any} */ b) => (marked.marked.includes(b.id) ? 'chosen' : '')}
      empty=${html`No batch is stored in this namespace. <code>client.batch(BatchRequest(…))</code> or <code>POST /v1/batches</code> makes one.`} columns=${[
        { head: 'Mark', cell: (/** @type {any} */ b) => html`<input type="checkbox" aria-label=${`Mark ${b.id}`} checked=${marked.marked.includes(b.id)} onChange=${() => marked.mark(b.id)} />` },
        { head: 'Batch', main: true, cell: (/** @type {any} */ b) => html`<a href=${link(['batches', b.id], { ns: ns(namespace) })}>${b.id}</a>` },
        { head: 'Status', cell: (/** @type {any} */ b) => html`<${Mark} word=${b.status} />` },
        { head: 'Training', cell: (/** @type {any} */ b) => html`<a href=${link(['trainings', b.series], { ns: ns(namespace) })}>${b.series}</a>` },
        { head: 'Pool', cell: (/** @type {any} */ b) => b.pool },
        { head: 'Delivered', figure: true, title: 'groups delivered / target', cell: (/** @type {any} */ b) => html`${count(b.delivered)}${b.target === null ? '' : html`<span class="dim">/${count(b.target)}</span>`}` },
        { head: 'Mean reward', figure: true, title: 'of the groups with a verdict, delivered or not', cell: (/** @type {any} */ b) => decimal(b.reward_mean) },
        { head: 'Acknowledged', figure: true, title: 'groups that the trainer has acknowledged; it need not, where a batch has a target', cell: (/** @type {any} */ b) => count(b.acknowledged) },
        { head: 'In flight', figure: true, cell: (/** @type {any} */ b) => count(b.in_flight) },
        { head: 'Informative', figure: true, title: 'groups whose rewards differ, of those with a verdict and at least two rewards', cell: (/** @type {any} */ b) => percent(b.informative_share) },
        { head: 'Wasted', figure: true, title: 'share of the sampled tokens that is in no delivered group', cell: (/** @type {any} */ b) => percent(share(b.wasted_tokens, b.wasted_tokens + b.delivered_tokens)) },
        { head: 'Staleness', figure: true, title: 'mean number of training steps between a group\'s draw and the step that uses it', cell: (/** @type {any} */ b) => decimal(b.staleness_mean) },
        { head: 'To target', figure: true, cell: (/** @type {any} */ b) => duration(b.seconds_to_target) },
        { head: 'Created', cell: (/** @type {any} */ b) => html`<${Time} at=${b.created_at} />` },
        { head: 'Waits for', wide: true, cell: (/** @type {any} */ b) => message(b.waiting ?? '') },
      ]} />`}<//></div>`;
}

/** The mean of the mean rewards of the newest batches, in words. @param {any[]} batches newest first */
function newestMean(batches) {
  const means = batches.slice(0, NEWEST).map((b) => b.reward_mean).filter(known);
  const all = `${count(batches.length)}${batches.length >= LISTED ? ' or more' : ''} ${batches.length === 1 ? 'batch' : 'batches'}`;
  return means.length ? `${all}. Mean of the mean rewards of the newest ${means.length}: ${decimal(means.reduce((a, b) => a + b, 0) / means.length)}.` : `${all}.`;
}

/** At most two names in a field of the address, and a function that adds or removes one. @param {import('./route.js').Route} route @param {string} field */
function marksOf(route, field) {
  const marked = (route.query[field] ?? '').split(',').filter(Boolean);
  /** @param {string} id */
  const mark = (id) => go(link(['batches'], { ...route.query, [field]: (marked.includes(id) ? marked.filter((m) => m !== id) : [...marked, id].slice(-2)).join(',') }), true);
  return { marked, mark };
}

/** @param {{kind: string, marked: string[], namespace: string}} props */
function Chosen({ kind, marked, namespace }) {
  return html`<p>${marked.length === 2 ? html`<a href=${link([kind, ...marked], { ns: ns(namespace) })}>Show ${marked[0]} and ${marked[1]} side by side</a>` : html`<span class="dim">Mark two ${kind} to see them side by side.</span>`}</p>`;
}

/** Series of several batches, or with a name of their own, from the listed batches. @param {any[]} batches newest first */
function trainingsOf(batches) {
  /** @type {Map<string, any[]>} */
  const found = new Map();
  for (const b of batches) found.set(b.series, [...(found.get(b.series) ?? []), b]);
  return [...found].filter(([name, of]) => of.length > 1 || of[0].id !== name || of[0].target === null).map(([name, of]) => ({ name, of }));
}

/** @param {{batches: any[], namespace: string, marked: string[], mark: (id: string) => void}} props */
function Trainings({ batches, namespace, marked, mark }) {
  const sum = (/** @type {any} */ t, /** @type {(b: any) => number} */ of) => t.of.reduce((/** @type {number} */ n, /** @type {any} */ b) => n + of(b), 0);
  return html`<${Table} caption="Trainings, newest first" rows=${trainingsOf(batches)} keyOf=${(/** @type {any} */ t) => t.name} mark=${(/** @type {any} */ t) => (marked.includes(t.name) ? 'chosen' : '')}
    empty="No batch names a series or draws from a dataset. Batches of one series are one training." columns=${[
      { head: 'Mark', cell: (/** @type {any} */ t) => html`<input type="checkbox" aria-label=${`Mark training ${t.name}`} checked=${marked.includes(t.name)} onChange=${() => mark(t.name)} />` },
      { head: 'Training', main: true, cell: (/** @type {any} */ t) => html`<a href=${link(['trainings', t.name], { ns: ns(namespace) })}>${t.name}</a>` },
      { head: 'Batches', figure: true, cell: (/** @type {any} */ t) => count(t.of.length) }, { head: 'Running', figure: true, cell: (/** @type {any} */ t) => count(sum(t, (b) => (b.status === 'Running' ? 1 : 0))) },
      { head: 'Pool', cell: (/** @type {any} */ t) => t.of[0].pool },
      { head: 'First reward', figure: true, title: 'mean reward of the oldest batch listed', cell: (/** @type {any} */ t) => decimal(t.of[t.of.length - 1].reward_mean) },
      { head: 'Last reward', figure: true, title: 'mean reward of the newest batch that has one', cell: (/** @type {any} */ t) => decimal(t.of.find((/** @type {any} */ b) => b.reward_mean !== null)?.reward_mean) },
      { head: 'Delivered', figure: true, title: 'delivered groups', cell: (/** @type {any} */ t) => count(sum(t, (b) => b.delivered)) },
      { head: 'Wasted', figure: true, title: 'share of the sampled tokens that is in no delivered group', cell: (/** @type {any} */ t) => percent(share(sum(t, (b) => b.wasted_tokens), sum(t, (b) => b.wasted_tokens + b.delivered_tokens))) },
      { head: 'Last batch', cell: (/** @type {any} */ t) => html`<${Time} at=${t.of[0].created_at} />` },
    ]} />`;
}

/** @param {{route: import('./route.js').Route}} props */
function Two({ route }) {
  const [namespace, names] = [namespaceOf(route), route.path.slice(1, 3)];
  const [a, b] = [usePoll(url(`/v1/batches/${encodeURIComponent(names[0])}`, { namespace }), 10), usePoll(url(`/v1/batches/${encodeURIComponent(names[1])}`, { namespace }), 10)];
  const apart = a.data && b.data ? a.data.series !== b.data.series : false; // two batches of one series are steps of one training
  const steps = [useSteps(namespace, names[0], apart), useSteps(namespace, names[1], apart)];
  return html`<${SideBySide} kind="batches" title="Batches" names=${names} namespace=${namespace} rows=${ROWS} of=${[a, b]} steps=${steps} />`;
}

/** @type {[string, (b: any) => string][]} */
const ROWS = [
  ['Status', (v) => v.status], ['Training', (v) => v.series], ['Pool', (v) => v.pool], ['Mean reward', (v) => decimal(v.reward_mean)], ['Rollouts in a group', (v) => count(v.n)], ['Delivered groups', (v) => count(v.delivered)], ['Drawn groups', (v) => count(v.drawn)],
  ['Held back: all low', (v) => count(v.filtered.all_low)], ['Held back: all high', (v) => count(v.filtered.all_high)], ['Held back: other', (v) => count(v.filtered.other)], ['Faulty groups', (v) => count(v.faulty)],
  ['Informative share', (v) => percent(v.informative_share)], ['Delivered tokens', (v) => count(v.delivered_tokens)], ['Wasted tokens', (v) => count(v.wasted_tokens)],
  ['Staleness', (v) => decimal(v.staleness_mean)], ['Bias in seconds', (v) => decimal(v.bias.seconds)], ['Time to target', (v) => duration(v.seconds_to_target)],
];
