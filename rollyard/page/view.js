/** The one library: virtual DOM and hooks. Every text goes into the document as a text node. */
import htm from './vendor/htm.js';
import { createElement } from './vendor/preact.js';

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
export { render } from './vendor/preact.js';

export const html = htm.bind(createElement);

/** A component that is drawn again only if one of its props differs, or if it does so by itself. Without children.
 * @template P @param {(props: P) => unknown} component @returns {(props: P) => unknown} */
export function memo(component) {
  /** @this {any} @param {any} props */
  return function Kept(props) {
    this.shouldComponentUpdate = (/** @type {any} */ next) => Object.keys({ ...this.props, ...next }).some((k) => this.props[k] !== next[k]);
    return html`<${component} ...${props} />`;
  };
}
