/** Evaluations: the list, one, and two compared. */

import { url } from './api.js';
import { Comparison } from './comparison.js';
import { Evaluation, versionsOf } from './evaluation.js';
import { count, decimal } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { go, link, namespaceOf, ns, option } from './route.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

/** @param {{route: import('./route.js').Route}} props */
export function Evaluations({ route }) {
  if (route.path.length > 2) return html`<${Comparison} route=${route} />`;
  return route.path.length > 1 ? html`<${Evaluation} route=${route} />` : html`<${All} route=${route} />`;
}

/** @param {{route: import('./route.js').Route}} props */
function All({ route }) {
  const namespace = namespaceOf(route);
  const answer = usePoll(url('/v1/evaluations', { namespace, limit: 200 }), 6);
  const marked = (route.query.mark ?? '').split(',').filter(Boolean);
  /** @param {string} name */
  const mark = (name) => go(link(['evaluations'], { ns: ns(namespace), mark: (marked.includes(name) ? marked.filter((m) => m !== name) : [...marked, name].slice(-2)).join(',') }), true);
  return html`<div><h1>Evaluations</h1>
    <p>${marked.length === 2 ? html`<a href=${link(['evaluations', ...marked], { ns: ns(namespace) })}>Compare ${marked[0]} with ${marked[1]}</a>` : html`<span class="dim">Mark two evaluations to compare them. The first that you mark is the one before.</span>`}</p>
    <${Loaded} of=${answer} what="evaluations">${(/** @type {any} */ d) => html`<${Table} caption="Evaluations, newest first" rows=${d.evaluations} keyOf=${(/** @type {any} */ e) => e.request.name} mark=${(/** @type {any} */ e) => (marked.includes(e.request.name) ? 'chosen' : '')}
      empty=${html`No evaluation is stored in this namespace. <code>rollyard eval run --dataset tasks.jsonl --pool POOL${option(namespace)}</code> makes one.`} columns=${[
        { head: 'Mark', cell: (/** @type {any} */ e) => html`<input type="checkbox" aria-label=${`Mark ${e.request.name}`} checked=${marked.includes(e.request.name)} onChange=${() => mark(e.request.name)} />` },
        { head: 'Evaluation', main: true, cell: (/** @type {any} */ e) => html`<a href=${link(['evaluations', e.request.name], { ns: ns(namespace) })}>${e.request.name}</a>` },
        { head: 'State', cell: (/** @type {any} */ e) => html`<${Mark} word=${e.state} />` },
        { head: 'Mean reward', figure: true, cell: (/** @type {any} */ e) => decimal(e.mean_reward) },
        { head: 'Tasks', figure: true, cell: (/** @type {any} */ e) => count(e.request.tasks) }, { head: 'k', figure: true, title: 'rollouts of each task', cell: (/** @type {any} */ e) => count(e.request.k) },
        { head: 'Ended', figure: true, cell: (/** @type {any} */ e) => html`${count(e.ended)}<span class="dim">/${count(e.request.tasks * e.request.k)}</span>` },
        { head: 'Without reward', figure: true, cell: (/** @type {any} */ e) => count(Object.values(e.faults).reduce((n, v) => n + v, 0)) },
        { head: 'Weights', cell: versionsOf }, { head: 'Pool', cell: (/** @type {any} */ e) => e.request.pool },
        { head: 'Created', cell: (/** @type {any} */ e) => html`<${Time} at=${e.created_at} />` },
        { head: 'Dataset', wide: true, cell: (/** @type {any} */ e) => visible(e.request.dataset) },
      ]} />`}<//></div>`;
}
