/** How slow each node is, which faults it has, and what was lost on it. */

import { url } from './api.js';
import { count, duration, percent, share, UNKNOWN } from './format.js';
import { Loaded, Missed } from './loaded.js';
import { useLosses } from './losses.js';
import { usePoll } from './poll.js';
import { Table } from './table.js';
import { html } from './view.js';

/** @param {{namespace: string, since: number, subject: string}} props since: Unix seconds */
export function Nodes({ namespace, since, subject }) {
  const answer = usePoll(url('/v1/nodes', { namespace, since }), 15, subject);
  const losses = useLosses(namespace, since, subject);
  return html`<section aria-labelledby="nodes"><h2 id="nodes">Nodes, the slowest INIT first</h2>
    <${Loaded} of=${answer} what="nodes">${(/** @type {any} */ d) => html`<${Rows} nodes=${d.nodes} losses=${losses.data?.rows} />`}<//><${Missed} of=${losses} what="losses" /></section>`;
}

/** @param {{nodes: any[], losses: any[] | undefined}} props losses: undefined while they are not known */
function Rows({ nodes: ended, losses }) {
  const known = new Set(ended.map((n) => n.node));
  const others = new Set((losses ?? []).map((l) => l.node).filter((node) => node !== null && !known.has(node)));
  const nodes = [...ended, ...[...others].map((node) => ({ node, rollouts: 0, faults: {}, init_median: null, run_median: null }))];
  const lost = (/** @type {any} */ n) => losses?.filter((l) => l.node === n.node).reduce((sum, l) => sum + l.losses, 0);
  const faults = (/** @type {any} */ n) => Object.values(n.faults).reduce((sum, one) => sum + one, 0);
  const middle = median(nodes.map((n) => n.init_median).filter((v) => v !== null));
  return html`<${Table} stack caption="Nodes" rows=${nodes} keyOf=${(/** @type {any} */ n) => n.node} empty="No rollout ended or lost anything on a node in this time." columns=${[
    { head: 'Node', main: true, cell: (/** @type {any} */ n) => n.node },
    { head: 'INIT', figure: true, title: 'median seconds', cell: (/** @type {any} */ n) => duration(n.init_median ?? undefined) },
    { head: 'Of all nodes\' median', figure: true, title: 'INIT here / the median of INIT on all nodes', cell: (/** @type {any} */ n) => percent(share(n.init_median, middle)) },
    { head: 'RUN', figure: true, title: 'median seconds', cell: (/** @type {any} */ n) => duration(n.run_median ?? undefined) },
    { head: 'Rollouts', figure: true, cell: (/** @type {any} */ n) => count(n.rollouts) },
    { head: 'Faults', figure: true, title: 'rollouts whose last attempt ended here without a reward', cell: (/** @type {any} */ n) => count(faults(n)) },
    { head: 'Lost', figure: true, title: 'attempts and leases that were lost here, after which their rollouts went on', cell: (/** @type {any} */ n) => (losses ? count(lost(n)) : UNKNOWN) },
    { head: 'Faults by reason', wide: true, cell: (/** @type {any} */ n) => Object.entries(n.faults).map(([k, v]) => `${k} ${v}`).join(', ') },
  ]} /><p class="dim">Rollouts and faults count for the node of the last attempt, if the rollout ended in the time that is shown. Losses count for the node where they happened. Nodes with neither are not listed.</p>`;
}

/** @param {number[]} values @returns {number | undefined} */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : share(sorted[half - 1] + sorted[half], 2);
}
