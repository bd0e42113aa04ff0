/** Tasks of a batch or of a training by their rewards: those that are hard for the policy, and those that it never solves. */

import { url } from './api.js';
import { count, decimal, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

const READ = 2000;
const SHOWN = 25;
const WITH_PROMPTS = 100;

/** @param {{namespace: string, of: Record<string, string>}} props of: the batch, or the beginning of the ids of a training's rollouts */
export function HardTasks({ namespace, of }) {
  const answer = usePoll(url('/v1/rollouts/summary', { namespace, ...of, by: 'task', limit: READ }), 20);
  const first = usePoll(url('/v1/rollouts/summary', { namespace, ...of, by: 'task', limit: WITH_PROMPTS }), 60);
  const prompts = new Map((first.data?.rows ?? []).map((/** @type {any} */ r) => [r.value, r.prompt]));
  return html`<section aria-labelledby="hard"><h2 id="hard">Tasks by reward</h2>
    <p><a href=${link(['rollouts'], { ns: ns(namespace), ...of })}>All rollouts of the ${of.batch ? 'batch' : 'training'}</a></p>
    <${Loaded} of=${answer} what="tasks by reward">${(/** @type {any} */ d) => html`<${Ranked} rows=${d.rows} namespace=${namespace} of=${of} prompts=${prompts} />`}<//></section>`;
}

/** @param {{rows: any[], namespace: string, of: Record<string, string>, prompts: Map<string, string | null>}} props prompts: of the hardest tasks */
function Ranked({ rows, namespace, of, prompts }) {
  const unknown = rows.filter((r) => r.value === null).reduce((n, r) => n + r.rollouts, 0);
  const judged = rows.filter((r) => r.value !== null && r.scored > 0).sort((a, b) => a.mean_reward - b.mean_reward);
  const never = judged.filter((r) => r.best_reward <= 0);
  const best = Math.max(...judged.map((r) => r.best_reward), 0);
  const columns = [
    { head: 'Task', main: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts'], { ns: ns(namespace), ...of, task: r.value })}><code>${r.value}</code></a>` },
    { head: 'Kind', cell: (/** @type {any} */ r) => r.kind },
    { head: 'Mean reward', figure: true, cell: (/** @type {any} */ r) => decimal(r.mean_reward) }, { head: 'Best', figure: true, cell: (/** @type {any} */ r) => decimal(r.best_reward) },
    { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts) }, { head: 'Without reward', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts - r.scored) },
    { head: 'Groups', figure: true, title: 'groups with at least two rewards', cell: (/** @type {any} */ r) => count(r.groups) }, { head: 'Informative', figure: true, title: 'groups whose rewards differ', cell: (/** @type {any} */ r) => count(r.informative) },
    { head: 'Tokens, mean', figure: true, title: 'sampled tokens of a rollout', cell: (/** @type {any} */ r) => count(r.tokens / r.rollouts) },
    { head: 'Newest', cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts', r.newest], { ns: ns(namespace) })}>${r.newest}</a>` },
    { head: 'Prompt', wide: true, cell: (/** @type {any} */ r) => short(prompts.get(r.value)) },
  ];
  const key = (/** @type {any} */ r) => String(r.value);
  if (!judged.length) return html`<p class="empty">${unknown ? `Not known: the ${count(unknown)} rollouts that have ended have no digest of their task.` : 'No rollout has ended with a reward.'}</p>`;
  return html`${unknown ? html`<p class="dim">Without ${count(unknown)} rollouts that have no digest of their task.</p>` : null}${rows.length >= READ ? html`<p class="dim">Of ${count(READ)} tasks.</p>` : null}
    <h3>Never solved: ${count(never.length)} of ${count(judged.length)} tasks have no reward above 0</h3>
    <${Table} stack caption="Tasks that were never solved" rows=${never.slice(0, SHOWN)} keyOf=${key} columns=${columns} empty="Every task with a reward was solved at least once." />
    <h3>Hardest of those that were solved</h3>
    <${Table} stack caption="Hardest tasks" rows=${judged.filter((r) => r.best_reward > 0 && r.mean_reward < best).slice(0, SHOWN)} keyOf=${key} columns=${columns} empty="None is below the best reward." />`;
}

/** @param {string | null | undefined} text */
const short = (text) => (text ? visible(text).replace(/\s+/g, ' ').slice(0, 120) : UNKNOWN);
