/** Blocks of text that a model or a tool wrote: long ones folded, differences coloured. */

import { useGrowing } from './growing.js';
import { visible } from './visible_text.js';
import { html, memo, useMemo, useState } from './view.js';

const MOST_LINES = 40;
const MOST_CHARACTERS = 6_000;
const PART_CHARACTERS = 16_000;
const LINE_PX = 18;
const DIFFERENCE = /^(diff --git |@@ -\d|--- .*\n\+\+\+ )/m;

/** @param {string} line @returns {string | undefined} */
function kindOf(line) {
  if (line.startsWith('@@')) return 'hunk';
  if (/^(diff |index |--- |\+\+\+ )/.test(line)) return 'file';
  if (line.startsWith('+')) return 'added';
  if (line.startsWith('-')) return 'removed';
  return undefined;
}

/** @param {{text: unknown, label: string, kind?: string}} props */
export function TextBlock({ text, label, kind = '' }) {
  const [whole, setWhole] = useState(false);
  const given = String(text ?? '');
  const cut = useMemo(() => folded(given), [given]);
  const parts = useMemo(() => (whole ? partsOf(given) : [cut]), [given, whole]);
  const drawn = useGrowing(parts.length, 2);
  const lines = useMemo(() => (cut === given ? 0 : linesOf(given)), [given]);
  const difference = useMemo(() => DIFFERENCE.test(cut), [cut]);
  return html`<div class="block">
    <pre class=${kind} aria-label=${label} aria-busy=${drawn < parts.length ? 'true' : undefined}>${parts.length > 1 || difference
      ? parts.slice(0, drawn).map((part, i) => html`<${Part} key=${i} text=${part} difference=${difference} />`) : visible(parts[0])}</pre>
    ${cut !== given && html`<button type="button" class="plain" aria-expanded=${whole} onClick=${() => setWhole(!whole)}>${
      whole ? 'Show less' : `Show all ${lines} lines (${given.length} characters)`}</button>`}
  </div>`;
}

/** A part of a text. The browser lays it out when it comes into sight. */
const Part = memo((/** @type {{text: string, difference: boolean}} */ { text, difference }) => {
  const shown = visible(text);
  return html`<span class="part" style=${{ containIntrinsicSize: `auto ${linesOf(text) * LINE_PX}px` }}>${difference
    ? shown.split('\n').map((line, i) => html`<span key=${i} class=${kindOf(line)}>${line}${'\n'}</span>`) : shown}</span>`;
});

/** @param {string} text */
function linesOf(text) {
  let lines = 1;
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lines += 1;
  return lines;
}

/** Parts of a text that end with a line, if lines are not very long. @param {string} text @returns {string[]} */
function partsOf(text) {
  const parts = [];
  for (let at = 0; at < text.length;) {
    const line = text.lastIndexOf('\n', at + PART_CHARACTERS);
    const end = at + PART_CHARACTERS >= text.length ? text.length : line > at ? line + 1 : at + PART_CHARACTERS;
    parts.push(text.slice(at, end));
    at = end;
  }
  return parts;
}

/** @param {string} text */
function folded(text) {
  let end = -1;
  for (let i = 0; i < MOST_LINES; i += 1) {
    const next = text.indexOf('\n', end + 1);
    if (next < 0) return text.length > MOST_CHARACTERS + 200 ? text.slice(0, MOST_CHARACTERS) : text;
    end = next;
  }
  const cut = Math.min(end, MOST_CHARACTERS);
  return text.length - cut < 200 ? text : text.slice(0, cut);
}
