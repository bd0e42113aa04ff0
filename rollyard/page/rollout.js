/** One rollout: how it stands, its story, its conversation or tokens, its task. */

import { ApiFailure, rolloutPath, url } from './api.js';
import { readTrajectory } from './columns.js';
import { Conversation, Score } from './conversation.js';
import { count, decimal, duration, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns, option } from './route.js';
import { RunningTurns } from './running_turns.js';
import { HistoryTable, StoryBar } from './story.js';
import { Facts } from './table.js';
import { TextBlock } from './text_block.js';
import { Time } from './time.js';
import { Tokens, useTokenTexts } from './tokens.js';
import { callsOf } from './turn_text.js';
import { message, visible } from './visible_text.js';
import { html, useEffect, useState } from './view.js';

const REFRESH_SECONDS = 3;
const VIEWS = { '': 'Conversation', tokens: 'Tokens', history: 'History', task: 'Task' };

/** Read a trajectory, and again until the rollout has ended. @param {string} namespace @param {string} id */
function useTrajectory(namespace, id) {
  const [answer, setAnswer] = useState(/** @type {import('./poll.js').Answer} */ ({ data: undefined, error: undefined, at: undefined }));
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const read = async () => {
      let wait = REFRESH_SECONDS;
      try {
        const data = document.hidden && timer ? undefined : await readTrajectory(namespace, id, control.signal);
        if (control.signal.aborted) return;
        if (data) setAnswer({ data, error: undefined, at: Date.now() / 1000 });
        if (data?.sample) return;
      } catch (error) {
        if (control.signal.aborted) return;
        const failed = error instanceof ApiFailure ? error : new ApiFailure(0, 'Unreadable', `the trajectory cannot be read: ${error}`);
        setAnswer((before) => ({ ...before, error: failed }));
        if (failed.status === 404 || failed.status === 410) return;
        wait = 10;
      }
      timer = setTimeout(read, wait * 1000);
    };
    setAnswer({ data: undefined, error: undefined, at: undefined });
    read();
    return () => { control.abort(); clearTimeout(timer); };
  }, [namespace, id]);
  return answer;
}

/** @param {{route: import('./route.js').Route}} props */
export function Rollout({ route }) {
  const [namespace, id, view] = [namespaceOf(route), route.path[1], route.query.view ?? ''];
  const answer = useTrajectory(namespace, id);
  const ended = answer.data?.sample != null;
  const texts = useTokenTexts(namespace, id, view === 'tokens' && (ended || answer.data === undefined)); // at once, and not after the trajectory
  const history = usePoll(url(`${rolloutPath(id)}/history`, { namespace, ended: undefined }), ended ? 0 : REFRESH_SECONDS);
  /** @param {number} turn @param {string} [to] @param {string} [colour] */
  const linkTo = (turn, to = '', colour = route.query.colour) => link(['rollouts', id], { ns: ns(namespace), view: to, turn: turn || undefined, colour: to === 'tokens' ? colour : undefined });
  return html`<div><h1><span class="kind">Rollout</span> ${id}</h1>
    <${Loaded} of=${answer} what="rollout">${(/** @type {import('./columns.js').Trajectory} */ t) => html`
      <${Head} t=${t} namespace=${namespace} />
      <${Loaded} of=${history} what="history">${(/** @type {any} */ h) => html`<${StoryBar} history=${h} />`}<//>
      <nav class="tabs" aria-label="Parts of the rollout"><ul>${Object.entries(VIEWS).map(([word, text]) => html`<li key=${word}><a href=${linkTo(0, word)} aria-current=${word === view ? 'page' : undefined}>${text}</a></li>`)}</ul></nav>
      ${view === 'history' && html`<${Loaded} of=${history} what="history">${(/** @type {any} */ h) => html`<${HistoryTable} history=${h} namespace=${namespace} />`}<//>`}
      ${view === 'task' && html`<${Task} t=${t} />`}
      ${(view === '' || view === 'tokens') && (t.sample
        ? html`<${Ended} t=${t} view=${view} texts=${texts} route=${route} linkTo=${linkTo} />`
        : view === 'tokens' ? html`<p class="empty">The tokens are here when the rollout has ended.</p>`
          : html`<h2 class="unseen">Turns</h2><${RunningTurns} namespace=${namespace} id=${id} linkTo=${linkTo} />`)}`}<//></div>`;
}

/** @param {{t: import('./columns.js').Trajectory, view: string, texts: import('./poll.js').Answer, route: import('./route.js').Route, linkTo: any}} props */
function Ended({ t, view, texts, route, linkTo }) {
  const turn = Number(route.query.turn) || undefined;
  if (view === 'tokens') return html`<${Tokens} t=${t} texts=${texts} turn=${turn} colour=${route.query.colour ?? 'mask'} linkTo=${linkTo} />`;
  return html`<${Prompt} task=${t.sample.task} /><h2 class="unseen">Turns</h2><${Conversation} t=${t} turn=${turn} linkTo=${linkTo} /><${Score} sample=${t.sample} />`;
}

/** What the agent was asked, by the field that the task's kind has for it. @param {{task: any}} props */
function Prompt({ task }) {
  const field = ['problem', 'problem_statement', 'question', 'instruction', 'prompt'].find((name) => typeof task?.[name] === 'string');
  if (!field) return null;
  return html`<section class="asked"><h2>Task</h2><${TextBlock} text=${task[field]} label="Task" /></section>`;
}

/** @param {{t: import('./columns.js').Trajectory, namespace: string}} props */
function Head({ t, namespace }) {
  const v = t.view;
  const at = { ns: ns(namespace) };
  /** @type {[string, unknown][]} */
  const pairs = [
    ['Status', html`<${Mark} word=${v.status} />${v.stage ? ` in ${v.stage}` : ''}`],
    ['Reward', html`<strong class="reward">${v.reward === null ? UNKNOWN : decimal(v.reward, 4)}</strong>`],
    ['Pool', html`<a href=${link(['pools', 'RolloutPool', v.pool], at)}>${v.pool}</a>`],
    ['Task kind', v.task_kind],
    ['Group', v.group ? html`<a href=${link(['groups', v.group], at)}>${v.group}</a>${v.mode === 'eval' ? '' : ` #${v.sample_index}`}` : 'none'],
    ['Attempt', `${v.attempt}${v.outdated ? `, ${v.outdated} restarts for weights` : ''}`],
    ['Weights', v.weights_versions.join(', ') || UNKNOWN],
    ['Node', v.node ?? UNKNOWN],
    ['Accepted', html`<${Time} at=${v.created_at} />`],
    ['Ended', html`<${Time} at=${v.finished_at} />`],
    ['Mode', v.mode],
  ];
  if (t.sample) {
    const timings = t.sample.timings ?? {};
    pairs.push(['Tokens', `${count(t.sampled)} sampled of ${count(t.ids.length)}`], ['Turns', String(t.turns.length)],
      ['INIT, RUN, EVAL at work', ['init', 'run', 'eval'].map((s) => duration(timings[s])).join(', ')]);
    pairs.push(['Tool calls', callsOf(t.turns)]);
    const breaks = Object.entries(t.sample.breaks ?? {});
    if (breaks.length) pairs.push(['Breaks', breaks.map(([k, n]) => `${k} ${n}`).join(', ')]);
    if (t.sample.forked_from) pairs.push(['Goes on from', html`<a href=${link(['rollouts', t.sample.forked_from.rollout], { ...at, turn: t.sample.forked_from.turn })}>${t.sample.forked_from.rollout}, turn ${t.sample.forked_from.turn}</a>`]);
    if (t.sample.regrade_of) pairs.push(['Scores again', html`<a href=${link(['rollouts', t.sample.regrade_of], at)}>${t.sample.regrade_of}</a>`]);
  }
  return html`<${Facts} pairs=${pairs} />
    ${v.waiting && html`<p class="problem">${message(v.waiting)}</p>`}
    ${t.sample && html`<p class="dim">A file to send: <code>rollyard export html${option(v.namespace)} ${v.id} -o rollout.html</code></p>`}
    ${v.error && !t.sample && html`<p class="problem">${v.error.reason}: ${visible(v.error.message)}</p>`}
    ${v.kept && html`<p>The sandbox of its failed attempt is kept on ${v.kept.node} until <${Time} at=${v.kept.until} />: <code>rollyard exec${option(v.namespace)} ${v.id}</code> looks into it.</p>`}`;
}

/** @param {{t: import('./columns.js').Trajectory}} props */
function Task({ t }) {
  const task = t.sample?.task;
  const metadata = Object.entries(t.view.metadata ?? {});
  return html`<section><h2>Task</h2>
    ${metadata.length > 0 && html`<h3>Metadata</h3><${Facts} pairs=${metadata.map(([k, v]) => [k, html`<a href=${link(['rollouts'], { ns: ns(t.view.namespace), metadata: JSON.stringify({ [k]: v }) })}>${visible(v)}</a>`])} />`}
    ${task ? Object.entries(task).filter(([k]) => k !== 'metadata').map(([name, value]) => html`<div key=${name}><h3>${name}</h3>
      <${TextBlock} text=${typeof value === 'string' ? value : JSON.stringify(value, null, 1)} label=${name} /></div>`)
      : html`<p class="empty">The task is shown when the rollout has ended.</p>`}</section>`;
}
