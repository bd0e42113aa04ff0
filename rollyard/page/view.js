/** The one library: virtual DOM and hooks. Every text goes into the document as a text node. */
import htm from './vendor/htm.js';
import { createElement } from './vendor/preact.js';

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
export { render } from './vendor/preact.js';

/** Elements from a template, new at each call. Without the 3, htm keeps those that have no variables. A kept element knows its first
 * parents, these have children that they share with later drawings, and so no drawing would ever be freed. */
export const html = htm.bind(function element(type, props, ...children) {
  this[0] = 3;
  return createElement(type, props, ...children);
});

/** A component that is drawn again only if one of its props differs, or if it does so by itself. Without children.
 * @template P @param {(props: P) => unknown} component @returns {(props: P) => unknown} */
export function memo(component) {
  /** @this {any} @param {any} props */
  return function Kept(props) {
    this.shouldComponentUpdate = (/** @type {any} */ next) => Object.keys({ ...this.props, ...next }).some((k) => this.props[k] !== next[k]);
    return html`<${component} ...${props} />`;
  };
}
