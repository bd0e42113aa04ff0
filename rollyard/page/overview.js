/** What runs, what waits and for what, and what is wrong now. */

import { OBJECTS, url } from './api.js';
import { PoolMark, readyCount, troubles, toneOfCondition } from './conditions.js';
import { Events, knownSince, mergedByPool, newest } from './events.js';
import { count, decimal, percent, timeOfDay, UNKNOWN, unix } from './format.js';
import { live, objects } from './live.js';
import { Loaded, Missed } from './loaded.js';
import { Losses } from './losses.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns, option } from './route.js';
import { Facts, Table } from './table.js';
import { Time, useNow } from './time.js';
import { hoursOf, TimeRange } from './time_range.js';
import { message } from './visible_text.js';
import { html } from './view.js';
import { Waiting } from './waiting.js';

const REFRESH_SECONDS = 4;
const RECENT_SECONDS = 3600;
const MOST_WARNINGS = 12;
const HOURS = 24; // shown where the address names none

/** @param {{route: import('./route.js').Route}} props */
export function Overview({ route }) {
  const namespace = namespaceOf(route);
  const counts = usePoll(url('/v1/rollouts/counts', { namespace }), REFRESH_SECONDS);
  const top = usePoll(`${OBJECTS}/namespaces/${encodeURIComponent(namespace)}/top`, REFRESH_SECONDS);
  const batches = usePoll(url('/v1/batches', { namespace, limit: 20 }), 10);
  if (live.listed && !objects('RolloutPool', namespace).length && !objects('InferencePool', namespace).length) return html`<h1>Overview</h1><${Nothing} namespace=${namespace} />`;
  return html`<div><h1>Overview</h1>
    <${Wrong} namespace=${namespace} />
    <section aria-labelledby="running"><h2 id="running">Rollouts</h2>
      <${Loaded} of=${counts} what="counts of rollouts">${(/** @type {any} */ c) => html`<${Counts} counts=${c} namespace=${namespace} hours=${hoursOf(route, HOURS)} />`}<//></section>
    <${Faults} namespace=${namespace} route=${route} />
    <section aria-labelledby="pools"><h2 id="pools">Pools</h2><${PoolTables} namespace=${namespace} top=${top} /></section>
    <${Waiting} namespace=${namespace} queued=${counts.data?.queued} allocations=${objects('Allocation', namespace)} />
    <section aria-labelledby="batches"><h2 id="batches">Batches</h2>
      <${Loaded} of=${batches} what="batches">${(/** @type {any} */ b) => html`<${RunningBatches} batches=${b.batches} />`}<//></section>
    <section aria-labelledby="events"><h2 id="events">Events</h2><p class="dim">By reason and pool, each with its newest object and message.</p>
      <${Events} events=${mergedByPool(newest((e) => e.metadata.namespace === namespace)).slice(0, 12)} /></section></div>`;
}

/** @param {{namespace: string}} props */
function Nothing({ namespace }) {
  return html`<div class="empty"><p>The namespace <code>${namespace}</code> has no pool yet. Declare one in YAML:</p>
    <pre>rollyard apply -f examples/demo/pools.yaml --wait${option(namespace)}</pre><p>The pools, their allocations and their rollouts then appear here by themselves.</p></div>`;
}

/** @param {{namespace: string}} props */
function Wrong({ namespace }) {
  const now = useNow();
  const pools = [...objects('InferencePool', namespace), ...objects('RolloutPool', namespace)];
  const found = pools.filter((pool) => !pool.spec.suspend || pool.status?.replicas?.observed).flatMap((pool) => troubles(pool).map((condition) => ({ pool, condition })));
  const warnings = mergedByPool(newest((e) => e.metadata.namespace === namespace && e.type === 'Warning' && (unix(e.lastTimestamp) ?? 0) > now - RECENT_SECONDS));
  const more = warnings.length - MOST_WARNINGS;
  const since = knownSince() ?? 0;
  const some = since > now - RECENT_SECONDS && html`<p class="dim">The page has events since ${timeOfDay(since)} only. There may be earlier ones: <code>rollyard events${option(namespace)}</code>.</p>`;
  return html`<section aria-labelledby="wrong"><h2 id="wrong">What is wrong now</h2>
    ${!live.listed ? html`<p class="dim">Not known yet.</p>` : html`
    ${!found.length && !warnings.length && html`<p><${Mark} tone="good" word="Nothing that the pools or the last hour's events know of." /></p>`}
    ${found.length > 0 && html`<${Table} stack caption="Conditions that report trouble" rows=${found} keyOf=${(/** @type {any} */ f) => f.pool.metadata.uid + f.condition.type} columns=${[
      { head: 'Pool', main: true, cell: (/** @type {any} */ f) => html`<a href=${link(['pools', f.pool.kind, f.pool.metadata.name], { ns: ns(namespace) })}>${f.pool.metadata.name}</a>` },
      { head: 'Condition', cell: (/** @type {any} */ f) => html`<${Mark} tone=${toneOfCondition(f.condition)} word=${`${f.condition.type}=${f.condition.status}`} />` },
      { head: 'Reason', cell: (/** @type {any} */ f) => f.condition.reason },
      { head: 'Since', cell: (/** @type {any} */ f) => html`<${Time} at=${f.condition.lastTransitionTime} />` },
      { head: 'Message', wide: true, cell: (/** @type {any} */ f) => html`${message(f.condition.message)}${f.condition.type === 'ImagesReady' && html` <a href=${link(['pools', f.pool.kind, f.pool.metadata.name], { ns: ns(namespace) })}>All missing images</a>`}` },
    ]} />`}
    ${warnings.length > 0 && html`<h3>Warnings of the last hour</h3><p class="dim">By reason and pool, each with its newest object and message.</p>
      <${Events} caption="Warnings of the last hour" events=${warnings.slice(0, MOST_WARNINGS)} />
      ${more > 0 && html`<p class="dim">${more} more, last seen earlier. <code>rollyard events${option(namespace)}</code> shows all.</p>`}`}
    ${some}`}
  </section>`;
}

/** @param {{counts: any, namespace: string, hours: number}} props */
function Counts({ counts: c, namespace, hours }) {
  const since = Math.floor(useNow() / 60) * 60 - hours * 3600;
  const marked = usePoll(url('/v1/rollouts', { namespace, suspicious: 'true', total: 'true', limit: 1, since }), 60, `${namespace} ${hours}`);
  /** @param {string} word @param {string} status */
  const to = (word, status) => html`<a href=${link(['rollouts'], { ns: ns(namespace), status })}>${count(c[word])}</a>`;
  return html`<${Facts} pairs=${[
    ['Queued', to('queued', 'Queued')], ['INIT', to('INIT', 'Running')], ['RUN', to('RUN', 'Running')], ['EVAL', to('EVAL', 'Running')],
    ['Completed', to('Completed', 'Completed')], ['Truncated', to('Truncated', 'Truncated')], ['Failed', to('Failed', 'Failed')],
    ['InfraFailed', to('InfraFailed', 'InfraFailed')], ['Cancelled', to('Cancelled', 'Cancelled')], ['Mean reward', decimal(c.reward_mean)],
    [`Suspicious, ${hours} h`, html`<a title="rewards with marks of hacks" href=${link(['rollouts'], { ns: ns(namespace), suspicious: 'true', hours })}>${count(marked.data?.total)}</a>`],
  ]} />`;
}

/** Rollouts that ended without a reward, by reason. @param {{namespace: string, route: import('./route.js').Route}} props */
function Faults({ namespace, route }) {
  const hours = hoursOf(route, HOURS);
  const since = Math.floor(useNow() / 60) * 60 - hours * 3600;
  const answer = usePoll(url('/v1/rollouts/summary', { namespace, by: 'reason', status: 'Failed,InfraFailed', since }), 10, `${namespace} ${hours}`);
  return html`<section aria-labelledby="faults"><h2 id="faults">Rollouts without a reward, by reason</h2><${TimeRange} route=${route} usual=${HOURS} />
    <${Loaded} of=${answer} what="reasons of failures">${(/** @type {any} */ d) => html`<${Table} stack caption="Failures by reason" rows=${d.rows} keyOf=${(/** @type {any} */ r) => String(r.value)} empty="No rollout ended without a reward in this time." columns=${[
      { head: 'Reason', main: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts'], { ns: ns(namespace), reason: r.value, hours })}>${r.value ?? 'not known'}</a>` },
      { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts) },
      { head: 'Newest', wide: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts', r.newest], { ns: ns(namespace) })}>${r.newest}</a>` },
    ]} />`}<//></section>
    <${Losses} namespace=${namespace} since=${since} hours=${hours} />`;
}

/** @param {{namespace: string, top: import('./poll.js').Answer}} props */
function PoolTables({ namespace, top }) {
  const serving = objects('InferencePool', namespace);
  const running = objects('RolloutPool', namespace);
  /** @param {string} list @param {any} pool */
  const now = (list, pool) => top.data?.[list]?.find((/** @type {any} */ p) => p.name === pool.metadata.name);
  const name = (/** @type {any} */ p) => html`<a href=${link(['pools', p.kind, p.metadata.name], { ns: ns(namespace) })}>${p.metadata.name}</a>`;
  const ready = (/** @type {any} */ p) => `${readyCount(p) ?? UNKNOWN}/${p.status?.replicas?.desired ?? UNKNOWN}`;
  /** @param {any} p @param {string} stage */
  const stage = (p, stage) => { const s = now('rolloutPools', p)?.stages?.[stage]; return s ? html`${s.inFlight}<span class="dim">/${s.width}</span>` : UNKNOWN; };
  /** @param {any} p @param {string[]} words */
  const pace = (p, words) => { const e = now('rolloutPools', p)?.endedPerMinute; return e ? decimal(words.reduce((n, w) => n + (e[w] ?? 0), 0)) : UNKNOWN; };
  const load = (/** @type {any} */ p) => now('inferencePools', p)?.load ?? {};
  return html`
    ${running.length > 0 && html`<${Table} caption="RolloutPools" rows=${running} keyOf=${(/** @type {any} */ p) => p.metadata.uid} columns=${[
      { head: 'RolloutPool', main: true, cell: name }, { head: 'State', cell: (/** @type {any} */ p) => html`<${PoolMark} pool=${p} />` },
      { head: 'Ready', figure: true, cell: ready }, { head: 'Queued', figure: true, cell: (/** @type {any} */ p) => count(now('rolloutPools', p)?.stages?.INIT?.queued) },
      { head: 'INIT', figure: true, cell: (/** @type {any} */ p) => stage(p, 'INIT'), title: 'in flight / stage workers' }, { head: 'RUN', figure: true, cell: (/** @type {any} */ p) => stage(p, 'RUN') },
      { head: 'EVAL', figure: true, cell: (/** @type {any} */ p) => stage(p, 'EVAL') },
      { head: 'Done/min', figure: true, cell: (/** @type {any} */ p) => pace(p, ['Completed', 'Truncated']) }, { head: 'Failed/min', figure: true, cell: (/** @type {any} */ p) => pace(p, ['Failed', 'InfraFailed']) },
    ]} />`}
    ${serving.length > 0 && html`<${Table} caption="InferencePools" rows=${serving} keyOf=${(/** @type {any} */ p) => p.metadata.uid} columns=${[
      { head: 'InferencePool', main: true, cell: name }, { head: 'State', cell: (/** @type {any} */ p) => html`<${PoolMark} pool=${p} />` },
      { head: 'Ready', figure: true, cell: ready }, { head: 'Sessions', figure: true, cell: (/** @type {any} */ p) => count(now('inferencePools', p)?.sessions) },
      { head: 'Tokens/s', figure: true, cell: (/** @type {any} */ p) => count(load(p).tokensPerSecond) }, { head: 'Waiting', figure: true, cell: (/** @type {any} */ p) => count(load(p).waiting) },
      { head: 'KV use', figure: true, cell: (/** @type {any} */ p) => percent(load(p).kvUsage) }, { head: 'Prefix hits', figure: true, cell: (/** @type {any} */ p) => percent(load(p).prefixHitRate) },
      { head: 'Weights', cell: (/** @type {any} */ p) => now('inferencePools', p)?.weightsVersions?.join(', ') || UNKNOWN },
    ]} />`}
    <${Missed} of=${top} what="load" />`;
}

/** @param {{batches: any[]}} props */
function RunningBatches({ batches }) {
  const running = batches.filter((b) => b.status === 'Running');
  return html`<${Table} caption="Running batches" rows=${running} keyOf=${(/** @type {any} */ b) => b.id} empty="No batch runs." columns=${[
    { head: 'Batch', main: true, cell: (/** @type {any} */ b) => html`<a href=${link(['batches', b.id], { ns: ns(b.namespace) })}>${b.id}</a>` },
    { head: 'Pool', cell: (/** @type {any} */ b) => b.pool },
    { head: 'Delivered', figure: true, cell: (/** @type {any} */ b) => html`${count(b.delivered)}<span class="dim">${b.target === null ? '' : `/${count(b.target)}`}</span>` },
    { head: 'In flight', figure: true, cell: (/** @type {any} */ b) => count(b.in_flight) },
    { head: 'Informative', figure: true, cell: (/** @type {any} */ b) => percent(b.informative_share), title: 'groups whose rewards differ, of those with a verdict and at least two rewards' },
    { head: 'Waits for', wide: true, cell: (/** @type {any} */ b) => message(b.waiting ?? '') },
  ]} />`;
}
