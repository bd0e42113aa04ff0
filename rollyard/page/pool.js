/** One pool: size, conditions, stages, decisions, allocations, images, weights, events, spec. */

import { OBJECTS } from './api.js';
import { AllocationTable } from './allocation_table.js';
import { Conditions, PoolMark, readyCount } from './conditions.js';
import { Events, newest } from './events.js';
import { bytes, count, decimal, duration, UNKNOWN, unix } from './format.js';
import { live, object, objects } from './live.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { PoolHistory } from './pool_history.js';
import { Profile } from './profile.js';
import { Revisions } from './revisions.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts, Table } from './table.js';
import { hoursOf } from './time_range.js';
import { TextBlock } from './text_block.js';
import { Time } from './time.js';
import { message, visible } from './visible_text.js';
import { html } from './view.js';
import { Waiting } from './waiting.js';

/** @param {{route: import('./route.js').Route}} props */
export function Pool({ route }) {
  const [namespace, kind, name] = [namespaceOf(route), route.path[1], route.path[2]];
  const pool = live.kinds[kind] && object(kind, namespace, name);
  const top = usePoll(pool ? `${OBJECTS}/namespaces/${encodeURIComponent(namespace)}/top` : null, 4);
  if (!pool) {
    return html`<h1><span class="kind">Pool</span> ${name}</h1>${!live.listed ? html`<p class="empty">Reading the pools …</p>`
      : !live.connected ? html`<p class="dim" role="status">Not known: ${kind} ${name}.</p>`
      : html`<p class="empty">There is no ${kind} ${name} in the namespace ${namespace}. It was deleted, or the address is wrong.</p>`}`;
  }
  const owned = objects('Allocation', namespace).filter((a) => a.spec.pool.uid === pool.metadata.uid);
  const about = new Set([pool.metadata.uid, ...owned.map((a) => a.metadata.uid)]);
  const now = top.data?.[kind === 'RolloutPool' ? 'rolloutPools' : 'inferencePools']?.find((/** @type {any} */ p) => p.name === name);
  const status = pool.status ?? {};
  const size = status.replicas ?? {};
  return html`<div><h1><span class="kind">${kind}</span> ${name}</h1>
    <${Facts} pairs=${[
      ['State', html`<${PoolMark} pool=${pool} />`],
      ...['desired', 'requested', 'observed', 'ready', 'updated'].map((w) => [w[0].toUpperCase() + w.slice(1), count(w === 'ready' ? readyCount(pool) : size[w])]),
      ['Created', html`<${Time} at=${pool.metadata.creationTimestamp} />`],
      ['From submit to ready', duration(status.startupSeconds)],
      ['GPU-hours', status.gpuLedger?.past || Object.keys(status.gpuLedger?.spells ?? {}).length ? `${decimal(gpuHours(status.gpuLedger))}${pool.spec.maxGpuHours ? ` of ${pool.spec.maxGpuHours}` : ''}` : 'no GPU'],
      ...(kind === 'RolloutPool' ? roles(pool, namespace) : [['Model servers', html`<a href=${link(['servers', name], { ns: ns(namespace) })}>${(status.endpoints ?? []).length}</a>`]]),
    ]} />
    <section><h2>Conditions</h2><${Conditions} conditions=${status.conditions ?? []} /></section>
    ${kind === 'RolloutPool' && html`<${Stages} pool=${pool} now=${now} top=${top} />`}
    <${Waiting} namespace=${namespace} allocations=${owned} pool=${name} queued=${kind === 'RolloutPool' ? now?.stages?.INIT?.queued || now?.stages?.EVAL?.queued : 0} />
    <${PoolHistory} pool=${pool} route=${route} />
    <${Decisions} pool=${pool} />
    <${Revisions} pool=${pool} />
    <section><h2>Allocations</h2><${AllocationTable} allocations=${owned} namespace=${pool.metadata.namespace} empty="The pool has no allocation now." /></section>
    ${kind === 'RolloutPool' && html`<${PoolProfile} pool=${pool} route=${route} /><${Images} pool=${pool} stored=${now?.images} />`}
    <section><h2>Events</h2><${Events} events=${newest((e) => about.has(e.involvedObject.uid), 30)} /></section>
    <section><h2>Spec</h2><${TextBlock} text=${JSON.stringify(pool.spec, null, 2)} label="Spec" kind="code" /></section></div>`;
}

/** @param {any} ledger GPU-seconds of past allocations, and of those that exist */
function gpuHours(ledger) {
  const now = Date.now() / 1000;
  const spells = Object.values(ledger.spells ?? {}).map((s) => s.gpus * Math.max(0, Math.min(unix(s.end) ?? now, now) - (unix(s.start) ?? now)));
  return (spells.reduce((a, b) => a + b, ledger.past ?? 0)) / 3600;
}

/** @param {any} pool @param {string} namespace @returns {[string, unknown][]} */
function roles(pool, namespace) {
  return Object.entries(pool.spec.inference ?? {}).map(([role, name]) => [`Role ${role}`, html`<a href=${link(['pools', 'InferencePool', name], { ns: ns(namespace) })}>${name}</a>`]);
}

/** @param {{pool: any, now: any, top: import('./poll.js').Answer}} props */
function Stages({ pool, now, top }) {
  const rows = ['INIT', 'RUN', 'EVAL'].map((stage) => ({ stage, spec: pool.spec.stages?.[stage.toLowerCase()], ...(now?.stages?.[stage] ?? {}) }));
  const boxes = now?.sandboxes;
  return html`<section><h2>Stages</h2><${Loaded} of=${top} what="load">${() => null}<//>
    <${Table} caption="Stages" fit rows=${rows} keyOf=${(/** @type {any} */ r) => r.stage} columns=${[
      { head: 'Stage', main: true, cell: (/** @type {any} */ r) => r.stage },
      { head: 'Queued', figure: true, cell: (/** @type {any} */ r) => count(r.queued) },
      { head: 'In flight', figure: true, cell: (/** @type {any} */ r) => count(r.inFlight) },
      { head: 'Width', figure: true, title: 'stage workers of all ready allocations', cell: (/** @type {any} */ r) => count(r.width) },
      { head: 'Wait for a worker', figure: true, cell: (/** @type {any} */ r) => (r.width === undefined ? UNKNOWN : count(Math.max(0, r.inFlight - r.width))) },
      { head: 'Workers of an allocation', cell: (/** @type {any} */ r) => `${r.spec?.workers?.min ?? UNKNOWN} to ${r.spec?.workers?.max ?? UNKNOWN}` },
      { head: 'Time budget', figure: true, cell: (/** @type {any} */ r) => duration(r.spec?.timeoutSeconds) },
    ]} />
    ${boxes && html`<p class="dim">Sandboxes since the node agents began: ${count(boxes.ready)} warm now; rollouts got ${count(boxes.warm)} warm and ${count(boxes.cold)} cold; ${count(boxes.unused)} warm ones ended unused; ${count(boxes.kept)} of failed attempts are kept.</p>`}</section>`;
}

/** @param {{pool: any}} props */
function Decisions({ pool }) {
  const rows = [...(pool.status?.decisions ?? [])].reverse().map((d, i) => ({ ...d, i }));
  return html`<section><h2>Scaling decisions</h2><${Table} caption="Scaling decisions, newest first" rows=${rows} keyOf=${(/** @type {any} */ d) => `${d.time}${d.i}`}
    empty=${pool.spec.autoscaling ? 'None yet.' : 'The size is fixed by the spec, so nothing is decided.'} columns=${[
      { head: 'When', cell: (/** @type {any} */ d) => html`<${Time} at=${d.time} />` },
      { head: 'Desired', figure: true, cell: (/** @type {any} */ d) => count(d.desired) },
      { head: 'Why', wide: true, cell: (/** @type {any} */ d) => message(d.message) },
    ]} /></section>`;
}

/** Rollouts of the pool that ended in the time that the charts show. @param {{pool: any, route: import('./route.js').Route}} props */
function PoolProfile({ pool, route }) {
  const { namespace, name } = pool.metadata;
  const hours = hoursOf(route);
  const since = Math.floor(Date.now() / 60000) * 60 - hours * 3600;
  return html`<section aria-labelledby="goes"><h2 id="goes">Where time and tokens go</h2>
    <p class="dim">Rollouts of this pool that ended within the time that is chosen above. <a href=${link(['profile'], { ns: ns(namespace), pool: name })}>All that are stored</a></p>
    <${Profile} conditions=${{ namespace, pool: name, since }} query=${{ ns: ns(namespace), pool: name, hours }} /></section>`;
}

/** @param {{pool: any, stored: any}} props */
function Images({ pool, stored }) {
  const answer = usePoll('/v1/images', 30);
  const own = pool.spec.sandbox?.defaultImage;
  return html`<section><h2>Images</h2><p>Default of this pool: <code>${own ? visible(typeof own === 'string' ? own : JSON.stringify(own)) : 'none'}</code></p>
    ${stored?.images > 0 && html`<p class="dim">The caches of its nodes have ${count(stored.images)} images of ${count(stored.layers)} layers: ${bytes(stored.bytes)}, and ${bytes(stored.unsharedBytes)} if none shared a layer.${stored.evictedLayers > 0 ? ` Evicted: ${count(stored.evictedLayers)} layers, ${bytes(stored.evictedBytes)}.` : ''}</p>`}
    <${Loaded} of=${answer} what="images">${(/** @type {any} */ d) => html`<${Missing} images=${d.missing.filter((/** @type {any} */ m) => m.namespace === pool.metadata.namespace && m.pool === pool.metadata.name)} />${(d.needed.length
      ? html`<h3>Needed now, by unfinished rollouts of all pools</h3><ul class="notes">${d.needed.map((/** @type {string} */ i) => html`<li key=${i}><code>${visible(i)}</code></li>`)}</ul>`
      : html`<p class="empty">No unfinished rollout names an image.</p>`)}`}<//></section>`;
}

/** Images that the pool's nodes cannot have now. @param {{images: any[]}} props */
function Missing({ images }) {
  if (!images.length) return null;
  return html`<h3>Missing on the nodes of this pool: ${count(images.length)}</h3><${Table} stack caption="Missing images" rows=${images} keyOf=${(/** @type {any} */ m) => m.image} columns=${[
    { head: 'Image', main: true, cell: (/** @type {any} */ m) => html`<code>${visible(m.image)}</code>` }, { head: 'Failures', figure: true, cell: (/** @type {any} */ m) => count(m.failures) },
    { head: 'Since', cell: (/** @type {any} */ m) => html`<${Time} at=${m.since} />` },
    { head: 'Rollouts', figure: true, title: 'queued rollouts that need the image', cell: (/** @type {any} */ m) => count(m.waiting) }, { head: 'Next try', cell: (/** @type {any} */ m) => message(m.next_try) },
    { head: 'Why', wide: true, cell: (/** @type {any} */ m) => `${message(m.message)}${m.permanent ? ' Somebody must change the image or the pool.' : ''}` },
  ]} />`;
}
