/** Groups of a batch with the lowest rewards: tasks that are hard for the policy, or that it never solves. */

import { url } from './api.js';
import { count, decimal } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { visible } from './visible_text.js';
import { html, useMemo } from './view.js';

const READ = 2000;
const SHOWN = 25;

/** @typedef {{group: string, kind: string, metadata: Record<string, unknown>, rewards: number[], faults: number, mean: number | undefined}} TaskRewards */

/** @param {{namespace: string, batch: string}} props */
export function HardTasks({ namespace, batch }) {
  const answer = usePoll(url('/v1/rollouts', { namespace, batch, limit: READ, sort: '-finished' }), 20);
  return html`<section aria-labelledby="hard"><h2 id="hard">Tasks by reward</h2>
    <p><a href=${link(['rollouts'], { ns: ns(namespace), batch })}>All rollouts of the batch</a></p>
    <${Loaded} of=${answer} what="rollouts of the batch">${(/** @type {any} */ d) => html`<${Ranked} rollouts=${d.rollouts} more=${d.next} namespace=${namespace} />`}<//></section>`;
}

/** @param {{rollouts: any[], more: unknown, namespace: string}} props */
function Ranked({ rollouts, more, namespace }) {
  const tasks = useMemo(() => tasksOf(rollouts), [rollouts]);
  const judged = tasks.filter((t) => t.mean !== undefined).sort((a, b) => /** @type {number} */ (a.mean) - /** @type {number} */ (b.mean));
  const best = Math.max(...judged.map((t) => Math.max(...t.rewards)), 0);
  const never = judged.filter((t) => Math.max(...t.rewards) <= 0);
  const name = (/** @type {TaskRewards} */ t) => html`<a href=${link(['groups', t.group], { ns: ns(namespace) })}>${t.group}</a>`;
  const columns = [
    { head: 'Group', main: true, cell: name }, { head: 'Kind', cell: (/** @type {TaskRewards} */ t) => t.kind },
    { head: 'Mean reward', figure: true, cell: (/** @type {TaskRewards} */ t) => decimal(t.mean) }, { head: 'Best', figure: true, cell: (/** @type {TaskRewards} */ t) => decimal(Math.max(...t.rewards)) },
    { head: 'Rewards', cell: (/** @type {TaskRewards} */ t) => t.rewards.map((r) => decimal(r)).join(', ') }, { head: 'Without', figure: true, title: 'rollouts without a reward', cell: (/** @type {TaskRewards} */ t) => count(t.faults) },
    { head: 'Metadata', wide: true, cell: (/** @type {TaskRewards} */ t) => visible(Object.entries(t.metadata).map(([k, v]) => `${k}=${v}`).join(' ')) },
  ];
  return html`${more ? html`<p class="dim">Of the newest ${count(READ)} rollouts.</p>` : null}
    <h3>Never solved: ${never.length} of ${judged.length} groups have no reward above 0</h3>
    <${Table} caption="Groups that were never solved" rows=${never.slice(0, SHOWN)} keyOf=${(/** @type {TaskRewards} */ t) => t.group} columns=${columns} empty="Every group with a reward was solved at least once." />
    <h3>Hardest of those that were solved</h3>
    <${Table} caption="Hardest groups" rows=${judged.filter((t) => !never.includes(t) && /** @type {number} */ (t.mean) < best).slice(0, SHOWN)} keyOf=${(/** @type {TaskRewards} */ t) => t.group} columns=${columns} empty="None is below the best reward." />`;
}

/** @param {any[]} rollouts @returns {TaskRewards[]} */
function tasksOf(rollouts) {
  /** @type {Map<string, TaskRewards>} */
  const found = new Map();
  for (const r of rollouts) {
    if (r.finished_at === null) continue;
    const key = r.group ?? r.id;
    /** @type {TaskRewards} */
    const task = found.get(key) ?? { group: key, kind: r.task_kind, metadata: r.metadata ?? {}, rewards: [], faults: 0, mean: undefined };
    if (r.reward === null) task.faults += 1;
    else task.rewards.push(r.reward);
    found.set(key, task);
  }
  for (const task of found.values()) if (task.rewards.length) task.mean = task.rewards.reduce((a, b) => a + b, 0) / task.rewards.length;
  return [...found.values()];
}
