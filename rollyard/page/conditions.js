/** Conditions of pools, and what in them is trouble. */

import { Mark } from './mark.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** Types that report trouble beside Ready and Updated, with the status that does so. @type {Record<string, string>} */
const TROUBLE = {
  EnoughMemory: 'False', ImagesReady: 'False', ImagesWritable: 'False', NodesUsable: 'False', RenewalBlocked: 'True', SlurmReachable: 'False', ToolCalls: 'False',
};
/** Reasons of a Ready or Updated that is not True, and that somebody wants. */
const QUIET = new Set(['Suspended', 'Deleting', 'Updating']);

/** @param {any} condition @returns {import('./mark.js').Tone} */
export function toneOfCondition(condition) {
  if (condition.status === 'Unknown') return 'none';
  const main = condition.type === 'Ready' || condition.type === 'Updated';
  if (!main && !TROUBLE[condition.type]) return 'wait';
  if (main ? condition.status === 'True' : TROUBLE[condition.type] !== condition.status) return 'good';
  if (QUIET.has(condition.reason)) return 'wait';
  if (main && /^(Waiting|Loading|Weights)/.test(condition.reason)) return 'wait';
  return main || condition.type === 'SlurmReachable' ? 'bad' : 'warn';
}

/** Conditions of a pool that need somebody. @param {any} pool @returns {any[]} */
export function troubles(pool) {
  return (pool.status?.conditions ?? []).filter((/** @type {any} */ c) => ['bad', 'warn'].includes(toneOfCondition(c)));
}

/** The number of ready allocations that serve; 0 where enough are ready and the pool is not. @param {any} pool @returns {number | undefined} */
export function readyCount(pool) {
  const { ready, desired } = pool.status?.replicas ?? {};
  const is = (pool.status?.conditions ?? []).some((/** @type {any} */ c) => c.type === 'Ready' && c.status === 'True');
  return is || ready === undefined || ready < desired ? ready : 0;
}

/** The pool's state in a mark. @param {{pool: any}} props */
export function PoolMark({ pool }) {
  const ready = (pool.status?.conditions ?? []).find((/** @type {any} */ c) => c.type === 'Ready');
  if (!ready) return html`<${Mark} tone="none" word="not known" />`;
  return html`<${Mark} tone=${toneOfCondition(ready)} word=${ready.status === 'True' ? 'Ready' : ready.reason} title=${message(ready.message)} />`;
}

/** @param {{conditions: any[]}} props */
export function Conditions({ conditions }) {
  return html`<${Table} stack caption="Conditions" rows=${conditions} keyOf=${(/** @type {any} */ c) => c.type}
    empty="No condition was observed yet." columns=${[
      { head: 'Condition', main: true, cell: (/** @type {any} */ c) => c.type },
      { head: 'Status', cell: (/** @type {any} */ c) => html`<${Mark} tone=${toneOfCondition(c)} word=${c.status} />` },
      { head: 'Reason', cell: (/** @type {any} */ c) => c.reason },
      { head: 'Since', cell: (/** @type {any} */ c) => html`<${Time} at=${c.lastTransitionTime} />` },
      { head: 'Message', wide: true, cell: (/** @type {any} */ c) => message(c.message) },
    ]} />`;
}
