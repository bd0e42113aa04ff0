/** Where the time and the tokens of rollouts go: by stage, by part, by turn, by tool. */

import { url } from './api.js';
import { count, decimal, duration, percent, share } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { search } from './rollout_search.js';
import { Table } from './table.js';
import { visible } from './visible_text.js';
import { html } from './view.js';

const REFRESH_SECONDS = 30;

/** @typedef {{name: string, value: number, colour: string, note?: string}} Piece */

/** The view of a search: `#/profile?pool=P`, with the conditions of the list of rollouts. @param {{route: import('./route.js').Route}} props */
export function ProfileView({ route }) {
  const conditions = search(route);
  const named = Object.entries(route.query).filter(([k]) => k !== 'ns');
  return html`<div><h1>Where time and tokens go</h1>
    <p>${named.length ? html`Ended rollouts with ${named.map(([k, v], i) => html`${i > 0 && ', '}<code>${k}=${visible(v)}</code>`)}` : 'All ended rollouts'} of the namespace <code>${namespaceOf(route)}</code>. <a href=${link(['rollouts'], route.query)}>List them</a></p>
    ${conditions ? html`<${Profile} conditions=${conditions} query=${route.query} />` : html`<p class="problem">One of the conditions is no value.</p>`}</div>`;
}

/** @param {{conditions: Record<string, unknown>, query: Record<string, unknown>, subject?: string}} props conditions: of the API. query: the same as words of
 * the page's addresses. subject: what stays the same while a time in the conditions moves on */
export function Profile({ conditions, query, subject }) {
  const answer = usePoll(url('/v1/rollouts/profile', conditions), REFRESH_SECONDS, subject ?? link(['profile'], query));
  return html`<${Loaded} of=${answer} what="profile of rollouts">${(/** @type {any} */ p) => html`<${Parts} p=${p} query=${query} />`}<//>
    <${Kinds} conditions=${conditions} query=${query} subject=${subject} />`;
}

/** Where there are several task kinds: the tokens of each. @param {{conditions: Record<string, unknown>, query: Record<string, unknown>, subject?: string}} props */
function Kinds({ conditions, query, subject }) {
  const answer = usePoll(url('/v1/rollouts/summary', { ...conditions, by: 'kind' }), REFRESH_SECONDS, subject ?? link(['profile'], query));
  const rows = [...(answer.data?.rows ?? [])].sort((/** @type {any} */ a, /** @type {any} */ b) => b.tokens - a.tokens);
  const whole = rows.reduce((n, r) => n + r.tokens, 0);
  if (rows.length < 2) return null;
  return html`<h3>Tokens by task kind</h3><${Table} caption="Tokens by task kind" fit rows=${rows} keyOf=${(/** @type {any} */ r) => r.value} columns=${[
    { head: 'Kind', main: true, cell: (/** @type {any} */ r) => html`<a href=${link(['profile'], { ...query, kind: r.value })}>${r.value}</a>` },
    { head: 'Rollouts', figure: true, cell: (/** @type {any} */ r) => count(r.rollouts) },
    { head: 'Sampled tokens', figure: true, cell: (/** @type {any} */ r) => count(r.tokens) },
    { head: 'Of a rollout, mean', figure: true, cell: (/** @type {any} */ r) => count(r.tokens / r.rollouts) },
    { head: 'Share', figure: true, cell: (/** @type {any} */ r) => percent(share(r.tokens, whole)) },
  ]} />`;
}

/** @param {{p: any, query: Record<string, unknown>}} props */
function Parts({ p, query }) {
  if (!p.rollouts) return html`<p class="empty">No rollout that matches has ended.</p>`;
  return html`<p class="dim">${count(p.rollouts)} ended rollouts, ${count(p.scored)} with a reward${p.rollouts < p.matching ? `: the newest of ${count(p.matching)}` : ''}. Checks do not count.</p>
    <${Stages} p=${p} />
    ${p.profiled === 0 ? html`<p class="empty">Turns and tokens: not known. Older node agents did not count them.</p>` : html`
      ${p.profiled < p.rollouts && html`<p class="dim">Turns and tokens are those of ${count(p.profiled)} rollouts; those of the others are not known.</p>`}
      <${Tokens} p=${p} /><${Turns} p=${p} /><${Tools} p=${p} query=${query} />`}`;
}

/** @type {Record<string, [string, string]>} */
const STAGES = { queued: ['waiting', 'wait'], init: ['INIT', 'init'], run: ['RUN', 'run'], eval: ['EVAL', 'eval'] };

/** @param {{p: any}} props */
function Stages({ p }) {
  const whole = p.stages.reduce((/** @type {number} */ n, /** @type {any} */ s) => n + s.total, 0);
  const run = ['model', 'tools', 'environment', 'other'].map((of) => ({ name: of, value: p[of] }));
  const inRun = run.reduce((n, one) => n + one.value, 0);
  return html`<h3>Time of a rollout</h3>
    <${Bar} label="Time by stage" pieces=${p.stages.map((/** @type {any} */ s) => ({ name: STAGES[s.stage][0], value: s.total, colour: STAGES[s.stage][1] }))} />
    <${Table} caption="Time by stage" fit rows=${p.stages} keyOf=${(/** @type {any} */ s) => s.stage} columns=${[
      { head: 'Stage', main: true, cell: (/** @type {any} */ s) => STAGES[s.stage][0] },
      { head: 'p50', figure: true, title: 'half of the rollouts took at most this time', cell: (/** @type {any} */ s) => duration(s.p50) },
      { head: 'p95', figure: true, title: '95 % of the rollouts took at most this time', cell: (/** @type {any} */ s) => duration(s.p95) },
      { head: 'Mean', figure: true, cell: (/** @type {any} */ s) => duration(share(s.total, s.rollouts)) },
      { head: 'Share', figure: true, cell: (/** @type {any} */ s) => percent(share(s.total, whole)) },
    ]} />
    ${p.profiled > 0 && html`<p>RUN is ${run.filter((one) => one.value > 0).map((one, i) => html`${i > 0 && ', '}${percent(share(one.value, inRun))} ${{ model: 'model calls', tools: 'tools', environment: 'the environment', other: 'other, such as waits for a model server' }[one.name]}`)}${inRun > 0 ? '' : 'not known in parts'}.</p>`}`;
}

/** @type {[string, string, string, string][]} */
const TOKENS = [
  ['prompt', 'first prompt', 'read', 'grey'], ['thoughts', 'thoughts', 'sampled', 'sky'], ['calls', 'tool calls', 'sampled', 'green'], ['answers', 'answers', 'sampled', 'blue'],
  ['outputs', 'tool outputs', 'read', 'pink'], ['environment', 'environment', 'read', 'orange'], ['repeated', 'read again after a break', 'read', 'rust'],
];

/** @param {{p: any}} props */
function Tokens({ p }) {
  const rows = TOKENS.map(([key, name, how, colour]) => ({ name, how, colour, value: p.tokens[key] }));
  const whole = rows.reduce((n, r) => n + r.value, 0);
  const sampled = rows.reduce((n, r) => n + (r.how === 'sampled' ? r.value : 0), 0);
  return html`<h3>Tokens by part</h3><${Bar} label="Tokens by part" pieces=${rows} />
    <${Table} caption="Tokens by part" fit rows=${rows.filter((r) => r.value > 0)} keyOf=${(/** @type {any} */ r) => r.name} empty="No token was sampled." columns=${[
      { head: 'Part', main: true, cell: (/** @type {any} */ r) => r.name }, { head: 'Model', cell: (/** @type {any} */ r) => r.how },
      { head: 'Tokens', figure: true, cell: (/** @type {any} */ r) => count(r.value) }, { head: 'Of a rollout', figure: true, cell: (/** @type {any} */ r) => count(share(r.value, p.profiled)) },
      { head: 'Share', figure: true, cell: (/** @type {any} */ r) => percent(share(r.value, whole)) },
    ]} /><p class="dim">${percent(share(sampled, whole))} of the tokens are sampled. Each token counts once, also where later prompts have it again. The tokens of a turn are divided by the length of its texts.</p>`;
}

/** @param {{p: any}} props */
function Turns({ p }) {
  return html`<h3>Tokens by turn</h3><${Table} caption="Tokens by turn" fit rows=${p.bands} keyOf=${(/** @type {any} */ b) => String(b.first)} empty="No turn was recorded." columns=${[
    { head: 'Turns', main: true, cell: (/** @type {any} */ b) => (b.first === b.last ? b.first : `${b.first}–${b.last}`) },
    { head: 'Turns run', figure: true, cell: (/** @type {any} */ b) => count(b.turns) },
    { head: 'Read anew', figure: true, title: 'tokens of a turn that were new in its prompt', cell: (/** @type {any} */ b) => count(share(b.read, b.turns)) },
    { head: 'Sampled', figure: true, cell: (/** @type {any} */ b) => count(share(b.sampled, b.turns)) },
    { head: 'Whole prompt', figure: true, title: 'mean length of a turn\'s prompt', cell: (/** @type {any} */ b) => count(share(b.context, b.turns)) },
  ]} />`;
}

/** @param {{p: any, query: Record<string, unknown>}} props */
function Tools({ p, query }) {
  return html`<h3>Tools</h3><${Table} caption="Tools" fit stack rows=${p.by_tool} keyOf=${(/** @type {any} */ t) => t.tool} empty="No tool was called." columns=${[
    { head: 'Tool', main: true, cell: (/** @type {any} */ t) => html`<code>${visible(t.tool)}</code>` },
    { head: 'Calls', figure: true, cell: (/** @type {any} */ t) => count(t.calls) },
    { head: 'Failed', figure: true, title: 'a command with an exit code other than 0, an error, a time-out, a refused edit, a call that cannot be read', cell: (/** @type {any} */ t) => (t.failed
      ? html`<a href=${link(['rollouts'], { ...query, failed_tool: t.tool })} aria-label=${`${t.failed} failed calls of ${t.tool}: list the rollouts`}>${count(t.failed)}</a>` : count(t.judged ? 0 : undefined)) },
    { head: 'Of the known', figure: true, title: 'of the calls whose result is known: those of a lost sandbox have none', cell: (/** @type {any} */ t) => percent(share(t.failed, t.judged)) },
    { head: 'Output tokens', figure: true, cell: (/** @type {any} */ t) => count(t.tokens) }, { head: 'Of a call', figure: true, cell: (/** @type {any} */ t) => count(share(t.tokens, t.calls)) },
    { head: 'Rollouts', figure: true, cell: (/** @type {any} */ t) => count(t.rollouts) },
  ]} /><p class="dim">Whether a call of a harness failed is not known: its tools are its own. ${p.by_tool.length > 0 && html`<a href=${link(['rollouts'], { ...query, failed_calls: 'true', sort: '-failed_calls' })}>Rollouts with the most failed calls</a>`}</p>`;
}

/** Parts of a whole as one bar. @param {{pieces: Piece[], label: string}} props */
function Bar({ pieces, label }) {
  const whole = pieces.reduce((n, one) => n + one.value, 0);
  if (!whole) return null;
  const shown = pieces.filter((one) => one.value > 0);
  return html`<figure class="shares"><div class="bar" role="img" aria-label=${`${label}: ${shown.map((one) => `${one.name} ${percent(one.value / whole)}`).join(', ')}`}>${
    shown.map((one) => html`<span key=${one.name} class=${`share ${one.colour}`} style=${{ flexGrow: one.value / whole }} title=${`${one.name}: ${decimal(100 * one.value / whole)} %`}></span>`)}</div>
    <figcaption><span class="legend">${shown.map((one) => html`<span key=${one.name}><i class=${`share ${one.colour}`}></i>${one.name} ${percent(one.value / whole)}</span>`)}</span></figcaption></figure>`;
}
