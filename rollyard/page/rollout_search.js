/** The conditions of a search for rollouts, by the words of an address. */

import { metadataJson } from './filters.js';
import { namespaceOf } from './route.js';

const CONDITIONS = ['pool', 'group', 'status', 'suspicious', 'kind', 'mode', 'reason', 'task', 'batch', 'prefix', 'min_reward', 'max_reward', 'failed_calls', 'failed_tool', 'lost', 'lost_reason'];

/** @param {string} text */
export const checkMetadata = (text) => (metadataJson(text) === undefined ? 'Write pairs such as difficulty=hard, or a JSON object.' : '');
/** @param {string} text */
export const checkNumber = (text) => (text && !Number.isFinite(Number(text)) ? 'Write a number.' : '');

/** The conditions as parameters of the API. Undefined: one of them is no value.
 * @param {import('./route.js').Route} route @returns {Record<string, unknown> | undefined} */
export function search(route) {
  const q = route.query;
  const metadata = metadataJson(q.metadata ?? '');
  if (metadata === undefined || checkNumber(q.min_reward ?? '') || checkNumber(q.max_reward ?? '')) return undefined;
  const since = Number(q.hours) > 0 ? Math.floor(Date.now() / 60000) * 60 - Number(q.hours) * 3600 : undefined;
  return { namespace: namespaceOf(route), ...Object.fromEntries(CONDITIONS.map((c) => [c, q[c]])), metadata, since };
}
