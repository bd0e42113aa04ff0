/** The list of rollouts, with filters, page by page. */

import { url } from './api.js';
import { Filters, metadataJson } from './filters.js';
import { decimal, UNKNOWN } from './format.js';
import { objects } from './live.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { go, link, namespaceOf, ns } from './route.js';
import { Table } from './table.js';
import { Span, Time } from './time.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

const PAGE = 100;
const REFRESH_SECONDS = 5;
const STATUSES = ['Queued', 'Running', 'Completed', 'Truncated', 'Failed', 'InfraFailed', 'Cancelled'];

/** @param {string} text */
const checkMetadata = (text) => (metadataJson(text) === undefined ? 'Write pairs such as difficulty=hard, or a JSON object.' : '');

/** @param {{route: import('./route.js').Route}} props */
export function Rollouts({ route }) {
  const namespace = namespaceOf(route);
  const { pool, group, status, metadata = '', suspicious, after } = route.query;
  const asked = metadataJson(metadata);
  const answer = usePoll(asked === undefined ? null : url('/v1/rollouts', {
    namespace, pool, group, status, metadata: asked, suspicious, after, limit: PAGE,
  }), REFRESH_SECONDS);
  const pools = objects('RolloutPool', namespace).map((p) => p.metadata.name);
  return html`<h1>Rollouts</h1>
    <${Filters} route=${route} filters=${[
      { name: 'pool', label: 'Pool', options: [...new Set([...pools, ...(pool ? [pool] : [])])].map((p) => [p, p]) },
      { name: 'status', label: 'Status', options: [...STATUSES.map((s) => [s, s]), ['Queued,Running', 'unfinished'], ['Failed,InfraFailed', 'without a reward by a fault']] },
      { name: 'group', label: 'Group', hint: 'name' },
      { name: 'metadata', label: 'Metadata', hint: 'difficulty=hard', check: checkMetadata },
      { name: 'suspicious', label: 'Suspicious', options: [['true', 'rewards with marks']] },
    ]} />
    <form class="filters" onSubmit=${(/** @type {any} */ e) => { e.preventDefault(); const id = e.target.elements.id.value.trim(); if (id) go(link(['rollouts', id], { ns: ns(namespace) })); }}>
      <label>Open by id <input name="id" type="text" spellcheck="false" autocomplete="off" placeholder="id, then Enter" /></label></form>
    <${Loaded} of=${answer} what="rollouts">${(/** @type {any} */ data) => html`
      <${RolloutTable} rollouts=${data.rollouts} empty=${empty(route)} />
      <p class="pages">${after && html`<a href=${link(route.path, { ...route.query, after: undefined })}>First page</a> `}
        ${data.next && html`<a href=${link(route.path, { ...route.query, after: data.next })}>Next ${PAGE}</a>`}</p>`}<//>`;
}

/** @param {import('./route.js').Route} route */
function empty(route) {
  const filtered = Object.keys(route.query).some((k) => k !== 'ns');
  return filtered ? 'No rollout matches. Remove a filter, or choose another namespace.'
    : html`No rollout is stored in this namespace. <code>rollyard submit -f tasks.jsonl --pool POOL</code> sends some.`;
}

/** @param {{rollouts: any[], empty?: unknown}} props */
export function RolloutTable({ rollouts, empty: none }) {
  return html`<${Table} caption="Rollouts" rows=${rollouts} keyOf=${(/** @type {any} */ r) => r.id} empty=${none} columns=${[
    { head: 'Rollout', main: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts', r.id], { ns: ns(r.namespace) })}>${r.id}</a>` },
    { head: 'Status', cell: (/** @type {any} */ r) => html`<${Mark} word=${r.status} />${r.stage ? ` ${r.stage}` : ''}` },
    { head: 'Reward', figure: true, cell: (/** @type {any} */ r) => (r.reward === null ? UNKNOWN : decimal(r.reward)) },
    { head: 'Kind', cell: (/** @type {any} */ r) => r.task_kind },
    { head: 'Group', cell: (/** @type {any} */ r) => (r.group ? html`<a href=${link(['groups', r.group], { ns: ns(r.namespace) })}>${r.group}</a>` : '') },
    { head: 'Pool', cell: (/** @type {any} */ r) => r.pool },
    { head: 'Attempt', figure: true, cell: (/** @type {any} */ r) => r.attempt },
    { head: 'Accepted', cell: (/** @type {any} */ r) => html`<${Time} at=${r.created_at} />` },
    { head: 'Took', figure: true, title: 'from accepted to ended, or to now', cell: (/** @type {any} */ r) => html`<${Span} from=${r.created_at} to=${r.finished_at} />` },
    { head: 'Why', wide: true, cell: (/** @type {any} */ r) => why(r) },
  ]} />`;
}

/** @param {any} r */
function why(r) {
  if (r.error) return html`<span title=${visible(r.error.message)}>${r.error.reason}: ${short(r.error.message)}</span>`;
  return r.waiting ? html`<span title=${visible(r.waiting)}>${short(r.waiting)}</span>` : '';
}

/** @param {string} text */
function short(text) {
  const shown = visible(text).replace(/\s+/g, ' ');
  return shown.length > 120 ? `${shown.slice(0, 118)} …` : shown;
}
