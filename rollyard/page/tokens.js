/** A trajectory as its recorded tokens, coloured by mask, logprob or weights version. */

import { breakText } from './conversation.js';
import { count } from './format.js';
import { usePoll } from './poll.js';
import { rolloutPath, url } from './api.js';
import { TokenInk } from './token_ink.js';
import { ROW, TokenPaper } from './token_paper.js';
import { TokenLayout, tokenShape } from './token_rows.js';
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './view.js';

const COLOURS = { mask: 'sampled or not', logprob: 'probability', version: 'weights version' };

const LEAST = 10;
const BEFORE = 6; // tokens that are shown before one of the least likely
const LEVELS = ['90 % or more', '50 to 90 %', '10 to 50 %', '1 to 10 %', 'less than 1 %'];

/** The texts of a rollout's tokens. @param {string} namespace @param {string} id @param {boolean} wanted */
export const useTokenTexts = (namespace, id, wanted) => usePoll(wanted ? url(`${rolloutPath(id)}/tokens`, { namespace }) : null);

/** @param {{t: import('./columns.js').Trajectory, texts: import('./poll.js').Answer, turn?: number, colour: string, linkTo: (turn: number, view?: string, colour?: string) => string}} props */
export function Tokens({ t, texts, turn, colour, linkTo }) {
  if (!t.ids.length) return html`<p class="empty">The trajectory has no tokens.</p>`;
  if (texts.data === undefined && !texts.error) return html`<p class="dim">Reading the tokens' texts …</p>`;
  const by = colour in COLOURS ? colour : 'mask';
  return html`
    ${texts.error && html`<p class="problem">The tokens' texts are not known, so ids stand for them. ${texts.error.message}</p>`}
    <p class="choice" role="group" aria-label="Colour by">Colour by ${Object.entries(COLOURS).map(([key, word]) => html` <a key=${key} href=${linkTo(turn ?? 0, 'tokens', key)} aria-current=${key === by ? 'true' : undefined}>${word}</a>`)}
      <${Legend} by=${by} versions=${t.versions} /></p>
    ${t.segments.length > 1 && html`<ol class="breaks">${t.segments.map((s, i) => html`<li key=${i}>${i === 0 ? 'Segment 1' : breakText(t, i)} <span class="dim">${count(s.end - s.start)} tokens</span></li>`)}</ol>`}
    <${Grid} t=${t} known=${texts.data ?? null} by=${by} turn=${turn} linkTo=${linkTo} />`;
}

/** @param {{by: string, versions: string[]}} props */
function Legend({ by, versions }) {
  const rows = by === 'mask' ? [['sampled', 'sampled'], ['given', 'not sampled']]
    : by === 'logprob' ? LEVELS.map((word, i) => [`p${i}`, word]) : versions.map((word, i) => [`v${i % 6}`, word]);
  return html`<span class="legend">${rows.map(([name, word]) => html`<span key=${name}><i class=${`tok ${name}`}>a</i>${word}</span>`)}</span>`;
}

/** @param {{t: import('./columns.js').Trajectory, known: import('./token_rows.js').Known | null, by: string, turn?: number, linkTo: (turn: number, view?: string) => string}} props */
function Grid({ t, known, by, turn, linkTo }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [ink, setInk] = useState(/** @type {TokenInk | null} */ (null));
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState(-1);
  const [, setLaid] = useState(0);
  const wanted = useRef(-1); // a token that comes into sight as soon as it is laid out
  const layout = useMemo(() => new TokenLayout(t.ids, known, t.segments, width), [t, known, width]);
  const paper = useMemo(() => ink && new TokenPaper(t, layout, by, ink), [t, layout, by, ink]);
  const shown = useRef({ paper, chosen });
  shown.current = { paper, chosen };
  const turnAt = useMemo(() => turnFinder(t.turns), [t]);
  const draw = () => {
    const element = /** @type {HTMLElement} */ (box.current);
    const all = /** @type {HTMLElement} */ (element.firstElementChild);
    const { layout: of } = shown.current.paper ?? {};
    if (!of?.texts.length) return;
    all.style.height = `${of.allRows * ROW}px`;
    if (wanted.current >= 0 && wanted.current < of.texts.length) {
      const y = of.rowOf(wanted.current) * ROW;
      if (y < element.scrollTop || y > element.scrollTop + element.clientHeight - 2 * ROW) element.scrollTop = Math.max(0, y - 3 * ROW);
      wanted.current = -1;
    }
    shown.current.paper?.draw(/** @type {HTMLCanvasElement} */ (all.firstElementChild), element, shown.current.chosen);
  };
  /** @param {number} token */
  const show = (token) => {
    setChosen(token);
    wanted.current = token;
    draw();
  };
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const style = () => setInk(new TokenInk(element));
    style();
    const themes = ['(prefers-color-scheme: dark)', '(forced-colors: active)'].map((query) => matchMedia(query));
    for (const theme of themes) theme.addEventListener('change', style);
    element.addEventListener('scroll', draw, { passive: true });
    return () => {
      for (const theme of themes) theme.removeEventListener('change', style);
      element.removeEventListener('scroll', draw);
    };
  }, []);
  useLayoutEffect(() => {
    if (!ink) return undefined;
    const element = /** @type {HTMLElement} */ (box.current);
    const measure = () => {
      setWidth(Math.max(16, Math.floor((element.clientWidth - 76) / ink.cell) - 2));
      draw();
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [ink]);
  useLayoutEffect(draw, [paper, chosen]);
  useLayoutEffect(() => {
    if (!width) return undefined;
    let timer = 0;
    const lay = () => {
      layout.more();
      draw();
      if (!layout.whole) timer = setTimeout(lay);
      else setLaid((n) => n + 1); // texts that were not known when this was drawn
    };
    lay();
    return () => clearTimeout(timer);
  }, [layout]);
  useEffect(() => {
    if (turn && t.turns[turn - 1] && width) show(t.turns[turn - 1].start);
  }, [turn, width, t]);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const row = layout.rowOf(Math.max(chosen, 0));
    let next = chosen + (steps[event.key] ?? 0);
    if (event.key === 'ArrowDown') next = layout.starts[Math.min(row + 1, layout.starts.length - 1)];
    else if (event.key === 'ArrowUp') next = layout.starts[Math.max(row - 1, 0)];
    else if (event.key === 'Home' && event.ctrlKey) next = 0;
    else if (event.key === 'End' && event.ctrlKey) next = t.ids.length - 1;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    show(Math.min(Math.max(next, 0), t.ids.length - 1));
  };
  /** @param {MouseEvent} event */
  const point = (event) => {
    const token = event.target instanceof HTMLCanvasElement && paper ? paper.at(event.offsetX, event.offsetY) : -1;
    if (token >= 0) setChosen(token);
  };
  return html`<${LeastLikely} t=${t} texts=${layout.texts} turnAt=${turnAt} show=${show} />
    <div class="tokens" ref=${box} tabindex="0" role="application" aria-label="Tokens. Arrow keys move from token to token; the line below describes the token."
      onKeyDown=${key} onClick=${point} onMouseMove=${point}>
      <div><canvas></canvas></div>
    </div>
    <p class="token-line" role="status" aria-live="polite">${chosen >= 0 ? describe(t, layout.texts[chosen] ?? '', chosen, turnAt(chosen), linkTo) : `${count(t.ids.length)} tokens. Point at one, or move with the arrow keys.`}</p>`;
}

/** The sampled tokens with the least probability: a way to the places where the model was not sure.
 * @param {{t: import('./columns.js').Trajectory, texts: string[], turnAt: (token: number) => number, show: (token: number) => void}} props */
function LeastLikely({ t, texts, turnAt, show }) {
  const [open, setOpen] = useState(false);
  const least = useMemo(() => (open ? leastLikely(t) : []), [t, open]);
  return html`<details class="least" onToggle=${(/** @type {any} */ e) => setOpen(e.target.open)}><summary>Least likely sampled tokens</summary>
    <ol>${least.map((i) => html`<li key=${i}><button type="button" class="plain" onClick=${() => show(i)}>turn ${turnAt(i)}, index ${count(i)}</button> <code class="dim">${shapes(texts, i - BEFORE, i)}</code><code>${shapes(texts, i, i + 1)}</code> ${probability(t.logprobs[i])}</li>`)}</ol></details>`;
}

/** The texts of some tokens that follow each other. @param {string[]} texts @param {number} from @param {number} to */
const shapes = (texts, from, to) => texts.slice(Math.max(from, 0), to).map(tokenShape).join('');

/** @param {import('./columns.js').Trajectory} t @returns {number[]} places, the least likely first */
function leastLikely(t) {
  /** @type {number[]} */
  const found = [];
  for (let i = 0; i < t.ids.length; i += 1) {
    if (t.mask[i] !== 1 || (found.length === LEAST && t.logprobs[i] >= t.logprobs[found[LEAST - 1]])) continue;
    let at = found.length;
    while (at > 0 && t.logprobs[found[at - 1]] > t.logprobs[i]) at -= 1;
    found.splice(at, 0, i);
    found.length = Math.min(found.length, LEAST);
  }
  return found;
}

/** @param {number} logprob */
const probability = (logprob) => `${(Math.exp(logprob) * 100).toPrecision(3)} %`;

/** @param {any[]} turns @returns {(token: number) => number} number of the turn that sampled a token; 0: none */
function turnFinder(turns) {
  return (token) => {
    const found = turns.findIndex((one) => token >= one.start && token < one.end);
    return found + 1;
  };
}

/** @param {import('./columns.js').Trajectory} t @param {string} text @param {number} i @param {number} turn @param {(turn: number) => string} linkTo */
function describe(t, text, i, turn, linkTo) {
  const sampled = t.mask[i] === 1;
  const within = t.segments.findIndex((s) => i >= s.start && i < s.end);
  return html`Index ${count(i)} of ${count(t.ids.length)} tokens${t.segments.length > 1 && ` (segment ${within + 1}, index ${count(i - t.segments[within].start)})`}, id ${t.ids[i]} <code>${tokenShape(text)}</code> · ${sampled
    ? html`sampled, logprob ${signed(t.logprobs[i])} (probability ${probability(t.logprobs[i])}), weights ${t.versions[t.version[i]] ?? 'not known'}`
    : 'not sampled'}${turn > 0 && html` · <a href=${linkTo(turn)}>turn ${turn}</a>`}`;
}

/** @param {number} value */
const signed = (value) => (value > -0.00005 ? '0' : value.toFixed(4).replace('-', '\u2212'));
