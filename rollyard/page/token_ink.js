/** Font and colours of tokens as the style sheet has them, for a canvas. */

import { tokenShape } from './token_rows.js';

const NAMES = ['given', 'sampled', 'number', 'edge', 'begins', 'unknown'];
const LEVELS = ['p0', 'p1', 'p2', 'p3', 'p4'];
const VERSIONS = ['v0', 'v1', 'v2', 'v3', 'v4', 'v5'];
const LETTERS = /^[ -~\u00a1-\u024f]*$/;
const CLEAR = 'rgba(0, 0, 0, 0)';

/** @typedef {{ink: string, ground: string | undefined}} Colour `ground`: undefined if it is transparent */
/** @typedef {{shape: string, width: number, even: boolean}} Glyphs `even`: letters that are as wide as a cell, also beside others */

export class TokenInk {
  /** @param {HTMLElement} box with the style of tokens */
  constructor(box) {
    const style = getComputedStyle(box);
    this.ground = style.backgroundColor;
    this.ink = style.color;
    this.font = `${style.fontSize} ${style.fontFamily}`;
    const probe = box.appendChild(document.createElement('i'));
    /** @param {string} name @returns {Colour} */
    const colour = (name) => {
      probe.className = `tok ${name}`;
      const { color, backgroundColor } = getComputedStyle(probe);
      return { ink: color, ground: backgroundColor === CLEAR ? undefined : backgroundColor };
    };
    this.named = Object.fromEntries(NAMES.map((name) => [name, colour(name)]));
    this.levels = LEVELS.map(colour);
    this.versions = VERSIONS.map(colour);
    probe.className = 'tok number';
    this.smallFont = `${getComputedStyle(probe).fontSize} ${style.fontFamily}`;
    probe.remove();
    this.pen = /** @type {CanvasRenderingContext2D} */ (document.createElement('canvas').getContext('2d'));
    this.pen.font = this.font;
    const { width, fontBoundingBoxAscent, fontBoundingBoxDescent } = this.pen.measureText('0'.repeat(20));
    this.cell = width / 20;
    this.above = Math.round(fontBoundingBoxAscent);
    this.below = Math.round(fontBoundingBoxDescent);
    /** @type {Map<string, Glyphs>} */
    this.known = new Map();
  }

  /** What a token's text looks like, and how wide it is. @param {string} text @returns {Glyphs} */
  glyphs(text) {
    let found = this.known.get(text);
    if (!found) {
      const shape = tokenShape(text);
      const width = Math.max(this.cell, this.pen.measureText(shape).width);
      const even = LETTERS.test(shape) && Math.abs(width - shape.length * this.cell) < 0.01;
      found = { shape, width, even };
      this.known.set(text, found);
    }
    return found;
  }
}
