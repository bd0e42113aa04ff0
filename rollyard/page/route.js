/** Addresses of views: `#/rollouts/ID?ns=default&view=tokens`. Every view and filter is a link that can be shared. */

import { useEffect, useState } from './view.js';

/** @typedef {{path: string[], query: Record<string, string>}} Route */

/** @param {string} hash @returns {Route} */
export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?', 2);
  const words = path.split('/').filter(Boolean).map(safeDecode);
  return { path: words, query: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

/** @param {string} word */
function safeDecode(word) {
  try { return decodeURIComponent(word); } catch { return word; }
}

/** @param {string[]} path @param {Record<string, unknown>} [query] empty values are left out */
export function link(path, query = {}) {
  const words = Object.entries(query).filter(([, v]) => v !== undefined && v !== null && v !== '' && v !== false);
  const text = new URLSearchParams(words.map(([k, v]) => [k, String(v)])).toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

/** The namespace of a route. @param {Route} route */
export const namespaceOf = (route) => route.query.ns || 'default';

/** The query's `ns`, which is left out for the namespace `default`. @param {string} namespace */
export const ns = (namespace) => (namespace === 'default' ? undefined : namespace);

/** The option of a command that names a namespace, which `default` does not need. @param {string} namespace */
export const option = (namespace) => (namespace === 'default' ? '' : ` -n ${namespace}`);

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return route;
}

/** Show a view. @param {string} hash @param {boolean} [replace] true: without a step in the browser's history */
export function go(hash, replace = false) {
  if (!replace) location.hash = hash;
  else if (hash !== location.hash) {
    history.replaceState(null, '', hash);
    dispatchEvent(new HashChangeEvent('hashchange'));
  }
}
