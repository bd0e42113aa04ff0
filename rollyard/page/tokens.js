/** A trajectory as its recorded tokens, coloured by mask, logprob or weights version. */

import { breakText } from './conversation.js';
import { count } from './format.js';
import { usePoll } from './poll.js';
import { rolloutPath, url } from './api.js';
import { ROW, TokenPaper } from './token_paper.js';
import { rowOf, tokenRows, tokenShape, tokenTexts } from './token_rows.js';
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './view.js';

const COLOURS = { mask: 'sampled or not', logprob: 'probability', version: 'weights version' };

const LEVELS = ['90 % or more', '50 to 90 %', '10 to 50 %', '1 to 10 %', 'less than 1 %'];

/** @param {{t: import('./columns.js').Trajectory, namespace: string, turn?: number, colour: string, linkTo: (turn: number, view?: string, colour?: string) => string}} props */
export function Tokens({ t, namespace, turn, colour, linkTo }) {
  const texts = usePoll(url(`${rolloutPath(t.sample.id)}/tokens`, { namespace }));
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

/** @param {{t: import('./columns.js').Trajectory, known: any, by: string, turn?: number, linkTo: (turn: number, view?: string) => string}} props */
function Grid({ t, known, by, turn, linkTo }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState(-1);
  const texts = useMemo(() => tokenTexts(t.ids, known), [t, known]);
  const rows = useMemo(() => (width ? tokenRows(texts, width, t.segments) : [0, 0]), [texts, width, t]);
  const turnAt = useMemo(() => turnFinder(t.turns), [t]);
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const measure = () => {
      const probe = /** @type {HTMLElement} */ (element.querySelector('.probe'));
      setWidth(Math.max(16, Math.floor((element.clientWidth - 76) / (probe.getBoundingClientRect().width / 20)) - 2));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  /** @param {number} token */
  const show = (token) => {
    const element = /** @type {HTMLElement} */ (box.current);
    const y = rowOf(rows, token) * ROW;
    if (y < element.scrollTop || y > element.scrollTop + element.clientHeight - 2 * ROW) element.scrollTop = Math.max(0, y - 3 * ROW);
  };
  useEffect(() => {
    if (!turn || !t.turns[turn - 1] || !width) return;
    setChosen(t.turns[turn - 1].start);
    show(t.turns[turn - 1].start);
  }, [turn, width, t]);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const row = rowOf(rows, Math.max(chosen, 0));
    let next = chosen + (steps[event.key] ?? 0);
    if (event.key === 'ArrowDown') next = rows[Math.min(row + 1, rows.length - 2)];
    else if (event.key === 'ArrowUp') next = rows[Math.max(row - 1, 0)];
    else if (event.key === 'Home' && event.ctrlKey) next = 0;
    else if (event.key === 'End' && event.ctrlKey) next = texts.length - 1;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    next = Math.min(Math.max(next, 0), texts.length - 1);
    setChosen(next);
    show(next);
  };
  /** @param {any} event */
  const point = (event) => { if (event.target.dataset?.i) setChosen(Number(event.target.dataset.i)); };
  const paper = useMemo(() => new TokenPaper(t, texts, rows, by), [t, texts, rows, by]);
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const all = /** @type {HTMLElement} */ (element.querySelector('.all'));
    const draw = () => paper.draw(all, element.scrollTop, element.clientHeight);
    all.replaceChildren();
    draw();
    element.addEventListener('scroll', draw, { passive: true });
    return () => element.removeEventListener('scroll', draw);
  }, [paper]);
  useEffect(() => paper.choose(chosen), [paper, chosen]);
  return html`<div class="tokens" ref=${box} tabindex="0" role="application" aria-label="Tokens. Arrow keys move from token to token; the line below describes the token."
      onKeyDown=${key} onClick=${point} onMouseOver=${point}>
      <span class="probe" aria-hidden="true">00000000000000000000</span>
      <div class="all" style=${{ height: `${(rows.length - 1) * ROW}px` }}></div>
    </div>
    <p class="token-line" role="status" aria-live="polite">${chosen >= 0 ? describe(t, texts, chosen, turnAt(chosen), linkTo) : `${count(texts.length)} tokens. Point at one, or move with the arrow keys.`}</p>`;
}

/** @param {any[]} turns @returns {(token: number) => number} number of the turn that sampled a token; 0: none */
function turnFinder(turns) {
  return (token) => {
    const found = turns.findIndex((one) => token >= one.start && token < one.end);
    return found + 1;
  };
}

/** @param {import('./columns.js').Trajectory} t @param {string[]} texts @param {number} i @param {number} turn @param {(turn: number) => string} linkTo */
function describe(t, texts, i, turn, linkTo) {
  const sampled = t.mask[i] === 1;
  return html`Index ${count(i)} of ${count(texts.length)} tokens, id ${t.ids[i]} <code>${tokenShape(texts[i])}</code> · ${sampled
    ? html`sampled, logprob ${signed(t.logprobs[i])} (probability ${(Math.exp(t.logprobs[i]) * 100).toPrecision(3)} %), weights ${t.versions[t.version[i]] ?? 'not known'}`
    : 'not sampled'}${turn > 0 && html` · <a href=${linkTo(turn)}>turn ${turn}</a>`}`;
}

/** @param {number} value */
const signed = (value) => (value > -0.00005 ? '0' : value.toFixed(4).replace('-', '\u2212'));
