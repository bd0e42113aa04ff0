/** What waits, and for what: queued rollouts by reason, and jobs in Slurm's queue. */

import { url } from './api.js';
import { count, UNKNOWN } from './format.js';
import { Missed } from './loaded.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { Time } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

const WAITING_READ = 200;

/** Pending jobs, and queued rollouts by the reason for which they wait. @param {{namespace: string, queued: unknown, allocations: any[], pool?: string}} props pool: only its rollouts */
export function Waiting({ namespace, queued, allocations, pool }) {
  const answer = usePoll(queued ? url('/v1/rollouts', { namespace, pool, status: 'Queued', limit: WAITING_READ }) : null, 6);
  const pending = allocations.filter((a) => a.status?.jobState === 'PENDING');
  /** @type {Map<string, {key: string, word: string, n: number, example: string}>} */
  const reasons = new Map();
  for (const r of answer.data?.rollouts ?? []) {
    const text = r.waiting ?? 'NotKnown: the server gave no reason';
    const word = text.split(':')[0];
    const example = text.slice(word.length + 1).trim();
    const key = `${word} ${/^the image (\S+)/.exec(example)?.[1] ?? ''}`; // each image has a row
    const found = reasons.get(key) ?? { key, word, n: 0, example };
    found.n += 1;
    reasons.set(key, found);
  }
  if (!pending.length && !queued) return null;
  return html`<section aria-labelledby="waits"><h2 id="waits">What waits, and for what</h2><${Missed} of=${answer} what="reasons for which rollouts wait" />
    ${reasons.size > 0 && html`<${Table} stack caption="Queued rollouts by reason" rows=${[...reasons.values()].sort((a, b) => b.n - a.n)} keyOf=${(/** @type {any} */ r) => r.key} columns=${[
      { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.n) }, { head: 'Reason', main: true, cell: (/** @type {any} */ r) => r.word },
      { head: 'The first of them', wide: true, cell: (/** @type {any} */ r) => message(r.example) },
    ]} />${answer.data?.next && html`<p class="dim">Of the first ${WAITING_READ} of ${count(queued)} queued rollouts.</p>`}`}
    ${pending.length > 0 && html`<${Table} stack caption="Jobs that wait in Slurm's queue" rows=${pending} keyOf=${(/** @type {any} */ a) => a.metadata.uid} columns=${[
      { head: 'Pending job', main: true, cell: (/** @type {any} */ a) => html`<a href=${link(['allocations', a.metadata.name], { ns: ns(namespace) })}>${a.metadata.name}</a>` },
      { head: 'Job', figure: true, cell: (/** @type {any} */ a) => a.status.jobId ?? UNKNOWN }, { head: "Slurm's reason", wide: true, cell: (/** @type {any} */ a) => message(a.status.reason || UNKNOWN) },
      { head: 'Expected start', cell: (/** @type {any} */ a) => html`<${Time} at=${a.status.startTime} />` },
    ]} />`}</section>`;
}
