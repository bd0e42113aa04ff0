/** Attempts and leases that were lost, though their rollouts went on. */

import { url } from './api.js';
import { count } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { html } from './view.js';

/** @param {string} namespace @param {number} since Unix seconds @param {string} subject as in `usePoll` */
export const useLosses = (namespace, since, subject) => usePoll(url('/v1/rollouts/losses', { namespace, since }), 15, subject);

/** @param {{namespace: string, since: number, hours: number}} props since: Unix seconds, `hours` ago */
export function Losses({ namespace, since, hours }) {
  const answer = useLosses(namespace, since, `${namespace} ${hours}`);
  return html`<section aria-labelledby="losses"><h2 id="losses">Lost attempts and leases, by reason</h2><p class="dim">In the time that is chosen above.</p>
    <${Loaded} of=${answer} what="losses">${(/** @type {any} */ d) => html`<${Table} stack caption="Losses by reason" rows=${d.rows} keyOf=${(/** @type {any} */ r) => `${r.reason} ${r.node}`} empty="No rollout lost an attempt or a lease, and went on, in this time." columns=${[
      { head: 'Reason', main: true, cell: (/** @type {any} */ r) => (r.reason
        ? html`<a title="rollouts of this time with such a loss" href=${link(['rollouts'], { ns: ns(namespace), lost_reason: r.reason, hours, sort: 'arrival' })}>${r.reason}</a>`
        : html`<a title="rollouts of this time with a loss" href=${link(['rollouts'], { ns: ns(namespace), lost: 'true', hours, sort: 'arrival' })}>not known</a>`) },
      { head: 'Node', cell: (/** @type {any} */ r) => r.node ?? 'not known' },
      { head: 'Losses', figure: true, title: 'infrastructure faults and lost leases after which the rollout went on', cell: (/** @type {any} */ r) => count(r.losses) },
      { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts) },
      { head: 'Newest', wide: true, cell: (/** @type {any} */ r) => html`<a href=${link(['rollouts', r.newest], { ns: ns(namespace) })}>${r.newest}</a> <${Time} at=${r.newest_at} />` },
    ]} />${d.more && html`<p class="dim">Only the newest rollouts with losses are counted. A shorter time counts them all.</p>`}`}<//></section>`;
}
