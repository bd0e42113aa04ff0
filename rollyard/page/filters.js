/** Filters of lists. They are the query of the view's address, so that a filtered list is a link. */

import { go, link } from './route.js';
import { html } from './view.js';

/**
 * @typedef {object} Filter
 * @property {string} name word of the address's query
 * @property {string} label
 * @property {[string, string][]} [options] value and text; without: a text
 * @property {string} [none] text of the choice of no value
 * @property {string} [hint]
 * @property {boolean} [seldom] true: folded away until it is used
 * @property {(text: string) => string} [check] why a text is no value of this filter, or an empty text
 */

/** @param {{route: import('./route.js').Route, filters: Filter[]}} props */
export function Filters({ route, filters }) {
  /** @param {string} name @param {string} value */
  const set = (name, value) => go(link(route.path, { ...route.query, [name]: value, after: undefined }));
  const some = filters.some((f) => route.query[f.name]);
  const seldom = filters.filter((f) => f.seldom);
  return html`<form class="filters" role="search" aria-label="Filters" onSubmit=${(/** @type {Event} */ e) => e.preventDefault()}>
    ${fields(filters.filter((f) => !f.seldom), route, set)}
    ${seldom.length > 0 && html`<details open=${seldom.some((f) => route.query[f.name]) || undefined}><summary>More conditions</summary><div class="filters">${fields(seldom, route, set)}</div></details>`}
    ${some && html`<a class="plain" href=${link(route.path, { ns: route.query.ns })}>Show all</a>`}
  </form>`;
}

/** @param {Filter[]} filters @param {import('./route.js').Route} route @param {(name: string, value: string) => void} set */
function fields(filters, route, set) {
  return html`${filters.map((f) => { const wrong = f.check?.(route.query[f.name] ?? '') ?? ''; return html`<label key=${f.name}>${f.label}
      ${f.options ? html`<select value=${route.query[f.name] ?? ''} onChange=${(/** @type {any} */ e) => set(f.name, e.target.value)}>
          <option value="">${f.none ?? 'any'}</option>${f.options.map(([value, text]) => html`<option key=${value} value=${value} selected=${route.query[f.name] === value}>${text}</option>`)}</select>`
        : html`<input type="text" spellcheck="false" autocomplete="off" value=${route.query[f.name] ?? ''} placeholder=${f.hint} aria-invalid=${wrong ? 'true' : undefined} title=${wrong || undefined}
            onChange=${(/** @type {any} */ e) => set(f.name, e.target.value.trim())} />`}
      ${wrong && html`<span class="wrong" role="alert">${wrong}</span>`}</label>`; })}`;
}

/** Metadata of tasks as a person writes it: `difficulty=hard split=train`, or a JSON object.
 * @param {string} text @returns {string | undefined} a JSON object; undefined if the text is none */
export function metadataJson(text) {
  if (!text.trim()) return '';
  if (text.trim().startsWith('{')) {
    try { return JSON.stringify(JSON.parse(text)); } catch { return undefined; }
  }
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const pair of text.trim().split(/[\s,]+/)) {
    const at = pair.indexOf('=');
    if (at < 1) return undefined;
    const value = pair.slice(at + 1);
    try { found[pair.slice(0, at)] = JSON.parse(value); } catch { found[pair.slice(0, at)] = value; }
  }
  return JSON.stringify(found);
}
