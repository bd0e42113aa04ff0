/** Model servers: what each does now, its past, and the updates of the weights. */

import { OBJECTS } from './api.js';
import { Chart } from './chart.js';
import { count, decimal, duration, percent, UNKNOWN } from './format.js';
import { live, objects } from './live.js';
import { Loaded, Missed } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { historyUrl, recordedFrom } from './pool_history.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts, Table } from './table.js';
import { Time } from './time.js';
import { hoursOf, TimeRange } from './time_range.js';
import { message, visible } from './visible_text.js';
import { html } from './view.js';

const MOST_LINES = 6;

/** @param {{route: import('./route.js').Route}} props */
export function Servers({ route }) {
  const namespace = namespaceOf(route);
  const top = usePoll(`${OBJECTS}/namespaces/${encodeURIComponent(namespace)}/top`, 3);
  const pools = objects('InferencePool', namespace).filter((p) => !route.path[1] || p.metadata.name === route.path[1]);
  return html`<div><h1>Model servers${route.path[1] ? html` of ${route.path[1]}` : ''}</h1>
    ${live.listed && !pools.length && html`<p class="empty">No InferencePool here. It is declared in YAML, as in <code>examples/demo/pools.yaml</code>.</p>`}
    ${pools.length > 0 && html`<${TimeRange} route=${route} />`}
    <${Missed} of=${top} what="load" />
    ${pools.map((pool) => html`<${OnePool} key=${pool.metadata.uid} pool=${pool} route=${route} now=${top.data?.inferencePools?.find((/** @type {any} */ p) => p.name === pool.metadata.name)} />`)}</div>`;
}

/** @param {{pool: any, now: any, route: import('./route.js').Route}} props */
function OnePool({ pool, now, route }) {
  const { namespace, name } = pool.metadata;
  const load = now?.load ?? {};
  const weights = pool.status?.weights ?? {};
  return html`<section><h2><a href=${link(['pools', 'InferencePool', name], { ns: ns(namespace) })}>${name}</a></h2>
    <${Facts} pairs=${[
      ['Sessions', count(now?.sessions)], ['Tokens/s', count(load.tokensPerSecond)], ['Prompt tokens/s', count(load.promptTokensPerSecond)],
      ['Running', count(load.running)], ['Waiting', count(load.waiting)], ['KV use', percent(load.kvUsage)], ['Prefix hits', percent(load.prefixHitRate)],
      ['First token', duration(load.firstTokenSeconds)], ['Preempted/s', decimal(load.preemptionsPerSecond)],
      ['Weights served', now?.weightsVersions?.join(', ') || UNKNOWN], ['Weights desired', weights.operation?.phase === 'Updating' ? weights.operation.target.version : weights.current?.version ?? UNKNOWN],
    ]} />
    <h3>Now</h3><${Endpoints} endpoints=${now?.endpoints ?? pool.status?.endpoints ?? []} stale=${!now} />
    <${Past} pool=${pool} route=${route} />
    <${Weights} weights=${weights} /></section>`;
}

/** @param {{endpoints: any[], stale: boolean}} props */
function Endpoints({ endpoints, stale }) {
  return html`${stale && endpoints.length > 0 && html`<p class="dim">From the pool's status; loads may be 30 s old.</p>`}
  <${Table} caption="Model servers" rows=${endpoints} keyOf=${(/** @type {any} */ e) => e.id} empty="No model server is known." columns=${[
    { head: 'Endpoint', main: true, cell: (/** @type {any} */ e) => e.id.split('/').pop() },
    { head: 'State', cell: (/** @type {any} */ e) => html`<${Mark} tone=${e.ready ? (e.draining ? 'warn' : 'good') : 'bad'} word=${e.ready ? (e.draining ? 'draining' : 'Ready') : e.reason || 'not ready'} />` },
    { head: 'Sessions', figure: true, cell: (/** @type {any} */ e) => html`${count(e.sessions)}${e.maxSessions === undefined || e.maxSessions === null ? '' : html`<span class="dim">/${e.maxSessions}</span>`}` },
    { head: 'Running', figure: true, cell: (/** @type {any} */ e) => count(e.running) }, { head: 'Waiting', figure: true, cell: (/** @type {any} */ e) => count(e.waiting) },
    { head: 'KV use', figure: true, cell: (/** @type {any} */ e) => percent(e.kvUsage) }, { head: 'Tokens/s', figure: true, cell: (/** @type {any} */ e) => count(e.tokensPerSecond) },
    { head: 'Prompt/s', figure: true, cell: (/** @type {any} */ e) => count(e.promptTokensPerSecond) }, { head: 'Prefix hits', figure: true, cell: (/** @type {any} */ e) => percent(e.prefixHitRate) },
    { head: 'First token', figure: true, cell: (/** @type {any} */ e) => duration(e.firstTokenSeconds) },
    { head: 'Weights', cell: (/** @type {any} */ e) => e.weightsVersion || UNKNOWN },
    { head: 'Note', wide: true, cell: (/** @type {any} */ e) => message([e.full, e.ready ? '' : e.reason].filter(Boolean).join('; ')) },
  ]} />`;
}

/** @param {{pool: any, route: import('./route.js').Route}} props */
function Past({ pool, route }) {
  const { namespace, name } = pool.metadata;
  const answer = usePoll(historyUrl(`/v1/history/endpoints/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, hoursOf(route)), 15, `${pool.metadata.uid} ${hoursOf(route)}`);
  return html`<h3>Over time</h3><${Loaded} of=${answer} what="history of endpoints">${(/** @type {any} */ h) => {
    const some = h.endpoints.slice(-MOST_LINES);
    const from = Math.min(...some.map((/** @type {any} */ e) => recordedFrom(h, e.metrics)));
    /** @param {string} title @param {string} of @param {(v: any) => string} format @param {number} [most] */
    const chart = (title, of, format, most) => html`<${Chart} title=${title} x=${h.times} time from=${from} to=${h.until} format=${format} most=${most}
      series=${some.map((/** @type {any} */ e) => ({ name: e.id.split('/').pop(), y: e.metrics.mean[of] ?? [] }))} />`;
    if (!some.length) return html`<p class="empty">Nothing was measured in this time.</p>`;
    return html`<div class="charts">${chart('Tokens per second', 'tokens_per_second', count)}${chart('Sessions', 'sessions', decimal)}${chart('Requests that wait', 'waiting', decimal)}${chart('KV use', 'kv_usage', percent, 1)}${chart('Prefix hits', 'prefix_hit_rate', percent, 1)}${chart('Time to the first token', 'first_token_seconds', duration)}</div>
      ${h.endpoints.length > MOST_LINES && html`<p class="dim">${MOST_LINES} of ${h.endpoints.length} endpoints are drawn.</p>`}`;
  }}<//>`;
}

/** @param {{weights: any}} props */
function Weights({ weights }) {
  const op = weights.operation;
  const rows = [...(weights.history ?? [])].reverse().slice(0, 20);
  return html`<h3>Weights</h3>
    ${op && html`<p>Last update: <${Mark} word=${op.phase} /> <strong>${op.target.version}</strong>, mode ${op.target.mode}, ${count(op.done)} of ${op.total ? count(op.total) : UNKNOWN} endpoints, began <${Time} at=${op.startedAt} />${op.finishedAt && html`, ended <${Time} at=${op.finishedAt} />`}. ${message(op.message ?? '')}${rows[0] && rows[0].version !== op.target.version && html` Since <${Time} at=${rows[0].since} /> the pool serves <strong>${rows[0].version}</strong>.`}</p>
      ${Object.keys(op.endpoints ?? {}).length > 0 && html`<ul class="notes">${Object.entries(op.endpoints).map(([id, p]) => html`<li key=${id}>${id}: <${Mark} word=${p.phase} /> since <${Time} at=${p.since} /> ${message(p.reason ?? '')}</li>`)}</ul>`}`}
    <${Table} caption="Weights versions, newest first" rows=${rows} keyOf=${(/** @type {any} */ r) => String(r.number)} empty="No version was served yet." columns=${[
      { head: 'Version', main: true, cell: (/** @type {any} */ r) => r.version }, { head: 'Number', figure: true, cell: (/** @type {any} */ r) => r.number },
      { head: 'Since', cell: (/** @type {any} */ r) => html`<${Time} at=${r.since} />` }, { head: 'From', cell: (/** @type {any} */ r) => r.origin },
      { head: 'Source', wide: true, cell: (/** @type {any} */ r) => html`<code>${visible(r.path ?? r.adapter ?? '')}</code>` },
    ]} />`;
}
