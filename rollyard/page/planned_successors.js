/** Successors that the server will submit, by its present plan. */

import { url } from './api.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { At } from './time.js';
import { html } from './view.js';

const SECONDS = 10;

/** @typedef {import('./allocation_state.js').Planned} Planned */

/** The plans of a namespace, and the answer that they are from. @param {string} namespace
 * @returns {{plans: Planned[], answer: import('./poll.js').Answer}} */
export function usePlannedSuccessors(namespace) {
  const answer = usePoll(url('/v1/allocations/successors', { namespace }), SECONDS);
  return { plans: answer.data?.successors ?? [], answer };
}

/** When a successor is submitted, and when it takes over. @param {{planned: Planned, namespace: string}} props */
export function PlannedTimes({ planned, namespace }) {
  const { waits_for: other, submit_at: submit, take_over_at: over } = planned;
  if (!other) return html`submitted about <${At} at=${submit} />, takes over about <${At} at=${over} />`;
  return html`submitted after <a href=${link(['allocations', other], { ns: ns(namespace) })}>${other}</a> has started, which takes the place of <code>maxSurge</code>; Slurm expects that at ${submit ? html`<${At} at=${submit} />` : 'no time yet'}`;
}
