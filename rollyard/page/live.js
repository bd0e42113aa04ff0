/** The objects of all kinds, kept current by one stream of changes (`/v1/changes`). */

import { request } from './api.js';
import { useEffect, useRef, useState } from './view.js';

const SILENT_MS = 25_000; // the server sends a line every 10 s at least
const FIRST_WAIT_MS = 1_000;
const MOST_WAIT_MS = 30_000;
const HIDDEN_MS = 30_000; // a tab that nobody sees gives its connection back after this time
const NOTIFY_MS = 250;
const REST = 4; // drawing takes at most a fifth of the time
const MOST = { Event: 1000, Allocation: 5000 };

/** @typedef {Record<string, Map<string, any>>} Kinds */

/** @returns {Kinds} */
const empty = () => ({ RolloutPool: new Map(), InferencePool: new Map(), Allocation: new Map(), Event: new Map() });

export const live = {
  /** @type {Kinds} */
  kinds: empty(),
  /** Whether the objects were read at least once. Until then their absence means nothing. */
  listed: false,
  connected: false,
  /** Unix seconds since which `connected` has its value. */
  since: Date.now() / 1000,
  problem: '',
};

/** Called at each return of the connection. @type {Set<() => void>} */
export const onReturn = new Set();
/** @type {Set<() => void>} */
const listeners = new Set();
let notifying = 0;
let wait = NOTIFY_MS;
/** Unix seconds at which the server sent something last. */
let heard = Date.now() / 1000;

/** Draw soon what changed. All changes until then are one drawing, and a tab that nobody sees draws nothing. */
function notify() {
  notifying ||= setTimeout(() => {
    notifying = 0;
    if (document.hidden) return;
    const began = performance.now();
    for (const one of listeners) one();
    setTimeout(() => { wait = Math.max(NOTIFY_MS, (performance.now() - began) * REST); }); // after the drawing
  }, wait);
}
document.addEventListener('visibilitychange', notify);

/** @param {any} object */
const keyOf = (object) => `${object.metadata.namespace}/${object.metadata.name}`;

/** @param {boolean} connected @param {string} problem */
function connection(connected, problem) {
  const changed = connected !== live.connected;
  if (changed) live.since = connected ? Date.now() / 1000 : heard;
  live.connected = connected;
  live.problem = problem;
  notify();
  if (changed && connected) for (const one of onReturn) one();
}

/** @param {Kinds} kinds @param {string} type @param {any} object */
function apply(kinds, type, object) {
  const of = kinds[object.kind];
  if (!of) return;
  if (type === 'DELETED') of.delete(keyOf(object));
  else {
    of.delete(keyOf(object)); // so that the newest are last
    of.set(keyOf(object), object);
    const most = MOST[/** @type {keyof typeof MOST} */ (object.kind)];
    if (most && of.size > most) of.delete(of.keys().next().value ?? '');
  }
}

/** Read one stream until it ends. @param {AbortController} control */
async function read(control) {
  let watchdog = 0;
  const fed = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => control.abort(new Error('the server has been silent for 25 s')), SILENT_MS);
  };
  fed();
  try {
    const response = await request('/v1/changes', { signal: control.signal });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let fresh = /** @type {Kinds | null} */ (empty()); // shown only when the list is whole
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return 'the server ended the stream';
      fed();
      heard = Date.now() / 1000;
      const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (!line) continue;
        const change = JSON.parse(line);
        if (change.type === 'LISTED' && fresh) {
          live.kinds = fresh;
          live.listed = true;
          fresh = null;
          connection(true, '');
        } else if (change.object) apply(fresh ?? live.kinds, change.type, change.object);
      }
      notify();
    }
  } finally {
    clearTimeout(watchdog);
  }
}

/** Keep the objects current for as long as the page is open. */
export async function follow() {
  let wait = FIRST_WAIT_MS;
  let control = new AbortController();
  let hide = 0;
  /** @type {() => void} */
  let wake = () => {};
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hide);
    if (document.hidden) hide = setTimeout(() => control.abort(new Error('hidden')), HIDDEN_MS);
    else wake();
  });
  addEventListener('online', () => wake());
  for (;;) {
    control = new AbortController();
    const problem = await read(control).catch((error) => String((control.signal.reason ?? error).message ?? error));
    if (live.connected) wait = FIRST_WAIT_MS;
    const hidden = problem === 'hidden';
    connection(false, hidden ? 'the tab was hidden' : problem);
    const due = hidden ? 2 ** 31 - 1 : wait * (0.75 + Math.random() / 2);
    await new Promise((resolve) => {
      wake = () => resolve(undefined);
      setTimeout(resolve, due);
      if (hidden && !document.hidden) resolve(undefined);
    });
    wait = Math.min(wait * 2, MOST_WAIT_MS);
  }
}

/** Draw again when an object or the connection changes, at most four times a second.
 * @param {(now: typeof live) => unknown} [of] draw only if what this returns differs */
export function useLive(of) {
  const [, draw] = useState(0);
  const drawn = useRef({ of, value: of?.(live) });
  drawn.current = { of, value: of?.(live) };
  useEffect(() => {
    const changed = () => {
      const last = drawn.current;
      if (!last.of || last.of(live) !== last.value) draw((/** @type {number} */ n) => n + 1);
    };
    listeners.add(changed);
    changed();
    return () => { listeners.delete(changed); };
  }, []);
  return live;
}

/** Objects of a kind, by name. @param {string} kind @param {string} [namespace] @returns {any[]} */
export function objects(kind, namespace) {
  const found = [...live.kinds[kind].values()].filter((o) => !namespace || o.metadata.namespace === namespace);
  return found.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
}

/** @param {string} kind @param {string} namespace @param {string} name @returns {any} */
export const object = (kind, namespace, name) => live.kinds[kind].get(`${namespace}/${name}`);

/** The condition of a pool that says that Slurm's queue cannot be read, or is in doubt. Undefined: no pool says so. @returns {any} */
export function slurmAway() {
  for (const kind of ['RolloutPool', 'InferencePool']) {
    for (const o of live.kinds[kind].values()) {
      const found = o.status?.conditions?.find((/** @type {any} */ c) => c.type === 'SlurmReachable' && c.status === 'False');
      if (found) return found;
    }
  }
  return undefined;
}

/** Names of all namespaces that have an object. */
export function namespaces() {
  const found = new Set(['default']);
  for (const kind of ['RolloutPool', 'InferencePool']) for (const o of live.kinds[kind].values()) found.add(o.metadata.namespace);
  return [...found].sort();
}
