/** Blocks of text that a model or a tool wrote: long ones folded, differences coloured. */

import { visible } from './visible_text.js';
import { html, useMemo, useState } from './view.js';

const MOST_LINES = 40;
const MOST_CHARACTERS = 6_000;
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
  const shown = useMemo(() => visible(text), [text]);
  const cut = useMemo(() => (whole ? shown : folded(shown)), [shown, whole]);
  const rest = shown.length - cut.length;
  const difference = DIFFERENCE.test(cut);
  return html`<div class="block">
    <pre class=${kind} aria-label=${label}>${difference
      ? cut.split('\n').map((line, i) => html`<span key=${i} class=${kindOf(line)}>${line}${'\n'}</span>`) : cut}</pre>
    ${(rest > 0 || whole) && html`<button type="button" class="plain" aria-expanded=${whole} onClick=${() => setWhole(!whole)}>${
      whole ? 'Show less' : `Show all ${shown.split('\n').length} lines (${shown.length} characters)`}</button>`}
  </div>`;
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
