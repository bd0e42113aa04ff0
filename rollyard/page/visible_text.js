/** Text that an agent or a tool wrote, made safe to look at: control characters become visible symbols. */

import { localTimes } from './format.js';

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** @param {string} found */
function symbol(found) {
  const code = found.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return '\u2421';
  return `\\u${code.toString(16).padStart(4, '0')}`;
}

/** Tabs and newlines stay. A carriage return before a newline is dropped: it changes nothing that one sees.
 * @param {unknown} text @returns {string} */
export function visible(text) {
  return String(text ?? '').replace(/\r\n/g, '\n').replace(CONTROL, symbol);
}

/** One line. @param {unknown} text */
export function visibleLine(text) {
  return visible(text).replace(/\n/g, '\u2424').replace(/\t/g, '\u2409');
}

/** A sentence of the server, with its times in the browser's zone. @param {unknown} text */
export const message = (text) => localTimes(visible(text));
