/** The one library: virtual DOM and hooks. Every text goes into the document as a text node. */
export {
  html, render, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from './vendor/preact-htm.js';
