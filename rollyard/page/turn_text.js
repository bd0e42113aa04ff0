/** A sampled turn's text in its parts: thoughts, and what was said. The marks of calls are left out where the calls are
 * shown by themselves. */

/** Marks around thoughts, in the formats of several model families. */
const THOUGHTS = [['<think>', '</think>'], ['[THINK]', '[/THINK]'], ['<|channel|>analysis<|message|>', '<|end|>'], ['<seed:think>', '</seed:think>']];
const CALLS = /<tool_call>[\s\S]*?(?:<\/tool_call>|$)|<\|tool_calls_section_begin\|>[\s\S]*?(?:<\|tool_calls_section_end\|>|$)|\[TOOL_CALLS\][\s\S]*$|<\|channel\|>commentary[^<]*(?:<\|constrain\|>json)?<\|message\|>[\s\S]*$/g;

/** @param {string} text @param {boolean} hasCalls @returns {{thoughts: string, said: string}} */
export function partsOf(text, hasCalls) {
  let [thoughts, said] = ['', text];
  for (const [open, close] of THOUGHTS) {
    const end = text.indexOf(close);
    const start = text.indexOf(open);
    if (end >= 0 && start < end) {
      thoughts = text.slice(start < 0 ? 0 : start + open.length, end);
      said = (start > 0 ? text.slice(0, start) : '') + text.slice(end + close.length);
      break;
    }
    if (start >= 0 && end < 0) {
      thoughts = text.slice(start + open.length);
      said = text.slice(0, start);
      break;
    }
  }
  if (hasCalls) said = said.replace(CALLS, '');
  return { thoughts: thoughts.trim(), said: said.replace(/^<\|start\|>assistant/, '').trim() };
}

/** The number of tool calls, those that could not be read included. @param {any[]} turns */
export function callsOf(turns) {
  const read = turns.reduce((n, one) => n + (one.tool_calls?.length ?? 0), 0);
  const unreadable = turns.filter((one) => one.failed_calls?.includes(one.tool_calls?.length ?? 0)).length;
  return unreadable ? `${read + unreadable}, ${unreadable} unreadable` : String(read);
}
