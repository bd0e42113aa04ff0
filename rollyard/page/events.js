/** Events: what happened to objects, newest first. */

import { live } from './live.js';
import { link, ns } from './route.js';
import { Mark } from './mark.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** @param {(event: any) => boolean} wanted @param {number} most */
export function newest(wanted, most) {
  const found = [];
  for (const event of [...live.kinds.Event.values()].reverse()) { // the newest are last
    if (wanted(event) && found.push(event) >= most) break;
  }
  return found;
}

/** The address of the object that an event is about. @param {{kind: string, namespace: string, name: string}} about */
export function objectLink(about) {
  if (about.kind === 'Allocation') return link(['allocations', about.name], { ns: ns(about.namespace) });
  if (about.kind.endsWith('Pool')) return link(['pools', about.kind, about.name], { ns: ns(about.namespace) });
  return undefined;
}

/** @param {{events: any[], empty?: string}} props */
export function Events({ events, empty = 'No event is kept. Events are deleted after some time.' }) {
  return html`<${Table} stack caption="Events" rows=${events} keyOf=${(/** @type {any} */ e) => e.metadata.uid ?? e.metadata.name} empty=${empty} columns=${[
    { head: 'Last', cell: (/** @type {any} */ e) => html`<${Time} at=${e.lastTimestamp} />` },
    { head: 'Reason', cell: (/** @type {any} */ e) => (e.type === 'Warning' ? html`<${Mark} tone="warn" word=${e.reason} />` : e.reason) },
    { head: 'Count', figure: true, cell: (/** @type {any} */ e) => e.count },
    { head: 'Object', cell: (/** @type {any} */ e) => html`<a href=${objectLink(e.involvedObject)}>${e.involvedObject.name}</a>` },
    { head: 'Message', wide: true, cell: (/** @type {any} */ e) => message(e.message) },
  ]} />`;
}
