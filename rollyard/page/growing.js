/** Long lists and texts, drawn in pieces: what one sees first is there at once, and no task of the page takes long. */

import { useEffect, useState } from './view.js';

const PAUSE_MS = 30;

/** How many of `length` entries are drawn by now. @param {number} length @param {number} first @param {number} [more] @returns {number} */
export function useGrowing(length, first, more = first) {
  const [drawn, setDrawn] = useState(first);
  useEffect(() => {
    if (drawn >= length) return undefined;
    const timer = setTimeout(() => setDrawn(drawn + more), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [drawn, length]);
  return Math.min(drawn, length);
}
