/** A rollout's history as spans of time: queued, INIT, RUN, EVAL, one after another, for each attempt. */

/** @typedef {{kind: 'queued' | 'INIT' | 'RUN' | 'EVAL', from: number, to: number, attempt: number, lease: number, open: boolean, why: string}} Phase */

const BACK_TO_QUEUE = new Set(['HandedBack', 'LeaseLost', 'Fault', 'Outdated', 'ImageMissing']);

/** @param {any[]} entries oldest first @param {number} now Unix seconds @returns {Phase[]} */
export function phases(entries, now) {
  /** @type {Phase[]} */
  const found = [];
  /** @type {Phase | null} */
  let current = null;
  const close = (/** @type {number} */ at) => {
    if (current) found.push({ ...current, to: Math.max(at, current.from), open: false });
    current = null;
  };
  for (const e of entries) {
    if (e.event === 'Queued') current = { kind: 'queued', from: e.at, to: e.at, attempt: e.attempt, lease: e.lease ?? 0, open: true, why: '' };
    else if (e.event === 'Leased') {
      close(e.at);
      current = { kind: e.stage, from: e.at, to: e.at, attempt: e.attempt, lease: e.lease ?? 0, open: true, why: `node ${e.node ?? 'not known'}` };
    } else if (e.event === 'StageBegun') {
      close(e.at);
      current = { kind: e.stage, from: e.at, to: e.at, attempt: e.attempt, lease: e.lease ?? 0, open: true, why: '' };
    } else if (BACK_TO_QUEUE.has(e.event)) {
      close(e.at);
      current = { kind: 'queued', from: e.at, to: e.at, attempt: e.attempt, lease: e.lease ?? 0, open: true, why: `${e.event} ${e.turns !== undefined && e.message ? e.message : e.reason ?? ''}`.trim() };
    } else if (e.event === 'Ended') close(e.at);
  }
  if (current) found.push({ .../** @type {Phase} */ (current), to: Math.max(now, /** @type {Phase} */ (current).from) });
  return found;
}
