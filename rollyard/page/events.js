/** Events: what happened to objects, newest first. */

import { unix } from './format.js';
import { live, object } from './live.js';
import { link, ns } from './route.js';
import { Mark } from './mark.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

const LISTED = 500; // the server begins with so many events at most

/** @param {(event: any) => boolean} wanted @param {number} [most] */
export function newest(wanted, most = Infinity) {
  const found = [];
  for (const event of [...live.kinds.Event.values()].reverse()) { // the newest are last
    if (wanted(event) && found.push(event) >= most) break;
  }
  return found;
}

/** Events merged by reason and pool: each is the newest of its group, with the sum of their counts.
 * @param {any[]} events newest first @returns {any[]} */
export function mergedByPool(events) {
  /** @type {Map<string, any>} */
  const groups = new Map();
  for (const event of events) {
    const name = `${event.reason} ${poolOf(event.involvedObject)}`;
    const group = groups.get(name);
    if (group) group.count += event.count;
    else groups.set(name, { ...event, metadata: { name } });
  }
  return [...groups.values()];
}

/** The kind and name of an object's pool, or of an object that has none. @param {{kind: string, namespace: string, name: string}} about */
function poolOf(about) {
  if (about.kind !== 'Allocation') return `${about.kind} ${about.name}`;
  const pool = object('Allocation', about.namespace, about.name)?.spec.pool;
  if (pool) return `${pool.kind} ${pool.name}`;
  const [, name, kind] = /^(.+)-(rp|ip)-\d+$/.exec(about.name) ?? []; // the object is deleted: only its name says it
  return name ? `${kind === 'ip' ? 'InferencePool' : 'RolloutPool'} ${name}` : `${about.kind} ${about.name}`;
}

/** Unix seconds of the oldest event that the page has, if the server may have older ones. */
export function knownSince() {
  return live.kinds.Event.size < LISTED ? undefined : unix(live.kinds.Event.values().next().value.lastTimestamp);
}

/** The address of the object that an event is about. @param {{kind: string, namespace: string, name: string}} about */
export function objectLink(about) {
  if (about.kind === 'Allocation') return link(['allocations', about.name], { ns: ns(about.namespace) });
  if (about.kind.endsWith('Pool')) return link(['pools', about.kind, about.name], { ns: ns(about.namespace) });
  return undefined;
}

/** @param {{events: any[], empty?: string, caption?: string}} props */
export function Events({ events, empty = 'No event is kept. Events are deleted after some time.', caption = 'Events' }) {
  return html`<${Table} stack caption=${caption} rows=${events} keyOf=${(/** @type {any} */ e) => e.metadata.uid ?? e.metadata.name} empty=${empty} columns=${[
    { head: 'Last', cell: (/** @type {any} */ e) => html`<${Time} at=${e.lastTimestamp} />` },
    { head: 'Reason', cell: (/** @type {any} */ e) => (e.type === 'Warning' ? html`<${Mark} tone="warn" word=${e.reason} />` : e.reason) },
    { head: 'Count', figure: true, cell: (/** @type {any} */ e) => e.count },
    { head: 'Object', cell: (/** @type {any} */ e) => html`<a href=${objectLink(e.involvedObject)}>${e.involvedObject.name}</a>` },
    { head: 'Message', wide: true, cell: (/** @type {any} */ e) => message(e.message) },
  ]} />`;
}
