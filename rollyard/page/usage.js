/** What pools have used: GPU-hours, CPU-hours, tokens, rollouts, by pool, namespace or week. */

import { url } from './api.js';
import { clock, count, decimal, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { SlurmUsage } from './slurm_usage.js';
import { Table } from './table.js';
import { hoursOf, TimeRange } from './time_range.js';
import { html } from './view.js';

const WEEK_HOURS = 168;
/** @type {Record<string, string>} */
const BY = { pool: 'pool', namespace: 'namespace', week: 'week' };

/** @param {{route: import('./route.js').Route}} props */
export function Usage({ route }) {
  const [namespace, hours, by] = [namespaceOf(route), hoursOf(route, WEEK_HOURS), BY[route.query.by] ?? 'pool'];
  const all = by === 'namespace' || route.query.all === 'true';
  const since = Math.floor(Date.now() / 3600000) * 3600 - hours * 3600;
  const answer = usePoll(url('/v1/usage', { namespace: all ? undefined : namespace, since, by }), 30, link(route.path, route.query));
  return html`<div><h1>Usage</h1>
    <p class="choice" role="group" aria-label="Rows">By ${Object.keys(BY).map((one) => html` <a key=${one} href=${link(route.path, { ...route.query, by: one === 'pool' ? undefined : one })} aria-current=${one === by ? 'true' : undefined}>${one}</a>`)}
      ${by !== 'namespace' && html` of <a href=${link(route.path, { ...route.query, all: undefined })} aria-current=${all ? undefined : 'true'}>the namespace ${namespace}</a> <a href=${link(route.path, { ...route.query, all: 'true' })} aria-current=${all ? 'true' : undefined}>all namespaces</a>`}</p>
    <${TimeRange} route=${route} usual=${WEEK_HOURS} />
    <${Loaded} of=${answer} what="usage">${(/** @type {any} */ u) => html`<${Rows} u=${u} by=${by} />
      <p class="dim">Since ${clock(u.since)}. Hours are those of running jobs, as their templates ask for GPUs and cores; time in Slurm's queue does not count. Rollouts and tokens count when a rollout ends, without checks. A prompt has the tokens of the earlier turns again.
        The rollouts of a RolloutPool use the hours of an InferencePool too, so read scored rollouts per hour in the last line.</p>`}<//>
    <${SlurmUsage} namespace=${all ? undefined : namespace} since=${since} subject=${`${all} ${namespace} ${hours}`} /></div>`;
}

/** @param {{u: any, by: string}} props */
function Rows({ u, by }) {
  const rows = [...u.rows, { ...u.total, isTotal: true }];
  const hours = (/** @type {unknown} */ v) => (typeof v === 'number' ? decimal(Number(v.toFixed(2)), 6) : UNKNOWN);
  const name = (/** @type {any} */ r) => (r.isTotal ? html`<strong>Total</strong>` : by === 'week' ? r.week : by === 'namespace' ? r.namespace
    : html`<a href=${link(['pools', r.pool_kind, r.pool], { ns: ns(r.namespace) })}>${r.pool}</a>`);
  return html`<${Table} stack caption="Usage" rows=${u.rows.length ? rows : []} keyOf=${(/** @type {any} */ r) => (r.isTotal ? 'total' : [r.week, r.namespace, r.pool_kind, r.pool].join('/'))} empty="Nothing was used in this time." columns=${[
    { head: { pool: 'Pool', namespace: 'Namespace', week: 'Week (UTC)' }[by] ?? '', main: true, cell: name },
    ...(by === 'pool' ? [{ head: 'Kind', cell: (/** @type {any} */ r) => r.pool_kind ?? '' }, { head: 'Namespace', cell: (/** @type {any} */ r) => r.namespace ?? '' }] : []),
    { head: 'GPU-hours', figure: true, cell: (/** @type {any} */ r) => hours(r.gpu_hours) }, { head: 'CPU-hours', figure: true, cell: (/** @type {any} */ r) => hours(r.cpu_hours) },
    { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts) }, { head: 'Scored', figure: true, title: 'accepted rollouts: they ended with a reward', cell: (/** @type {any} */ r) => count(r.scored) },
    { head: 'Scored per GPU-hour', figure: true, cell: (/** @type {any} */ r) => decimal(r.scored_per_gpu_hour) }, { head: 'Scored per CPU-hour', figure: true, cell: (/** @type {any} */ r) => decimal(r.scored_per_cpu_hour) },
    { head: 'Prompt tokens', figure: true, cell: (/** @type {any} */ r) => count(r.prompt_tokens) }, { head: 'Sampled tokens', figure: true, cell: (/** @type {any} */ r) => count(r.sampled_tokens) },
  ]} />`;
}
