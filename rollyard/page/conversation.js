/** A trajectory as a person reads it: turns with thoughts, calls and their output, and the score at the end. */

import { count, decimal, duration } from './format.js';
import { useGrowing } from './growing.js';
import { Mark } from './mark.js';
import { Facts } from './table.js';
import { TextBlock } from './text_block.js';
import { partsOf } from './turn_text.js';
import { visible } from './visible_text.js';
import { html, memo, useLayoutEffect } from './view.js';

const FIRST = 15;
const MORE = 20;

/** @param {{t: import('./columns.js').Trajectory, turn?: number, linkTo: (turn: number, view?: string) => string}} props */
export function Conversation({ t, turn, linkTo }) {
  const drawn = useGrowing(t.turns.length, Math.max(FIRST, turn ?? 0), MORE);
  useLayoutEffect(() => {
    if (turn) document.getElementById(`turn-${turn}`)?.scrollIntoView({ block: 'start' });
  }, [turn, t]);
  if (!t.turns.length) return html`<p class="empty">No turn was recorded${t.sample?.error ? ': the rollout ended before the first answer of a model' : ''}.</p>`;
  return html`<ol class="turns">${t.turns.slice(0, drawn).map((one, i) => html`
    ${i > 0 && one.segment !== t.turns[i - 1].segment && html`<li class="break" key=${`b${i}`}>${breakText(t, one.segment)}</li>`}
    <${OneTurn} key=${i} version=${t.versions[t.version[one.start]]} turn=${one} number=${i + 1} chosen=${turn === i + 1} to=${linkTo(i + 1)} tokens=${linkTo(i + 1, 'tokens')} />`)}</ol>
    ${drawn < t.turns.length && html`<p class="dim">Drawing ${t.turns.length - drawn} more turns …</p>`}`;
}

/** Why a segment begins, in words. @param {import('./columns.js').Trajectory} t @param {number} segment */
export function breakText(t, segment) {
  const by = t.segments[segment]?.extras?.opened_by;
  if (!by) return `Segment ${segment + 1} begins.`;
  const words = typeof by === 'string' ? by : Object.entries(by).map(([k, v]) => `${k}: ${typeof v === 'string' ? v : JSON.stringify(v)}`).join('; ');
  return `Segment ${segment + 1} begins: the chat template or the caller changed earlier text. ${visible(words)}`;
}

/** Props: version of the weights, turn, number, chosen, to: address of the turn, tokens: that of its tokens if they can be shown. */
export const OneTurn = memo((/** @type {{version?: string, turn: any, number: number, chosen?: boolean, to: string, tokens?: string}} */ { version, turn, number, chosen, to, tokens }) => {
  const calls = turn.tool_calls ?? [];
  const { thoughts, said } = partsOf(turn.text, calls.length > 0);
  const results = turn.tool_results ?? [];
  const facts = [
    `${count(turn.promptLength)} + ${count(turn.responseLength)} tokens`,
    turn.timings?.model !== undefined && `model ${duration(turn.timings.model)}`,
    turn.timings?.tools > 0 && `tools ${duration(turn.timings.tools)}`,
    turn.timings?.environment > 0 && `environment ${duration(turn.timings.environment)}`,
    version && `weights ${version}`,
    turn.constraint && `form ${turn.constraint}`,
  ].filter(Boolean).join(' · ');
  return html`<li class=${`turn${chosen ? ' chosen' : ''}`} id=${`turn-${number}`}>
    <h3><a href=${to} title="Link to this turn">Turn ${number}</a> <span class="facts-line">${facts}${tokens && html` · <a href=${tokens}>its tokens</a>`}</span>
      ${turn.finish_reason === 'length' && html` <${Mark} tone="warn" word="cut at the limit of tokens" />`}</h3>
    ${thoughts && html`<section class="thoughts"><h4>Thoughts</h4><${TextBlock} text=${thoughts} label="Thoughts" /></section>`}
    ${said && html`<section class="said"><h4>Assistant</h4><${TextBlock} text=${said} label="Answer" /></section>`}
    ${!said && !thoughts && !calls.length && html`<section class="said"><h4>Assistant</h4><p class="dim">${turn.text ? 'Only white space.' : 'An empty turn.'}</p></section>`}
    ${calls.map((/** @type {any} */ call, /** @type {number} */ i) => html`<${Call} key=${i} call=${call} result=${results[i]} failed=${turn.failed_calls?.includes(i)} />`)}
    ${results.slice(calls.length).map((/** @type {string} */ text, /** @type {number} */ i) => html`<section class="result" key=${`r${i}`}><h4>Answer to the turn${turn.failed_calls?.includes(calls.length + i) && html` <${Mark} tone="warn" word="failed" />`}</h4><${TextBlock} text=${text} label="Answer to the turn" /></section>`)}
    ${(turn.observation !== null && turn.observation !== undefined || known(turn.reward)) && html`<section class="result"><h4>Environment${known(turn.reward) ? `, reward ${decimal(turn.reward)}` : ''}</h4>
      <${TextBlock} text=${turn.observation ?? ''} label="Observation" /></section>`}
  </li>`;
});

/** @param {unknown} value */
const known = (value) => typeof value === 'number';

/** @param {{call: any, result: string | undefined, failed: boolean | undefined}} props */
function Call({ call, result, failed }) {
  const given = call.arguments;
  const pairs = given && typeof given === 'object' && !Array.isArray(given) ? Object.entries(given) : [['', given]];
  return html`<section class="call"><h4>Call <code>${visible(call.name ?? '?')}</code>${failed && html` <${Mark} tone="warn" word="failed" />`}</h4>
    ${pairs.map(([name, value]) => html`<div key=${name} class="argument">${pairs.length > 1 && html`<span class="name">${visible(name)}</span>`}
      <${TextBlock} text=${typeof value === 'string' ? value : JSON.stringify(value, null, 1)} label=${`Argument ${name}`} kind="code" /></div>`)}
    ${result === undefined ? html`<p class="dim">No result was recorded.</p>`
      : html`<h4 class="of-result">Output</h4><${TextBlock} text=${result} label="Output" kind="output" />`}
  </section>`;
}

/** How the rollout ended, and where its reward comes from. @param {{sample: any}} props */
export function Score({ sample }) {
  const parts = Object.entries(sample.parts ?? {});
  const metrics = Object.entries(sample.metrics ?? {});
  return html`<section aria-labelledby="score"><h2 id="score">Score</h2>
    <p><${Mark} word=${sample.status} /> ${sample.reward === null
      ? html`<strong>no reward</strong> <span class="dim">(null, and not 0)</span>` : html`reward <strong class="reward">${decimal(sample.reward, 4)}</strong>`}</p>
    ${sample.error && html`<p class="problem">${sample.error.reason}${sample.error.stage ? ` in ${sample.error.stage}` : ''}: ${visible(sample.error.message)}</p>`}
    ${sample.cut_short && html`<p>${visible(sample.cut_short)}</p>`}
    ${parts.length > 0 && html`<h3>Parts of the reward</h3><${Facts} pairs=${parts.map(([k, v]) => [k, decimal(v, 4)])} />`}
    ${metrics.length > 0 && html`<h3>Metrics</h3><${Facts} pairs=${metrics.map(([k, v]) => [k, decimal(v, 4)])} />`}
    ${sample.notes?.length > 0 && html`<h3>Why</h3><ul class="notes">${sample.notes.map((/** @type {string} */ n, /** @type {number} */ i) => html`<li key=${i}><${TextBlock} text=${n} label="Note" /></li>`)}</ul>`}
    ${sample.harness_output && html`<h3>Output of the agent's command</h3><${TextBlock} text=${sample.harness_output} label="Output of the command" kind="output" />`}
    ${sample.role_calls?.length > 0 && html`<h3>Calls of other models</h3><ol class="notes">${sample.role_calls.map((/** @type {any} */ c, /** @type {number} */ i) => html`<li key=${i}>
      ${c.role} in ${c.stage}, ${c.purpose}: <${Mark} tone=${c.ending === 'answered' ? 'good' : 'warn'} word=${c.ending} /> ${count(c.prompt_tokens)} + ${count(c.completion_tokens)} tokens, ${duration(c.seconds)}
      <${TextBlock} text=${c.text} label="Answer" /></li>`)}</ol>`}
  </section>`;
}
