/** The list of pools, and one pool. */

import { readyCount, troubles, PoolMark } from './conditions.js';
import { count, UNKNOWN } from './format.js';
import { live, objects } from './live.js';
import { Mark } from './mark.js';
import { Pool } from './pool.js';
import { link, namespaceOf, ns, option } from './route.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { html } from './view.js';

/** @param {{route: import('./route.js').Route}} props */
export function Pools({ route }) {
  if (route.path.length > 2) return html`<${Pool} route=${route} />`;
  const namespace = namespaceOf(route);
  const pools = [...objects('RolloutPool', namespace), ...objects('InferencePool', namespace)];
  return html`<div><h1>Pools</h1>${!live.listed ? html`<p class="dim">Reading the pools …</p>` : html`<${Table} caption="Pools" rows=${pools} keyOf=${(/** @type {any} */ p) => p.metadata.uid}
    empty=${html`No pool is declared in <code>${namespace}</code>. <code>rollyard apply -f examples/demo/pools.yaml --wait${option(namespace)}</code> declares two.`} columns=${[
      { head: 'Pool', main: true, cell: (/** @type {any} */ p) => html`<a href=${link(['pools', p.kind, p.metadata.name], { ns: ns(namespace) })}>${p.metadata.name}</a>` },
      { head: 'Kind', cell: (/** @type {any} */ p) => p.kind },
      { head: 'State', cell: (/** @type {any} */ p) => html`<${PoolMark} pool=${p} />` },
      ...['desired', 'requested', 'observed', 'ready', 'updated'].map((word) => ({ head: word[0].toUpperCase() + word.slice(1), figure: true, cell: (/** @type {any} */ p) => count(word === 'ready' ? readyCount(p) : p.status?.replicas?.[word]) })),
      { head: 'Size', cell: (/** @type {any} */ p) => sizeOf(p) },
      { head: 'Created', cell: (/** @type {any} */ p) => html`<${Time} at=${p.metadata.creationTimestamp} />` },
      { head: 'Trouble', wide: true, cell: (/** @type {any} */ p) => troubles(p).map((/** @type {any} */ c) => html`<${Mark} key=${c.type} tone="warn" word=${`${c.type}: ${c.reason}`} /> `) },
    ]} />`}</div>`;
}

/** @param {any} pool */
export function sizeOf(pool) {
  const { replicas, autoscaling, suspend } = pool.spec;
  if (suspend) return 'suspended';
  if (autoscaling) return `${autoscaling.minReplicas ?? 0} to ${autoscaling.maxReplicas}, by demand`;
  return replicas === undefined || replicas === null ? UNKNOWN : `fixed ${replicas}`;
}
