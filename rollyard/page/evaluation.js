/** One evaluation: its statistics with intervals, by kind or metadata, and its tasks. */

import { url } from './api.js';
import { Filters } from './filters.js';
import { count, decimal, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts, Table } from './table.js';
import { Time } from './time.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

const SHOWN = 200;

/** The weights versions that sampled an evaluation's rollouts. @param {any} one */
export const versionsOf = (one) => Object.keys(one.weights_versions).join(', ') || one.request.weights_version || 'not known yet';

/** A mean with its 95 % interval. The bootstrap of equal values has no width, and says nothing of chance. @param {any} e */
export const estimate = (e) => (e ? html`${decimal(e.value)} <span class="dim">${e.low === e.high ? 'in each task' : `[${decimal(e.low)}, ${decimal(e.high)}]`}</span>` : UNKNOWN);

/** @param {{route: import('./route.js').Route}} props */
export function Evaluation({ route }) {
  const [namespace, name] = [namespaceOf(route), route.path[1]];
  const path = `/v1/evaluations/${encodeURIComponent(name)}`;
  const answer = usePoll(url(path, { namespace, by: route.query.by }), 8);
  const tasks = usePoll(url(`${path}/tasks`, { namespace }), answer.data?.state === 'Completed' ? 0 : 20);
  return html`<div><h1><span class="kind">Evaluation</span> ${name}</h1>
    <${Loaded} of=${answer} what="evaluation">${(/** @type {any} */ e) => html`<${Head} e=${e} namespace=${namespace} />
      <${Filters} route=${route} filters=${[{ name: 'by', label: 'Statistics by', none: 'nothing', options: groupings(tasks.data?.tasks ?? [], route.query.by) }]} />
      <${Groups} e=${e} />`}<//>
    <section><h2>Tasks, hardest first</h2><${Loaded} of=${tasks} what="tasks of the evaluation">${(/** @type {any} */ d) => html`<${Tasks} tasks=${d.tasks} namespace=${namespace} />`}<//></section></div>`;
}

/** What the statistics can be grouped by: the kind, and the names of the tasks' metadata. @param {any[]} tasks @param {string | undefined} chosen @returns {[string, string][]} */
function groupings(tasks, chosen) {
  const names = new Set(['kind', ...tasks.flatMap((t) => Object.keys(t.metadata)).sort(), ...(chosen ? [chosen] : [])]);
  return [...names].map((name) => [name, visible(name)]);
}

/** @param {{e: any, namespace: string}} props */
function Head({ e, namespace }) {
  const s = e.statistics;
  const faults = Object.entries(e.faults);
  return html`<${Facts} pairs=${[
    ['State', html`<${Mark} word=${e.state} />`], ['Mean reward', estimate(s.mean)],
    ...Object.entries(s.pass_at).map(([k, v]) => [`pass@${k}`, estimate(v)]), ...Object.entries(s.pass_all).filter(([k]) => k !== '1').map(([k, v]) => [`pass^${k}`, estimate(v)]),
    ['Tasks', `${count(e.request.tasks)}, ${count(e.request.k)} rollouts each`], ['Ended', `${count(e.ended)} of ${count(e.request.tasks * e.request.k)}`], ['With a reward', count(e.scored)],
    ['Tasks short of rewards', count(s.tasks_short)], ['Tasks without any', count(s.tasks_unscored)], ['Weights', versionsOf(e)],
    ['Pool', html`<a href=${link(['pools', 'RolloutPool', e.request.pool], { ns: ns(namespace) })}>${e.request.pool}</a>`],
    ['Rollouts', html`<a href=${link(['rollouts'], { ns: ns(namespace), group: e.request.name })}>list</a>`],
    ['Created', html`<${Time} at=${e.created_at} />`], ['Ended at', html`<${Time} at=${e.ended_at} />`],
  ]} />
  <p class="dim">Intervals have 95 %. A task counts as solved from the reward ${decimal(e.solved_at)} on. A rollout without a reward is in no mean.</p>
  ${e.other_version > 0 && html`<p class="problem">${count(e.other_version)} rollouts were sampled by another version than the evaluation asks for. They are in no mean.</p>`}
  ${e.repeated > 0 && html`<p class="dim">${count(e.repeated)} rollouts did not count and were repeated. They are in no other number.</p>`}
  ${faults.length > 0 && html`<h3>Rollouts without a reward, by reason</h3><${Facts} pairs=${faults.map(([reason, n]) => [reason, count(n)])} />`}`;
}

/** @param {{e: any}} props */
function Groups({ e }) {
  if (!e.by) return null;
  const columns = ['pass_at', 'pass_all'].flatMap((of) => Object.keys(e.statistics[of]).filter((k) => of === 'pass_at' || k !== '1').map((k) => ({
    head: `${of === 'pass_at' ? 'pass@' : 'pass^'}${k}`, figure: true, cell: (/** @type {any} */ g) => estimate(g.statistics[of][k]),
  })));
  return html`<${Table} caption=${`Statistics by ${e.by}`} rows=${e.groups} keyOf=${(/** @type {any} */ g) => g.value} empty="No task has a result yet." columns=${[
    { head: e.by, main: true, cell: (/** @type {any} */ g) => visible(g.value) }, { head: 'Tasks', figure: true, cell: (/** @type {any} */ g) => count(g.tasks) },
    { head: 'Mean reward', figure: true, cell: (/** @type {any} */ g) => estimate(g.statistics.mean) },
    ...columns,
    { head: 'With a reward', figure: true, cell: (/** @type {any} */ g) => count(g.scored) }, { head: 'Without', figure: true, cell: (/** @type {any} */ g) => count(g.faults) },
  ]} />`;
}

/** @param {{tasks: any[], namespace: string}} props */
function Tasks({ tasks, namespace }) {
  const mean = (/** @type {any} */ t) => (t.rewards.length ? t.rewards.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / t.rewards.length : Infinity);
  const sorted = [...tasks].sort((a, b) => mean(a) - mean(b));
  return html`<${Table} caption="Tasks of the evaluation" rows=${sorted.slice(0, SHOWN)} keyOf=${(/** @type {any} */ t) => t.task} empty="No rollout has ended yet." columns=${[
    { head: 'Task', main: true, cell: (/** @type {any} */ t) => html`<code>${t.task}</code>` }, { head: 'Kind', cell: (/** @type {any} */ t) => t.kind },
    { head: 'Mean', figure: true, cell: (/** @type {any} */ t) => (t.rewards.length ? decimal(mean(t)) : UNKNOWN) }, { head: 'Rewards', cell: (/** @type {any} */ t) => t.rewards.map((/** @type {number} */ r) => decimal(r)).join(', ') },
    { head: 'Without', cell: (/** @type {any} */ t) => Object.entries(t.faults).map(([k, n]) => `${k} ${n}`).join(', ') },
    { head: 'Rollouts', cell: (/** @type {any} */ t) => t.rollouts.slice(0, 8).map((/** @type {string} */ id, /** @type {number} */ i) => html`<a key=${id} href=${link(['rollouts', id], { ns: ns(namespace) })} title=${id}>${i + 1}</a> `) },
    { head: 'Metadata', wide: true, cell: (/** @type {any} */ t) => visible(Object.entries(t.metadata).map(([k, v]) => `${k}=${v}`).join(' ')) },
  ]} />${sorted.length > SHOWN && html`<p class="dim">The hardest ${SHOWN} of ${count(sorted.length)}.</p>`}`;
}
