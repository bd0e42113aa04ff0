/** Allocations over time, and one allocation. */

import { url } from './api.js';
import { Allocation } from './allocation.js';
import { spanOf, spanOfEnded, withSuccessors } from './allocation_state.js';
import { SpanTable } from './allocation_table.js';
import { Filters } from './filters.js';
import { live, objects } from './live.js';
import { Missed } from './loaded.js';
import { usePoll } from './poll.js';
import { usePlannedSuccessors } from './planned_successors.js';
import { namespaceOf } from './route.js';
import { useNow } from './time.js';
import { Nodes } from './nodes.js';
import { Timeline } from './timeline.js';
import { hoursOf, TimeRange } from './time_range.js';
import { html } from './view.js';

const MOST_LANES = 250;
const READ_ENDED = 500;

/** @param {{route: import('./route.js').Route}} props */
export function Allocations({ route }) {
  return route.path.length > 1 ? html`<${Allocation} route=${route} />` : html`<${All} route=${route} />`;
}

/** @param {{route: import('./route.js').Route}} props */
function All({ route }) {
  const [namespace, hours, now] = [namespaceOf(route), hoursOf(route), useNow()];
  const since = Math.floor((now - hours * 3600) / 60) * 60;
  const past = usePoll(url('/v1/allocations/history', { namespace, since, limit: READ_ENDED }), 30, `${namespace} ${hours}`);
  const { plans, answer } = usePlannedSuccessors(namespace);
  const pool = route.query.pool;
  const present = objects('Allocation', namespace).map(spanOf);
  const there = new Set(present.map((s) => `${s.name}/${s.job}`));
  const ended = (past.data?.allocations ?? []).map(spanOfEnded).filter((/** @type {any} */ s) => !there.has(`${s.name}/${s.job}`));
  const spans = withSuccessors([...present, ...ended].filter((s) => (!pool || s.pool === pool) && (s.ended ?? now) >= since)
    .sort((a, b) => (b.submitted ?? 0) - (a.submitted ?? 0)), [...present, ...ended], plans);
  const to = Math.min(Math.max(now + hours * 900, ...spans.map((s) => s.walltimeEnd ?? 0)), now + hours * 3600);
  const pools = [...new Set([...objects('RolloutPool', namespace), ...objects('InferencePool', namespace)].map((p) => p.metadata.name))];
  const shown = spans.slice(0, MOST_LANES).sort((a, b) => (a.pool < b.pool ? -1 : a.pool > b.pool ? 1 : (a.submitted ?? 0) - (b.submitted ?? 0)));
  return html`<div><h1>Allocations</h1>
    <${Filters} route=${route} filters=${[{ name: 'pool', label: 'Pool', options: pools.map((p) => [p, p]) }]} />
    <${TimeRange} route=${route} />
    <${Missed} of=${past} what="list of ended allocations" /><${Missed} of=${answer} what="plan of successors" />
    ${!live.listed ? html`<p class="dim">Reading the allocations …</p>` : spans.length > 0 && html`<${Timeline} spans=${shown} from=${Math.max(since, Math.min(...shown.map((s) => s.submitted ?? since)) - 60)} to=${to} now=${now} />`}
    ${spans.length > MOST_LANES && html`<p class="dim">The newest ${MOST_LANES} of ${spans.length} are drawn; the table has all.</p>`}
    ${live.listed && html`<${SpanTable} spans=${spans} empty="No allocation existed in this time. A pool with a size above 0 makes some." />`}
    <${Nodes} namespace=${namespace} since=${since} subject=${`nodes ${namespace} ${hours}`} /></div>`;
}
