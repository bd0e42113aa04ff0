/** The one library: virtual DOM and hooks. Every text goes into the document as a text node. */
import { html } from './vendor/preact-htm.js';

export {
  html, render, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from './vendor/preact-htm.js';

/** A component that is drawn again only if one of its props differs, or if it does so by itself. Without children.
 * @template P @param {(props: P) => unknown} component @returns {(props: P) => unknown} */
export function memo(component) {
  /** @this {any} @param {any} props */
  return function Kept(props) {
    this.shouldComponentUpdate = (/** @type {any} */ next) => Object.keys({ ...this.props, ...next }).some((k) => this.props[k] !== next[k]);
    return html`<${component} ...${props} />`;
  };
}
