/** The rows of tokens that one sees, drawn on a canvas: a frame costs the same at any speed of scrolling, and however many tokens
 * there are. The canvas stays in sight while its box scrolls, so rows may be late by a frame, but none is missing. */

export const ROW = 22; // pixels
const LEFT = 58; // pixels: where the tokens of a row begin
const NUMBER_RIGHT = 50;
const LEAST = [0.9, 0.5, 0.1, 0.01].map(Math.log); // logprobs of the levels of probability

export class TokenPaper {
  /** @param {import('./columns.js').Trajectory} t @param {import('./token_rows.js').TokenLayout} layout @param {string} by what the colours show
   * @param {import('./token_ink.js').TokenInk} ink */
  constructor(t, layout, by, ink) {
    this.t = t;
    this.layout = layout;
    this.by = by;
    this.ink = ink;
    this.begins = new Set(t.segments.slice(1).map((s) => s.start));
    this.top = 0; // pixels above the canvas
  }

  /** Draw the rows in sight. @param {HTMLCanvasElement} canvas @param {{scrollTop: number, clientWidth: number, clientHeight: number}} box
   * @param {number} chosen token that is marked; -1: none */
  draw(canvas, { scrollTop, clientWidth, clientHeight }, chosen) {
    const pen = sized(canvas, clientWidth, clientHeight);
    this.top = Math.round(scrollTop * devicePixelRatio) / devicePixelRatio;
    pen.fillStyle = this.ink.ground;
    pen.fillRect(0, 0, clientWidth, clientHeight);
    const last = Math.min(this.layout.rows, Math.ceil((this.top + clientHeight) / ROW));
    for (let r = Math.floor(this.top / ROW); r < last; r += 1) this.row(pen, r, r * ROW - this.top, clientWidth, chosen);
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} r @param {number} y @param {number} width @param {number} chosen */
  row(pen, r, y, width, chosen) {
    const { named, font, smallFont, above, below } = this.ink;
    const start = this.layout.starts[r];
    const lefts = this.lefts(r);
    const colours = lefts.slice(1).map((_, k) => this.colour(start + k));
    const base = y + Math.round((ROW + above - below) / 2);
    const [high, tall] = [base - above, above + below];
    for (let k = 0, next = 1; k < colours.length; k = next) {
      for (next = k + 1; colours[next] === colours[k];) next += 1;
      const { ground } = colours[k];
      if (!ground) continue;
      pen.fillStyle = ground;
      pen.fillRect(lefts[k], high, lefts[next] - lefts[k], tall);
    }
    pen.fillStyle = named.edge.ink;
    for (let k = 1; k < lefts.length; k += 1) pen.fillRect(Math.round(lefts[k]) - 1, high, 1, tall);
    pen.font = smallFont;
    pen.fillStyle = named.number.ink;
    pen.textAlign = 'right';
    pen.fillText(String(start), NUMBER_RIGHT, base);
    pen.font = font;
    pen.textAlign = 'left';
    this.write(pen, start, lefts, colours, base);
    if (this.begins.has(start)) {
      pen.fillStyle = named.begins.ink;
      for (let x = 0; x < width; x += 10) pen.fillRect(x, y, 6, 2);
    }
    const marked = chosen - start;
    if (marked >= 0 && marked < colours.length) {
      pen.strokeStyle = this.ink.ink;
      pen.lineWidth = 2;
      pen.strokeRect(lefts[marked], high, lefts[marked + 1] - lefts[marked], tall);
    }
  }

  /** Write the texts of a row; neighbours of one colour at once. @param {CanvasRenderingContext2D} pen @param {number} start @param {number[]} lefts
   * @param {import('./token_ink.js').Colour[]} colours @param {number} base */
  write(pen, start, lefts, colours, base) {
    let [line, left, colour] = ['', 0, ''];
    const end = () => {
      pen.fillStyle = colour;
      if (line.trim()) pen.fillText(line, left, base);
      line = '';
    };
    for (const [k, { ink }] of colours.entries()) {
      const { shape, even } = this.ink.glyphs(this.layout.texts[start + k]);
      if (line && (!even || ink !== colour)) end();
      if (!line) [left, colour] = [lefts[k], ink];
      line += shape;
      if (!even) end();
    }
    end();
  }

  /** Pixels where the tokens of a row begin; the last one is where the row ends. @param {number} r @returns {number[]} */
  lefts(r) {
    const found = [LEFT];
    for (let i = this.layout.starts[r]; i < this.layout.end(r); i += 1) found.push(found[found.length - 1] + this.ink.glyphs(this.layout.texts[i]).width);
    return found;
  }

  /** The token at a place of the canvas; -1: none. @param {number} x @param {number} y */
  at(x, y) {
    const r = Math.floor((this.top + y) / ROW);
    if (r >= this.layout.rows || x < LEFT) return -1;
    const found = this.lefts(r).findIndex((left) => left > x);
    return found < 0 ? -1 : this.layout.starts[r] + found - 1;
  }

  /** The colour of a token. @param {number} i */
  colour(i) {
    const { named, levels, versions } = this.ink;
    if (!this.t.mask[i]) return named.given;
    if (this.by === 'mask') return named.sampled;
    if (this.by === 'version') return versions[this.t.version[i] % versions.length] ?? named.unknown;
    const level = LEAST.findIndex((least) => this.t.logprobs[i] >= least);
    return levels[level < 0 ? LEAST.length : level];
  }
}

/** The pen of a canvas of this size, in pixels of the style sheet. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
function sized(canvas, width, height) {
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { alpha: false }));
  const [x, y] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
  if (canvas.width !== x || canvas.height !== y) {
    Object.assign(canvas, { width: x, height: y });
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  return pen;
}
