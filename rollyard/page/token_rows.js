/** Tokens laid out in rows of a fixed width, a piece at a time: no task takes long, however long the trajectory is. */

const PIECE = 16_384; // tokens
const PART = '·'; // stands for a token that ends within a character
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

/** @typedef {{texts: Record<string, string>, bytes: Record<string, string>}} Known texts of tokens by id; bytes of parts of characters in hexadecimal form */

export class TokenLayout {
  /** @param {ArrayLike<number>} ids @param {Known | null} known null: texts are not known @param {{start: number}[]} segments each begins a row
   * @param {number} width characters in a row */
  constructor(ids, known, segments, width) {
    this.ids = ids;
    this.known = known;
    this.width = width;
    /** The first token of each row. @type {number[]} */
    this.starts = ids.length ? [0] : [];
    /** The text of each token that is laid out. A character of several tokens stands at its last token. @type {string[]} */
    this.texts = [];
    this.begins = new Set(segments.map((s) => s.start));
    this.used = 0; // characters in the last row
    /** @type {Map<number, string>} */
    this.plain = new Map();
    /** Bytes of a character that has begun. @type {number[]} */
    this.pending = [];
  }

  get whole() { return this.texts.length === this.ids.length; }

  /** Number of rows that can be drawn: the last one may still grow. */
  get rows() { return this.whole ? this.starts.length : this.starts.length - 1; }

  /** Number of rows of all tokens; an estimate until all are laid out. */
  get allRows() { return this.whole ? this.starts.length : Math.round(this.starts.length * this.ids.length / Math.max(this.texts.length, 1)); }

  /** Lay out the next tokens. @param {number} [tokens] */
  more(tokens = PIECE) {
    const { ids, texts, starts, begins, width } = this;
    const end = Math.min(texts.length + tokens, ids.length);
    for (let i = texts.length; i < end; i += 1) {
      const text = this.textOf(ids[i]);
      let size = Math.max(text.length, 1);
      if (text.charCodeAt(size - 1) > 0x10ff && WIDE.test(text)) size *= 2;
      if (i > starts[starts.length - 1] && (this.used + size > width || begins.has(i))) {
        starts.push(i);
        this.used = 0;
      }
      this.used = text.includes('\n') ? width + 1 : this.used + size;
      texts.push(text);
    }
  }

  /** @param {number} id of the next token */
  textOf(id) {
    const bytes = this.known?.bytes[id];
    if (bytes) {
      for (let b = 0; b < bytes.length; b += 2) this.pending.push(parseInt(bytes.slice(b, b + 2), 16));
      const [text, used] = decoded(this.pending);
      this.pending.splice(0, used);
      return text || PART;
    }
    this.pending = [];
    let text = this.plain.get(id);
    if (text === undefined) {
      text = this.known ? this.known.texts[id] ?? `⟨${id}⟩` : `${id} `;
      this.plain.set(id, text);
    }
    return text;
  }

  /** The first token after a row. @param {number} row */
  end(row) { return this.starts[row + 1] ?? this.texts.length; }

  /** The row with a token that is laid out. @param {number} token */
  rowOf(token) {
    let [low, high] = [0, this.starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= token) low = middle;
      else high = middle - 1;
    }
    return Math.max(low, 0);
  }
}

/** The whole characters at the beginning of bytes in UTF-8, and the number of bytes before a character that is not whole. Bytes
 * of no character are left out. (TextDecoder raises an exception for each part of a character, and takes ten times as long.)
 * @param {number[]} bytes @returns {[string, number]} */
function decoded(bytes) {
  let text = '';
  let at = 0;
  while (at < bytes.length) {
    const lead = bytes[at];
    const size = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    let code = size === 1 ? lead : lead & (0xff >> (size + 1));
    let k = 1;
    for (; k < size && (bytes[at + k] & 0xc0) === 0x80; k += 1) code = (code << 6) | (bytes[at + k] & 0x3f);
    if (k < size && at + k >= bytes.length) break;
    if (size && k === size && code <= 0x10ffff) text += String.fromCodePoint(code);
    at += size && k === size ? size : 1;
  }
  return [text, at];
}

/** What a token looks like: white space at the end of a line can be seen. @param {string} text */
export function tokenShape(text) {
  return text.replace(/\r/g, '␍').replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
}
