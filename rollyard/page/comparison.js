/** Two evaluations, task by task. */

import { url } from './api.js';
import { count, decimal } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts, Table } from './table.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

const SHOWN = 100;

/** @param {{route: import('./route.js').Route}} props */
export function Comparison({ route }) {
  const [namespace, first, second] = [namespaceOf(route), route.path[1], route.path[2]];
  const answer = usePoll(url(`/v1/evaluations/${encodeURIComponent(first)}/comparison`, { namespace, with: second }), 15);
  const to = (/** @type {string} */ name) => html`<a href=${link(['evaluations', name], { ns: ns(namespace) })}>${name}</a>`;
  return html`<div><h1><span class="kind">From</span> ${to(first)} <span class="kind">to</span> ${to(second)}</h1>
    <${Loaded} of=${answer} what="comparison">${(/** @type {any} */ c) => html`
      <${Facts} pairs=${[['Tasks in both', count(c.tasks)], [`Only in ${first}`, count(c.only_first)], [`Only in ${second}`, count(c.only_second)], ['Better', count(c.better.length)], ['Worse', count(c.worse.length)], ['Same', count(c.same)]]} />
      ${c.notes.length > 0 && html`<ul class="notes">${c.notes.map((/** @type {string} */ n, /** @type {number} */ i) => html`<li key=${i}>${visible(n)}</li>`)}</ul>`}
      <${Table} caption="Differences" rows=${[['Mean reward', c.mean], ['pass@1', c.pass_1]].filter(([, d]) => d)} keyOf=${(/** @type {any} */ r) => r[0]} empty="No task has a reward in both evaluations." columns=${[
        { head: 'Metric', main: true, cell: (/** @type {any} */ r) => r[0] }, { head: first, figure: true, cell: (/** @type {any} */ r) => decimal(r[1].first) }, { head: second, figure: true, cell: (/** @type {any} */ r) => decimal(r[1].second) },
        { head: 'Difference', figure: true, cell: (/** @type {any} */ r) => signed(r[1].difference) }, { head: '95 % interval', figure: true, cell: (/** @type {any} */ r) => `${signed(r[1].low)} to ${signed(r[1].high)}` },
        { head: 'p', figure: true, title: 'paired permutation test over tasks', cell: (/** @type {any} */ r) => decimal(r[1].p_value) },
        { head: '', wide: true, cell: (/** @type {any} */ r) => visible(r[1].conclusion) },
      ]} />
      <${Changes} title="Worse" changes=${c.worse} first=${first} second=${second} namespace=${namespace} /><${Changes} title="Better" changes=${c.better} first=${first} second=${second} namespace=${namespace} />`}<//></div>`;
}

/** @param {number} v */
const signed = (v) => (v > 0 ? `+${decimal(v)}` : decimal(v).replace('-', '\u2212'));

/** @param {{title: string, changes: any[], first: string, second: string, namespace: string}} props */
function Changes({ title, changes, first, second, namespace }) {
  const rewards = (/** @type {string} */ group, /** @type {any} */ t, /** @type {number[]} */ of) => html`<a href=${link(['rollouts'], { ns: ns(namespace), group, task: t.task })}>${of.map((r) => decimal(r)).join(', ')}</a>`;
  return html`<section><h2>${title}</h2><${Table} caption=${`${title} tasks`} rows=${changes.slice(0, SHOWN)} keyOf=${(/** @type {any} */ t) => t.task} empty="None." columns=${[
    { head: 'Task', main: true, cell: (/** @type {any} */ t) => html`<code>${t.task}</code>` }, { head: 'Kind', cell: (/** @type {any} */ t) => t.kind }, { head: 'Difference', figure: true, cell: (/** @type {any} */ t) => signed(t.difference) },
    { head: first, cell: (/** @type {any} */ t) => rewards(first, t, t.first) }, { head: second, cell: (/** @type {any} */ t) => rewards(second, t, t.second) },
    { head: 'Metadata', wide: true, cell: (/** @type {any} */ t) => visible(Object.entries(t.metadata).map(([k, v]) => `${k}=${v}`).join(' ')) },
  ]} />${changes.length > SHOWN && html`<p class="dim">The first ${SHOWN} of ${count(changes.length)}.</p>`}</section>`;
}
