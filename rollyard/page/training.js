/** One training: the steps of a series, that is of all its batches. Two trainings side by side. */

import { url } from './api.js';
import { StepCharts, useSteps } from './batch_steps.js';
import { count, decimal, duration, known, percent, share, UNKNOWN } from './format.js';
import { HardTasks } from './hard_tasks.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { Profile } from './profile.js';
import { link, namespaceOf, ns } from './route.js';
import { SideBySide } from './side_by_side.js';
import { Facts, Table } from './table.js';
import { Time } from './time.js';
import { html } from './view.js';

const BATCHES = 500;
const NEWEST = 10; // training steps

/** @param {{route: import('./route.js').Route}} props */
export function Training({ route }) {
  return route.path.length > 2 ? html`<${Two} route=${route} />` : html`<${One} route=${route} />`;
}

/** The batches of a series, newest first, and its steps. @param {string} namespace @param {string} name */
function useTraining(namespace, name) {
  const batches = usePoll(url('/v1/batches', { namespace, series: name, limit: BATCHES }), 10);
  const newest = batches.data?.batches[0];
  return { batches, newest, steps: useSteps(namespace, newest?.id ?? null, true, name) };
}

/** @param {{route: import('./route.js').Route}} props */
function One({ route }) {
  const [namespace, name] = [namespaceOf(route), route.path[1]];
  const { batches, newest, steps } = useTraining(namespace, name);
  return html`<div><h1><span class="kind">Training</span> ${name}</h1>
    <${Loaded} of=${batches} what="batches of the training">${(/** @type {any} */ d) => (d.batches.length === 0
      ? html`<p class="empty">No batch of the series ${name} is stored in this namespace. A batch is deleted some time after it ended.</p>`
      : html`${steps.data && html`<${Head} d=${d} sums=${sumsOf(steps.data.steps, d.batches)} newest=${newest} namespace=${namespace} />`}
        <${StepCharts} answers=${[{ name, answer: steps }]} />
        <${HardTasks} namespace=${namespace} of=${{ prefix: `${name}-g` }} />
        <section aria-labelledby="goes"><h2 id="goes">Where time and tokens go</h2><${Profile} conditions=${{ namespace, prefix: `${name}-g` }} query=${{ ns: ns(namespace), prefix: `${name}-g` }} /></section>
        <${BatchesOf} batches=${d.batches} namespace=${namespace} />`)}<//></div>`;
}

/** Sums and means over training steps, and the mean time to target of batches. @param {any[]} steps @param {any[]} batches */
export function sumsOf(steps, batches) {
  const times = batches.map((b) => b.seconds_to_target).filter(known);
  const sum = (/** @type {(s: any) => number} */ of) => steps.reduce((n, s) => n + of(s), 0);
  /** @param {string} of @param {string} weight */
  const mean = (of, weight) => share(sum((s) => (s[of] ?? 0) * s[weight]), sum((s) => (known(s[of]) ? s[weight] : 0)));
  const [delivered, wasted, tokens] = [sum((s) => s.groups), sum((s) => s.wasted_tokens), sum((s) => (s.tokens_mean ?? 0) * s.rollouts)];
  const judged = steps.filter((s) => known(s.judged_reward_mean));
  const meanOf = (/** @type {any[]} */ some) => share(some.reduce((n, s) => n + s.judged_reward_mean * s.judged_rollouts, 0), some.reduce((n, s) => n + s.judged_rollouts, 0));
  const [low, high, other] = [sum((s) => s.all_low), sum((s) => s.all_high), sum((s) => s.other)];
  return {
    steps: steps.length, delivered, low, high, other, wasted, tokens, faulty: sum((s) => s.faulty), reward: mean('judged_reward_mean', 'judged_rollouts'),
    informative: share(sum((s) => s.differing), sum((s) => s.compared)), wastedShare: share(wasted, wasted + tokens), staleness: mean('staleness_mean', 'groups'),
    toTarget: share(times.reduce((a, b) => a + b, 0), times.length), length: mean('tokens_mean', 'rollouts'), toolCalls: mean('tool_calls_mean', 'rollouts'), seconds: mean('seconds_mean', 'rollouts'),
    newest: meanOf(judged.slice(-NEWEST)), before: meanOf(judged.slice(-2 * NEWEST, -NEWEST)), judged: judged.length,
  };
}

/** The mean reward of the last steps, and of those before. @param {ReturnType<typeof sumsOf>} s */
function newestSteps(s) {
  if (s.judged <= NEWEST) return s.judged ? `${decimal(s.newest)}: there are ${s.judged}` : UNKNOWN;
  return `${decimal(s.newest)}; of the ${Math.min(NEWEST, s.judged - NEWEST)} before: ${decimal(s.before)}`;
}

/** @type {[string, (s: ReturnType<typeof sumsOf>) => string][]} */
const ROWS = [
  ['Training steps', (s) => count(s.steps)], ['Mean reward of judged groups', (s) => decimal(s.reward)], [`Of the last ${NEWEST} steps`, newestSteps], ['Informative', (s) => percent(s.informative)],
  ['Delivered groups', (s) => count(s.delivered)], ['Held back', (s) => `${count(s.low)} all low, ${count(s.high)} all high, ${count(s.other)} other`], ['Faulty', (s) => count(s.faulty)],
  ['Wasted tokens', (s) => `${count(s.wasted)} (${percent(s.wastedShare)})`], ['Staleness, in steps between draw and use', (s) => decimal(s.staleness)],
  ['Tokens of a rollout', (s) => count(s.length)], ['Tool calls of a rollout', (s) => decimal(s.toolCalls)], ['Time of a rollout', (s) => duration(s.seconds)], ['Time to target, mean', (s) => duration(s.toTarget)],
];

/** @param {{d: any, sums: ReturnType<typeof sumsOf>, newest: any, namespace: string}} props */
function Head({ d, sums, newest, namespace }) {
  const bias = newest.series_bias;
  return html`<${Facts} pairs=${[
    ['Pool', html`<a href=${link(['pools', 'RolloutPool', newest.pool], { ns: ns(namespace) })}>${newest.pool}</a>`], ['Dataset', newest.dataset ?? 'tasks of its own'], ['Batches', `${count(d.batches.length)}${d.batches.length >= BATCHES ? ' or more' : ''}`],
    ...ROWS.map(([name, of]) => [name, of(sums)]),
    ['Bias', bias.seconds === null ? UNKNOWN : `tokens ${decimal(bias.tokens)}, turns ${decimal(bias.turns)}, seconds ${decimal(bias.seconds)}`],
  ]} /><p class="dim">Judged groups have a verdict, also those that were held back and not delivered.</p>`;
}

/** @param {{batches: any[], namespace: string}} props */
function BatchesOf({ batches, namespace }) {
  return html`<section aria-labelledby="of"><h2 id="of">Batches of the training, newest first</h2>
    <${Table} caption="Batches of the training" rows=${batches} keyOf=${(/** @type {any} */ b) => b.id} columns=${[
      { head: 'Batch', main: true, cell: (/** @type {any} */ b) => html`<a href=${link(['batches', b.id], { ns: ns(namespace) })}>${b.id}</a>` },
      { head: 'Status', cell: (/** @type {any} */ b) => html`<${Mark} word=${b.status} />` }, { head: 'Mean reward', figure: true, cell: (/** @type {any} */ b) => decimal(b.reward_mean) },
      { head: 'Delivered', figure: true, cell: (/** @type {any} */ b) => count(b.delivered) }, { head: 'Carried in', figure: true, title: 'unfinished groups taken over from earlier batches', cell: (/** @type {any} */ b) => count(b.carried_in) },
      { head: 'To target', figure: true, cell: (/** @type {any} */ b) => duration(b.seconds_to_target) }, { head: 'Created', cell: (/** @type {any} */ b) => html`<${Time} at=${b.created_at} />` },
    ]} /></section>`;
}

/** @param {{route: import('./route.js').Route}} props */
function Two({ route }) {
  const [namespace, first, second] = [namespaceOf(route), route.path[1], route.path[2]];
  const found = [useTraining(namespace, first), useTraining(namespace, second)];
  return html`<${SideBySide} kind="trainings" title="Trainings" names=${[first, second]} namespace=${namespace} rows=${ROWS} steps=${found.map((t) => t.steps)}
    of=${found.map((t) => ({ ...t.steps, data: t.steps.data && sumsOf(t.steps.data.steps, t.batches.data?.batches ?? []), error: t.steps.error ?? t.batches.error }))}
    none=${found.map((t) => t.batches.data?.batches.length === 0)} />`;
}
