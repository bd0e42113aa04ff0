/** The state of an allocation in one word, from its object or from its entry among the ended ones. */

import { unix } from './format.js';

/** @typedef {'pending' | 'starting' | 'ready' | 'not ready' | 'suspended' | 'draining' | 'ending' | 'ended' | 'failed'} State */
/**
 * @typedef {object} Span one allocation on the axis of time; times in Unix seconds
 * @property {string} namespace
 * @property {string} name
 * @property {string} pool
 * @property {string} poolKind
 * @property {State} state
 * @property {number | undefined} submitted
 * @property {number | undefined} started undefined: it has not started
 * @property {number | undefined} ready
 * @property {number | undefined} ended undefined: it lives
 * @property {number | undefined} walltimeEnd
 * @property {number | undefined} expectedStart Slurm's estimate
 * @property {string} node
 * @property {string} job
 * @property {string} jobState Slurm's word, or Rollyard's: GONE, and FAILED for a submit that was refused
 * @property {string} reason Slurm's or our reason, as it came
 * @property {string | undefined} successorOf
 * @property {number | undefined} exitCode
 */

const ENDED = new Set(['COMPLETED', 'FAILED', 'TIMEOUT', 'CANCELLED', 'NODE_FAIL', 'PREEMPTED', 'OUT_OF_MEMORY', 'BOOT_FAIL', 'DEADLINE', 'REVOKED', 'GONE', 'LAUNCH_FAILED', 'RECONFIG_FAIL']);
/** Ends that are no fault of a job, a node or the template. That of GONE is not known. */
const QUIET_ENDS = new Set(['COMPLETED', 'CANCELLED', 'TIMEOUT', 'PREEMPTED', 'DEADLINE', 'REVOKED', 'GONE']);

/** Spans of allocations, for as long as these stay as they are: what shows one is drawn again only if its object changes.
 * @type {WeakMap<any, Span>} */
const spans = new WeakMap();

/** @param {any} a an Allocation, or an entry of /v1/allocations/history @param {(a: any) => Span} make */
function kept(a, make) {
  const found = spans.get(a) ?? make(a);
  spans.set(a, found);
  return found;
}

/** @param {any} a an Allocation @returns {Span} */
export const spanOf = (a) => kept(a, newSpan);

/** @param {any} e an entry of /v1/allocations/history @returns {Span} */
export const spanOfEnded = (e) => kept(e, endedSpan);

/** @param {any} a @returns {Span} */
function newSpan(a) {
  const s = a.status ?? {};
  const jobState = s.jobState ?? '';
  const ended = ENDED.has(jobState);
  const began = jobState !== '' && jobState !== 'PENDING' && Boolean(s.node);
  const end = unix(s.endTime);
  return {
    namespace: a.metadata.namespace,
    name: a.metadata.name,
    pool: a.spec.pool.name,
    poolKind: a.spec.pool.kind,
    state: ended ? (QUIET_ENDS.has(jobState) ? 'ended' : 'failed') : !began ? 'pending' : liveState(a),
    submitted: unix(s.intendedAt) ?? unix(a.metadata.creationTimestamp),
    started: began ? unix(s.startTime) : undefined,
    ready: unix(s.readyAt),
    ended: ended ? end ?? unix(a.metadata.creationTimestamp) : undefined,
    walltimeEnd: ended || !began ? undefined : end,
    expectedStart: began ? undefined : unix(s.startTime),
    node: s.node ?? '',
    job: s.jobId ?? '',
    jobState,
    reason: s.reason ?? '',
    successorOf: a.spec.successorOf,
    exitCode: s.exitCode,
  };
}

/** @param {any} a an Allocation whose job has started @returns {State} */
function liveState({ spec, status }) {
  if (status.jobState === 'COMPLETING') return 'ending';
  if (status.jobState === 'SUSPENDED') return 'suspended';
  if (spec.drain) return 'draining';
  return status.ready ? 'ready' : status.readyAt ? 'not ready' : 'starting';
}

/** What Slurm says of the job, in its own word where it has one. @param {Span} span */
export function slurmSays({ job, jobState }) {
  if (jobState === 'GONE') return 'no longer knows it';
  return jobState === 'FAILED' && !job ? 'refused the submit' : jobState;
}

/** Whether the end's time is not known: the job was missed at `ended`. @param {Span} span */
export const isMissed = (span) => span.jobState === 'GONE';

/** @param {any} e @returns {Span} */
function endedSpan(e) {
  return {
    namespace: e.namespace, name: e.name, pool: e.pool, poolKind: e.pool_kind, state: QUIET_ENDS.has(e.job_state) ? 'ended' : 'failed',
    submitted: e.submitted_at ?? undefined, started: e.started_at ?? undefined, ready: e.ready_at ?? undefined, ended: e.ended_at,
    walltimeEnd: undefined, expectedStart: undefined, node: e.node, job: e.job_id, jobState: e.job_state, reason: e.reason,
    successorOf: e.successor_of ?? undefined, exitCode: e.exit_code ?? undefined,
  };
}

/** @typedef {{allocation: string, waits_for: string | null, submit_at: number | null, take_over_at: number | null}} Planned a successor that the server will submit */
/** @typedef {Span & {planned?: Planned, successor?: string}} Followed */

/** @type {WeakMap<Span, Followed>} */
const followed = new WeakMap();

/** Spans with what follows each: its successor, or the one that is planned.
 * @param {Span[]} spans @param {Span[]} present those among which successors are @param {Planned[]} plans by the server
 * @returns {Followed[]} */
export function withSuccessors(spans, present, plans) {
  const by = new Map(present.filter((s) => s.successorOf).map((s) => [s.successorOf, s.name]));
  const planned = new Map(plans.map((p) => [p.allocation, p]));
  return spans.map((s) => {
    const [successor, plan] = [by.get(s.name), by.has(s.name) || s.ended !== undefined ? undefined : planned.get(s.name)];
    const before = followed.get(s);
    const found = before && before.successor === successor && isSame(before.planned, plan) ? before : { ...s, successor, planned: plan };
    followed.set(s, found);
    return found;
  });
}

/** @param {Planned | undefined} a @param {Planned | undefined} b */
const isSame = (a, b) => a?.waits_for === b?.waits_for && a?.submit_at === b?.submit_at && a?.take_over_at === b?.take_over_at;

/** @type {Record<State, import('./mark.js').Tone>} */
export const STATE_TONES = {
  pending: 'wait', starting: 'work', ready: 'good', 'not ready': 'bad', suspended: 'warn', draining: 'warn', ending: 'wait', ended: 'none', failed: 'bad',
};
