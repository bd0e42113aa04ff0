/** The list of rollouts, with filters, page by page. */

import { url } from './api.js';
import { Filters } from './filters.js';
import { count, decimal, duration, UNKNOWN } from './format.js';
import { objects, useLive } from './live.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { checkMetadata, checkNumber, search } from './rollout_search.js';
import { go, link, namespaceOf, ns, option } from './route.js';
import { Table } from './table.js';
import { Span, Time } from './time.js';
import { message, visible } from './visible_text.js';
import { html } from './view.js';

const PAGE = 100;
const MOST = 400;
const REFRESH_SECONDS = 5;
const TEN_MINUTES = String(1 / 6); // hours
const STATUSES = ['Queued', 'Running', 'Completed', 'Truncated', 'Failed', 'InfraFailed', 'Cancelled'];

/** @type {[string, string][]} */
const SORTS = [['arrival', 'in order of arrival'], ['-tokens', 'most tokens'], ['tokens', 'fewest tokens'], ['-turns', 'most turns'], ['-seconds', 'longest at work'], ['-failed_calls', 'most failed calls'], ['-reward', 'highest reward'], ['reward', 'lowest reward'], ['ended', 'oldest end']];
/** @param {import('./route.js').Route} route the order: newest end first, but for rollouts that have no end */
function sortOf(route) {
  const { sort, status = '' } = route.query;
  if (sort) return sort === 'arrival' ? undefined : sort;
  return /Queued|Running/.test(status) ? undefined : '-ended';
}

/** @param {{route: import('./route.js').Route}} props */
export function Rollouts({ route }) {
  const namespace = namespaceOf(route);
  const { pool, after } = route.query;
  const conditions = search(route);
  const sort = sortOf(route);
  const limit = Math.min(Number(route.query.limit) || PAGE, MOST);
  const answer = usePoll(conditions === undefined ? null : url('/v1/rollouts', { ...conditions, sort, after: sort ? undefined : after, limit, total: 'true' }), REFRESH_SECONDS, link(route.path, route.query));
  const poolNames = () => objects('RolloutPool', namespace).map((p) => p.metadata.name);
  useLive(() => poolNames().join());
  const pools = poolNames();
  return html`<div><h1>Rollouts</h1>
    <${Filters} route=${route} filters=${[
      { name: 'pool', label: 'Pool', options: [...new Set([...pools, ...(pool ? [pool] : [])])].map((p) => [p, p]) },
      { name: 'status', label: 'Status', options: [...STATUSES.map((s) => [s, s]), ['Queued,Running', 'unfinished'], ['Failed,InfraFailed', 'ended by a fault']] },
      { name: 'kind', label: 'Task kind', hint: 'math' }, { name: 'reason', label: 'Reason of the error', hint: 'SandboxLost' }, { name: 'batch', label: 'Batch', hint: 'id' },
      { name: 'metadata', label: 'Metadata', hint: 'difficulty=hard', check: checkMetadata },
      { name: 'suspicious', label: 'Reward', options: [['true', 'suspicious (marks of hacks)']] },
      { name: 'sort', label: 'Order', options: SORTS, none: 'newest end first' },
      { name: 'group', label: 'Group', hint: 'name', seldom: true }, { name: 'prefix', label: 'Id begins with', seldom: true }, { name: 'task', label: 'Task', hint: '16 digits of its digest', seldom: true },
      { name: 'mode', label: 'Mode', options: [['train', 'train'], ['eval', 'eval'], ['check', 'check']], seldom: true },
      { name: 'min_reward', label: 'Reward at least', check: checkNumber, seldom: true }, { name: 'max_reward', label: 'Reward at most', check: checkNumber, seldom: true },
      { name: 'hours', label: 'Ended within', options: [[TEN_MINUTES, '10 minutes'], ['1', '1 hour'], ['6', '6 hours'], ['24', '1 day'], ['168', '1 week']], seldom: true },
      { name: 'failed_calls', label: 'Tool calls', options: [['true', 'some failed']], seldom: true }, { name: 'failed_tool', label: 'Failed tool', hint: 'bash', seldom: true },
      { name: 'lost', label: 'Lost', options: [['true', 'an attempt or a lease, and went on']], seldom: true }, { name: 'lost_reason', label: 'Lost by', hint: 'SandboxLost', seldom: true },
    ]} />
    <form class="filters" aria-label="Open a rollout" onSubmit=${(/** @type {any} */ e) => { e.preventDefault(); const id = e.target.elements.id.value.trim(); if (id) go(link(['rollouts', id], { ns: ns(namespace) })); }}>
      <label>Open by id <input name="id" type="text" spellcheck="false" autocomplete="off" placeholder="id, then Enter" /></label></form>
    <${Loaded} of=${answer} what="rollouts">${(/** @type {any} */ data) => html`
      <p class="dim" role="status">${totalOf(data, sort, route)} <a href=${link(['profile'], { ...route.query, sort: undefined, after: undefined, limit: undefined })}>Where their time and tokens go</a></p>
      <${RolloutTable} rollouts=${data.rollouts} empty=${empty(route, sort, data.total)} byEnd=${sort === '-ended' || sort === 'ended'} lost=${route.query.lost === 'true' || Boolean(route.query.lost_reason)} />
      <p class="pages">${pages(route, sort, data, limit)}</p>`}<//></div>`;
}

/** Conditions that only rollouts that have ended can meet, or that say which. */
const ENDS = ['status', 'reason', 'min_reward', 'max_reward', 'hours', 'suspicious', 'failed_calls', 'failed_tool'];

/** How many rollouts match, and how many of them are shown. @param {any} data @param {string | undefined} sort @param {import('./route.js').Route} route */
function totalOf(data, sort, route) {
  const [shown, total] = [data.rollouts.length, data.total];
  if (total === undefined) return `${count(shown)} shown.`;
  const ended = sort && !ENDS.some((name) => route.query[name]) ? ', also those that have not ended' : '';
  return shown === total ? `${count(total)} ${total === 1 ? 'rollout' : 'rollouts'}.` : `${count(shown)} shown of ${count(total)} that match${ended}.`;
}

/** Links to further rollouts. @param {import('./route.js').Route} route @param {string | undefined} sort @param {any} data @param {number} limit */
function pages(route, sort, data, limit) {
  if (!sort) {
    return html`${route.query.after && html`<a href=${link(route.path, { ...route.query, after: undefined })}>First page</a> `}
      ${data.next && html`<a href=${link(route.path, { ...route.query, after: data.next })}>Next ${limit}</a>`}`;
  }
  return html`${data.rollouts.length >= limit && limit < MOST && html`<a href=${link(route.path, { ...route.query, limit: Math.min(limit * 4, MOST) })}>Show more</a>`}
    ${!route.query.status && html`<span class="dim">Only rollouts that have ended. </span><a href=${link(route.path, { ...route.query, sort: undefined, status: 'Queued,Running' })}>Those that have not</a>`}`;
}

/** Why no rollout is shown. @param {import('./route.js').Route} route @param {string | undefined} sort @param {number | undefined} total number of all that match */
function empty(route, sort, total) {
  if (sort && total) {
    const why = !sort.endsWith('ended') ? `${total === 1 ? 'matches' : 'match'}, without what this order goes by` : total === 1 ? 'matches and has not ended' : 'match and have not ended';
    return html`${count(total)} ${total === 1 ? 'rollout' : 'rollouts'} ${why}. <a href=${link(route.path, { ...route.query, sort: 'arrival', after: undefined })}>List ${total === 1 ? 'it' : 'them'} in order of arrival</a>`;
  }
  if (route.query.suspicious === 'true') return 'No reward in this search has a mark of a hack.';
  const filtered = Object.keys(route.query).some((k) => k !== 'ns');
  return filtered ? 'No rollout matches. Remove a filter, or choose another namespace.'
    : html`No rollout is stored in this namespace. <code>rollyard submit -f tasks.jsonl --pool POOL${option(namespaceOf(route))}</code> sends some.`;
}

/** @param {{rollouts: any[], empty?: unknown, byEnd?: boolean, lost?: boolean}} props byEnd: they are in the order of their ends; lost: with their losses */
export function RolloutTable({ rollouts, empty: none, byEnd, lost }) {
  return html`<${Table} caption="Rollouts" rows=${rollouts} keyOf=${(/** @type {any} */ r) => r.id} empty=${none} columns=${[
    { head: 'Rollout', main: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts', r.id], { ns: ns(r.namespace) })}>${r.id}</a>` },
    { head: 'Status', cell: (/** @type {any} */ r) => html`<${Mark} word=${r.status} />${r.stage ? ` ${r.stage}` : ''}` },
    { head: 'Reward', figure: true, cell: (/** @type {any} */ r) => (r.reward === null ? UNKNOWN : decimal(r.reward)) },
    { head: 'Kind', cell: (/** @type {any} */ r) => r.task_kind },
    { head: 'Group', cell: (/** @type {any} */ r) => (r.group ? html`<a href=${link(['groups', r.group], { ns: ns(r.namespace) })}>${r.group}</a>` : '') },
    { head: 'Pool', cell: (/** @type {any} */ r) => r.pool },
    { head: 'Turns', figure: true, cell: (/** @type {any} */ r) => count(r.turns) },
    { head: 'Tokens', figure: true, title: 'sampled tokens of the last attempt', cell: (/** @type {any} */ r) => count(r.tokens) },
    { head: 'Failed calls', figure: true, title: 'tool calls of the last attempt that failed', cell: (/** @type {any} */ r) => count(r.failed_calls) },
    { head: 'Attempt', figure: true, cell: (/** @type {any} */ r) => r.attempt },
    ...(lost ? [{ head: 'Lost', figure: true, title: 'attempts and leases that were lost, after which the rollout went on', cell: (/** @type {any} */ r) => count(r.lost) }] : []),
    byEnd ? { head: 'Ended', cell: (/** @type {any} */ r) => html`<${Time} at=${r.finished_at} />` } : { head: 'Accepted', cell: (/** @type {any} */ r) => html`<${Time} at=${r.created_at} />` },
    { head: 'At work', figure: true, title: 'in INIT, RUN and EVAL of the last attempt, without waiting', cell: (/** @type {any} */ r) => duration(r.seconds) },
    { head: 'With waiting', figure: true, title: 'from accepted to ended, or to now', cell: (/** @type {any} */ r) => html`<${Span} from=${r.created_at} to=${r.finished_at} />` },
    { head: 'Why', wide: true, cell: (/** @type {any} */ r) => why(r) },
  ]} />`;
}

/** @param {any} r */
function why(r) {
  if (r.error) return html`<span class="why" title=${visible(r.error.message)}>${r.error.reason}: ${short(visible(r.error.message))}</span>`;
  return r.waiting ? html`<span class="why" title=${message(r.waiting)}>${short(message(r.waiting))}</span>` : '';
}

/** @param {string} text */
function short(text) {
  const shown = text.replace(/\s+/g, ' ');
  return shown.length > 120 ? `${shown.slice(0, 118)} …` : shown;
}
