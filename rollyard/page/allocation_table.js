/** Allocations as a table: times, nodes, and Slurm's own words. */

import { isMissed, slurmSays, spanOf, STATE_TONES, withSuccessors } from './allocation_state.js';
import { UNKNOWN } from './format.js';
import { Missed } from './loaded.js';
import { Mark } from './mark.js';
import { usePlannedSuccessors } from './planned_successors.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { At, Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** @param {{allocations: any[], namespace: string, empty: string}} props */
export function AllocationTable({ allocations, namespace, empty }) {
  const [spans, { plans, answer }] = [allocations.map(spanOf), usePlannedSuccessors(namespace)];
  return html`<${Missed} of=${answer} what="plan of successors" /><${SpanTable} spans=${withSuccessors(spans, spans, plans)} empty=${empty} />`;
}

/** @typedef {import('./allocation_state.js').Span} Span */
/** @typedef {import('./allocation_state.js').Followed} Followed */

/** @type {import('./table.js').Column[]} */
const COLUMNS = [
  { head: 'Allocation', main: true, cell: (/** @type {Span} */ s) => html`<a href=${link(['allocations', s.name], { ns: ns(s.namespace) })}>${s.name}</a>` },
  { head: 'State', cell: (/** @type {Span} */ s) => html`<${Mark} tone=${STATE_TONES[s.state]} word=${s.state} />` },
  { head: 'Job', figure: true, cell: (/** @type {Span} */ s) => s.job || UNKNOWN },
  { head: 'Slurm says', cell: (/** @type {Span} */ s) => slurmSays(s) || UNKNOWN },
  { head: 'Node', cell: (/** @type {Span} */ s) => s.node || UNKNOWN },
  { head: 'Submitted', cell: (/** @type {Span} */ s) => html`<${Time} at=${s.submitted} />` },
  { head: 'Started', cell: (/** @type {Span} */ s) => html`<${Time} at=${s.started} />` },
  { head: 'Ends', title: 'end of the job, or of its walltime', cell: (/** @type {Span} */ s) => html`${isMissed(s) ? 'before ' : ''}<${At} at=${s.ended ?? s.walltimeEnd} />` },
  { head: 'Then', title: 'the allocation that replaces it, or when one is submitted', cell: (/** @type {Followed} */ s) => (s.successor ? html`<a href=${link(['allocations', s.successor], { ns: ns(s.namespace) })}>${s.successor}</a>` : s.planned ? html`a successor is submitted${s.planned.waits_for && ` after ${s.planned.waits_for} has started`}${s.planned.submit_at && html`, about <${At} at=${s.planned.submit_at} />`}${s.planned.take_over_at && html`, and takes over about <${At} at=${s.planned.take_over_at} />`}` : '') },
  { head: 'Reason', wide: true, cell: (/** @type {Span} */ s) => `${message(s.reason)}${s.exitCode ? ` (exit code ${s.exitCode})` : ''}` },
];

/** @param {{spans: Followed[], empty: string}} props */
export function SpanTable({ spans, empty }) {
  return html`<${Table} caption="Allocations" rows=${spans} keyOf=${(/** @type {Span} */ s) => `${s.name}/${s.job}`} empty=${empty} columns=${COLUMNS} />`;
}
