/** Two batches, or two trainings, side by side: a table, and their steps in one chart each. */

import { StepCharts } from './batch_steps.js';
import { UNKNOWN } from './format.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { html } from './view.js';

/** @typedef {import('./poll.js').Answer} Answer */

/** @param {{kind: string, title: string, names: string[], namespace: string, rows: [string, (v: any) => string][], of: Answer[], steps: Answer[], none?: boolean[]}} props
 * kind: the first word of the addresses. of: what the rows read. none: which of the two is not stored */
export function SideBySide({ kind, title, names, namespace, rows, of, steps, none = [] }) {
  const to = (/** @type {string} */ name) => html`<a href=${link([kind, name], { ns: ns(namespace) })}>${name}</a>`;
  return html`<div><h1><span class="kind">${title}</span> ${to(names[0])} <span class="kind">and</span> ${to(names[1])}</h1>
    ${of.map((one, i) => (one.error || none[i]) && html`<p key=${i} class="problem">${names[i]}: ${one.error ? one.error.message : 'no batch of this series is stored in this namespace'}</p>`)}
    <${Table} caption=${`Two ${kind}`} fit rows=${rows} keyOf=${(/** @type {any} */ r) => r[0]} columns=${[
      { head: '', main: true, cell: (/** @type {any} */ r) => r[0] },
      ...names.map((name, i) => ({ head: name, figure: true, cell: (/** @type {any} */ r) => (of[i].data ? r[1](of[i].data) : UNKNOWN) })),
    ]} />
    <${StepCharts} answers=${names.map((name, i) => ({ name, answer: steps[i] })).filter((_, i) => !none[i])} /></div>`;
}
