/** Training steps of batches as charts: rewards with their spread, what was held back, staleness, lengths. */

import { url } from './api.js';
import { Chart } from './chart.js';
import { count, decimal, duration, percent } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { html } from './view.js';

const REFRESH_SECONDS = 10;

/** @param {string} namespace @param {string | null} id null: not known yet @param {boolean} series true: of all batches of its series
 * @param {string} [subject] the series, where the id is that of its newest batch */
export function useSteps(namespace, id, series, subject) {
  return usePoll(id === null ? null : url(`/v1/history/batches/${encodeURIComponent(id)}`, { namespace, series: series || undefined }), REFRESH_SECONDS, subject);
}

/** @param {{answers: {name: string, answer: import('./poll.js').Answer}[], scope?: unknown}} props */
export function StepCharts({ answers, scope }) {
  const read = answers.filter((a) => a.answer.data);
  return html`<section aria-labelledby="steps"><h2 id="steps">Over training steps</h2>${scope}
    ${answers.map((a) => (a.answer.data && !a.answer.error ? null : html`<${Loaded} key=${a.name} of=${a.answer} what=${`steps of ${a.name}`}>${() => null}<//>`))}
    ${read.length > 0 && (read.every((a) => !a.answer.data.steps.length) ? html`<p class="empty">No group has a verdict yet. The first training step appears with the first group that ended.</p>` : html`${firstSteps(read).some((n) => n > 0) && html`<p class="dim">Steps are counted from the first step of each.</p>`}<div class="charts">${charts(read)}</div>`)}</section>`;
}

/** The number that is subtracted from each one's steps: two are shown from the first step of each. @param {{answer: import('./poll.js').Answer}[]} read @returns {number[]} */
function firstSteps(read) {
  return read.map((a) => (read.length > 1 ? a.answer.data.steps[0]?.step ?? 0 : 0));
}

/** @param {{name: string, answer: import('./poll.js').Answer}[]} read */
function charts(read) {
  const from = firstSteps(read);
  const by = read.map((a, i) => new Map(a.answer.data.steps.map((/** @type {any} */ s) => [s.step - from[i], s])));
  const x = [...new Set(by.flatMap((steps) => [...steps.keys()]))].sort((a, b) => a - b);
  /** @param {number} i @param {(step: any) => number | null | undefined} of */
  const values = (i, of) => x.map((step) => { const s = by[i].get(step); return s === undefined ? null : of(s); });
  const alone = read.length === 1;
  /** @param {string} title @param {Record<string, (s: any) => number | null | undefined>} lines @param {(v: any) => string} [format] @param {number} [most] */
  const chart = (title, lines, format = (v) => decimal(v), most = undefined) => html`<${Chart} key=${title} title=${title} x=${x} format=${format} most=${most}
    series=${read.flatMap((a, i) => Object.entries(lines).map(([name, of]) => ({ name: alone ? name : Object.keys(lines).length > 1 ? `${a.name} ${name}` : a.name, y: values(i, of) })))} />`;
  return [
    html`<${Chart} key="reward" title="Reward of delivered groups; shaded: the middle half" x=${x} series=${[
      ...read.map((a, i) => ({ name: alone ? 'mean' : a.name, y: values(i, (s) => s.reward_mean), low: values(i, (s) => s.reward_quartiles?.[1]), high: values(i, (s) => s.reward_quartiles?.[3]) })),
      ...(alone ? [{ name: 'median', y: values(0, (s) => s.reward_quartiles?.[2]) }] : [])]} />`,
    chart('Reward of all judged groups', { mean: (s) => s.judged_reward_mean }),
    chart('Groups whose rewards differ', { share: (s) => s.informative_share }, percent, 1),
    ...(alone ? [chart('Groups', { delivered: (s) => s.groups, 'all low': (s) => s.all_low, 'all high': (s) => s.all_high, other: (s) => s.other, faulty: (s) => s.faulty }, count)] : [chart('Groups held back', { '': (s) => s.all_low + s.all_high + s.other + s.faulty }, count)]),
    chart('Wasted tokens', { tokens: (s) => s.wasted_tokens }, count),
    chart('Staleness: steps between draw and use', alone ? { mean: (s) => s.staleness_mean, greatest: (s) => s.staleness_max } : { mean: (s) => s.staleness_mean }),
    chart('Spread within a group', { 'standard deviation': (s) => s.group_reward_std }),
    chart('Sampled tokens of a rollout', { mean: (s) => s.tokens_mean }, count),
    chart('Turns and tool calls of a rollout', { turns: (s) => s.turns_mean, 'tool calls': (s) => s.tool_calls_mean }),
    chart('Time of a rollout', { mean: (s) => s.seconds_mean }, duration),
  ];
}
