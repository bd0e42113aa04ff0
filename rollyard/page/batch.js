/** One batch: how it stands, its training steps, its rollouts, its hardest tasks. */

import { url } from './api.js';
import { StepCharts, useSteps } from './batch_steps.js';
import { count, decimal, duration, known, percent, share, UNKNOWN } from './format.js';
import { HardTasks } from './hard_tasks.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { Profile } from './profile.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** @param {{route: import('./route.js').Route}} props */
export function Batch({ route }) {
  const [namespace, id] = [namespaceOf(route), route.path[1]];
  const answer = usePoll(url(`/v1/batches/${encodeURIComponent(id)}`, { namespace }), 4);
  const whole = route.query.steps !== 'batch';
  const steps = useSteps(namespace, id, whole);
  const scopes = [['series', `training ${answer.data?.series ?? ''}`, undefined], ['batch', 'this batch alone', 'batch']];
  return html`<div><h1><span class="kind">Batch</span> ${id}</h1>
    <${Loaded} of=${answer} what="batch">${(/** @type {any} */ b) => html`<${Head} b=${b} namespace=${namespace} />`}<//>
    <${StepCharts} answers=${[{ name: id, answer: steps }]} scope=${html`<p class="choice" role="group" aria-label="Steps shown">Steps of ${scopes.map(([key, text, value]) => html` <a key=${key} href=${link(route.path, { ...route.query, steps: value })} aria-current=${whole === (value === undefined) ? 'true' : undefined}>${text}</a>`)}</p>`} />
    ${answer.data && html`<${HardTasks} namespace=${namespace} of=${{ batch: id }} />
      <section aria-labelledby="goes"><h2 id="goes">Where time and tokens go</h2><${Profile} conditions=${{ namespace, batch: id }} query=${{ ns: ns(namespace), batch: id }} /></section>`}</div>`;
}

/** @param {{b: any, namespace: string}} props */
function Head({ b, namespace }) {
  return html`<${Facts} pairs=${[
    ['Status', html`<${Mark} word=${b.status} />`],
    ['Pool', html`<a href=${link(['pools', 'RolloutPool', b.pool], { ns: ns(namespace) })}>${b.pool}</a>`],
    ['Training', html`<a href=${link(['trainings', b.series], { ns: ns(namespace) })}>${b.series}</a>`], ['Mean reward', decimal(b.reward_mean)], ['Dataset', b.dataset ?? 'tasks of its own'], ['Rollouts in a group', count(b.n)],
    ['Delivered', `${count(b.delivered)}${b.target === null ? ', a stream' : ` of ${count(b.target)}`}`], ['Acknowledged by the trainer', count(b.acknowledged)],
    ['Drawn', count(b.drawn)], ['In flight', count(b.in_flight)], ['Carried in', count(b.carried_in)], ['Passed over', count(b.passed_over)],
    ['Held back', html`${count(b.filtered.all_low)} all low, ${count(b.filtered.all_high)} all high, ${count(b.filtered.other)} other`], ['Faulty', count(b.faulty)],
    ['Informative', percent(b.informative_share)], ['Pass the filter, estimate', percent(b.estimated_pass_rate)],
    ['Wasted tokens', `${count(b.wasted_tokens)} (${percent(share(b.wasted_tokens, b.wasted_tokens + b.delivered_tokens))})`],
    ['Staleness', known(b.staleness_mean) ? `${decimal(b.staleness_mean)} training steps in the mean` : UNKNOWN], ['Time to target', duration(b.seconds_to_target)],
    ['Bias', b.bias.seconds === null ? UNKNOWN : `tokens ${decimal(b.bias.tokens)}, turns ${decimal(b.bias.turns)}, seconds ${decimal(b.bias.seconds)}`],
    ['Created', html`<${Time} at=${b.created_at} />`], ['Ended', html`<${Time} at=${b.ended_at} />`],
  ]} />
  ${b.waiting && html`<p class="problem">${message(b.waiting)}</p>`}`;
}
