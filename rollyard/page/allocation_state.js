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

/** The time at which a successor should be ready; undefined where there is no walltime, or where nobody knows when one can be
 * submitted. @param {Span} span @param {any} pool @param {Span[]} present those among which successors are */
export function successorDue(span, pool, present) {
  return laterDue(usualDue(span, pool), span, present, pool);
}

/** The time at which a successor should be ready, by the pool's spec. @param {Span} span @param {any} pool */
function usualDue(span, pool) {
  if (!pool || span.walltimeEnd === undefined || span.started === undefined || span.state === 'draining') return undefined;
  const stages = pool.spec.stages ?? {};
  const budget = ['init', 'run', 'eval'].reduce((n, s) => n + (stages[s]?.timeoutSeconds ?? 0), 0);
  const wanted = pool.spec.renewal?.beforeExpirySeconds ?? (pool.kind === 'RolloutPool' ? budget + 30 : 900);
  return span.walltimeEnd - Math.min(wanted, (span.walltimeEnd - span.started) / 2);
}

/** The time of a successor that may have to wait: while other successors have all places of `maxSurge`, none is submitted before
 * Slurm starts one of them. Undefined where nobody knows when that is. @param {number | undefined} due @param {Span} span
 * @param {Span[]} present @param {any} pool */
function laterDue(due, span, present, pool) {
  if (due === undefined) return undefined;
  const own = present.filter((s) => s.namespace === span.namespace && s.poolKind === span.poolKind && s.pool === span.pool);
  const successors = own.filter((s) => own.some((old) => old.name === s.successorOf));
  const pending = successors.filter((s) => s.state === 'pending');
  if (!pending.length || successors.length < (pool.spec.renewal?.maxSurge ?? 1)) return due;
  const free = Math.min(...pending.map((s) => s.expectedStart ?? Infinity));
  return Number.isFinite(free) ? Math.max(due, free) : undefined;
}

/** @type {WeakMap<Span, Span & {due?: number, successor?: string}>} */
const followed = new WeakMap();

/** Spans with what follows each: its successor, or the time at which one should be ready.
 * @param {Span[]} spans @param {Span[]} present those among which successors are @param {(span: Span) => any} poolOf
 * @returns {(Span & {due?: number, successor?: string})[]} */
export function withSuccessors(spans, present, poolOf) {
  const by = new Map(present.filter((s) => s.successorOf).map((s) => [s.successorOf, s.name]));
  return spans.map((s) => {
    const [successor, due] = [by.get(s.name), by.has(s.name) ? undefined : successorDue(s, poolOf(s), present)];
    const before = followed.get(s);
    const found = before && before.successor === successor && before.due === due ? before : { ...s, successor, due };
    followed.set(s, found);
    return found;
  });
}

/** @type {Record<State, import('./mark.js').Tone>} */
export const STATE_TONES = {
  pending: 'wait', starting: 'work', ready: 'good', 'not ready': 'bad', suspended: 'warn', draining: 'warn', ending: 'wait', ended: 'none', failed: 'bad',
};
