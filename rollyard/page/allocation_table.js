/** Allocations as a table: times, nodes, and Slurm's own words. */

import { isMissed, slurmSays, spanOf, STATE_TONES, withSuccessors } from './allocation_state.js';
import { UNKNOWN } from './format.js';
import { Mark } from './mark.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { At, Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** @param {{allocations: any[], pool: any, empty: string}} props pool: the one of all of them */
export function AllocationTable({ allocations, pool, empty }) {
  const spans = allocations.map(spanOf);
  return html`<${SpanTable} spans=${withSuccessors(spans, spans, () => pool)} empty=${empty} />`;
}

/** @typedef {import('./allocation_state.js').Span} Span */

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
  { head: 'Then', title: 'the allocation that replaces it', cell: (/** @type {Span & {due?: number, successor?: string}} */ s) => (s.successor ? html`<a href=${link(['allocations', s.successor], { ns: ns(s.namespace) })}>${s.successor}</a>` : s.due ? html`successor about <${At} at=${s.due} />` : '') },
  { head: 'Reason', wide: true, cell: (/** @type {Span} */ s) => `${message(s.reason)}${s.exitCode ? ` (exit code ${s.exitCode})` : ''}` },
];

/** @param {{spans: (Span & {due?: number, successor?: string})[], empty: string}} props */
export function SpanTable({ spans, empty }) {
  return html`<${Table} caption="Allocations" rows=${spans} keyOf=${(/** @type {Span} */ s) => `${s.name}/${s.job}`} empty=${empty} columns=${COLUMNS} />`;
}
