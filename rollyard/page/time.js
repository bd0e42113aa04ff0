/** Times: relative, with the absolute time on hover and focus. */

import { clock, distance, duration, UNKNOWN, unix } from './format.js';
import { html, useEffect, useState } from './view.js';

const TICK_MS = 5_000;

/** @type {Set<() => void>} */
const ticking = new Set();
setInterval(() => { if (!document.hidden) for (const tick of ticking) tick(); }, TICK_MS);

/** Unix seconds, new every 5 s. */
export function useNow() {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const tick = () => setNow(Date.now() / 1000);
    ticking.add(tick);
    return () => { ticking.delete(tick); };
  }, []);
  return now;
}

/** @param {{at: unknown}} props Unix seconds or ISO text */
export function Time({ at }) {
  const now = useNow();
  const seconds = unix(at);
  if (seconds === undefined) return html`<span class="dim">${UNKNOWN}</span>`;
  const full = clock(seconds);
  return html`<time datetime=${new Date(seconds * 1000).toISOString()} title=${full} tabindex="0" data-full=${full}>${distance(seconds, Math.max(now, Date.now() / 1000))}</time>`;
}

/** A time with its clock: `14:00:00 on 2026-11-30, in 2 h 3 m`. @param {{at: unknown}} props Unix seconds or ISO text */
export function At({ at }) {
  const now = useNow();
  const seconds = unix(at);
  if (seconds === undefined) return html`<span class="dim">${UNKNOWN}</span>`;
  const full = clock(seconds);
  const day = full.slice(0, 10) === clock(now).slice(0, 10) ? '' : ` on ${full.slice(0, 10)}`;
  return html`<time datetime=${new Date(seconds * 1000).toISOString()}>${full.slice(11)}${day}, ${distance(seconds, Math.max(now, Date.now() / 1000))}</time>`;
}

/** The time from `from` to `to`, or to now. @param {{from: unknown, to?: unknown}} props */
export function Span({ from, to }) {
  useNow();
  const [a, b] = [unix(from), unix(to)];
  return html`${a === undefined ? UNKNOWN : duration((b ?? Date.now() / 1000) - a)}`;
}
