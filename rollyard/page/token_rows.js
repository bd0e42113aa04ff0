/** Tokens laid out in rows of a fixed width. Only the rows that one sees are drawn. */

const utf8 = new TextDecoder('utf-8', { fatal: true });
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

/** The text of every token in place. A character of several tokens stands at its last token.
 * @param {ArrayLike<number>} ids @param {{texts: Record<string, string>, bytes: Record<string, string>} | null} known null: texts are not known
 * @returns {string[]} */
export function tokenTexts(ids, known) {
  /** @type {string[]} */
  const found = new Array(ids.length);
  /** @type {Map<number, string>} */
  const shown = new Map();
  let pending = /** @type {number[]} */ ([]);
  for (let i = 0; i < ids.length; i += 1) {
    const id = ids[i];
    let text = shown.get(id);
    if (text === undefined) {
      const part = known?.bytes[id];
      if (part) {
        for (let b = 0; b < part.length; b += 2) pending.push(parseInt(part.slice(b, b + 2), 16));
        found[i] = '·';
        try {
          found[i] = utf8.decode(new Uint8Array(pending));
          pending = [];
        } catch { if (pending.length > 4) pending = []; }
        continue;
      }
      text = known ? known.texts[id] ?? `⟨${id}⟩` : `${id} `;
      shown.set(id, text);
    }
    pending = [];
    found[i] = text;
  }
  return found;
}

/** What a token looks like: white space at the end of a line can be seen. @param {string} text */
export function tokenShape(text) {
  return text.replace(/\r/g, '␍').replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
}

/** The first token of each row, and at the end the number of tokens.
 * @param {string[]} texts @param {number} width characters in a row @param {{start: number}[]} segments each begins a row @returns {number[]} */
export function tokenRows(texts, width, segments) {
  const starts = new Set(segments.map((s) => s.start));
  const rows = [0];
  let used = 0;
  for (let i = 0; i < texts.length; i += 1) {
    const text = texts[i];
    let size = text.length;
    if (size && text.charCodeAt(size - 1) > 0x10ff && WIDE.test(text)) size *= 2;
    if (i > rows[rows.length - 1] && (used + size > width || starts.has(i))) {
      rows.push(i);
      used = 0;
    }
    used += size;
    if (text.includes('\n')) used = width + 1;
  }
  rows.push(texts.length);
  return rows;
}

/** The index of the row with a token. @param {number[]} rows @param {number} token */
export function rowOf(rows, token) {
  let [low, high] = [0, rows.length - 2];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle] <= token) low = middle;
    else high = middle - 1;
  }
  return Math.max(low, 0);
}
