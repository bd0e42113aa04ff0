/** The rollouts of one task, side by side. */

import { url } from './api.js';
import { readTrajectory } from './columns.js';
import { count, decimal, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { Mark } from './mark.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { spreadOf, Strip } from './reward_spread.js';
import { StoryBar } from './story.js';
import { TextBlock } from './text_block.js';
import { callsOf, partsOf } from './turn_text.js';
import { visible } from './visible_text.js';
import { html, useEffect, useRef, useState } from './view.js';

const MOST = 64;
const REFRESH_SECONDS = 5;

/** @param {{route: import('./route.js').Route}} props */
export function Group({ route }) {
  const [namespace, id] = [namespaceOf(route), route.path[1]];
  const answer = usePoll(url('/v1/rollouts', { namespace, group: id, limit: MOST }), REFRESH_SECONDS);
  const task = usePoll(url('/v1/rollouts/summary', { namespace, group: id, by: 'task', limit: 2 }), 60);
  return html`<div><h1><span class="kind">Group</span> ${id}</h1>
    <${Loaded} of=${answer} what="group">${(/** @type {any} */ data) => html`<${Side} rollouts=${data.rollouts} namespace=${namespace} more=${data.next} asked=${task.data?.rows.length === 1 ? task.data.rows[0].prompt : null} />`}<//></div>`;
}

/** @param {{rollouts: any[], namespace: string, more: unknown, asked: string | null}} props asked: what the task asks */
function Side({ rollouts, namespace, more, asked }) {
  if (!rollouts.length) return html`<p class="empty">No rollout of this group is stored. It was deleted, or the address has the wrong namespace.</p>`;
  const tasks = new Set(rollouts.map((r) => r.task || r.id)).size;
  const evaluated = rollouts[0].mode === 'eval' && tasks > 1;
  const rewards = rollouts.map((r) => r.reward).filter((r) => r !== null);
  const spread = spreadOf(rewards);
  if (evaluated) return html`<p>These are rollouts of an evaluation, which has several tasks. <a href=${link(['evaluations', rollouts[0].group], { ns: ns(namespace) })}>Evaluation ${rollouts[0].group}</a> has its statistics and its tasks.</p>
    <p><a href=${link(['rollouts'], { ns: ns(namespace), group: rollouts[0].group })}>All rollouts of the evaluation</a></p>`;
  return html`${asked && html`<section class="asked"><h4>Task</h4><${TextBlock} text=${asked} label="Task" /></section>`}
    <p>${rollouts.length} rollouts of one task, ${rewards.length} with a reward${spread ? `: mean ${decimal(spread.mean)}, standard deviation ${decimal(spread.deviation)}, from ${decimal(spread.least)} to ${decimal(spread.most)}. ${
    spread.most === spread.least && rewards.length > 1 ? 'All rewards are equal, so a trainer that compares them learns nothing.' : ''}` : '.'}</p>
    ${spread && html`<${Strip} values=${rewards} label="Rewards of the group" />`}
    ${more && html`<p class="dim">Only the first ${MOST} are shown.</p>`}
    <ol class="side">${rollouts.map((r) => html`<${One} key=${r.id} rollout=${r} namespace=${namespace} />`)}</ol>`;
}

/** Whether an element has come near the window. @param {{current: HTMLElement | null}} of */
function useSeen(of) {
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      setSeen(true);
    }, { rootMargin: '400px' });
    observer.observe(/** @type {HTMLElement} */ (of.current));
    return () => observer.disconnect();
  }, []);
  return seen;
}

/** What a card shows of a trajectory. The rest is not kept: a group may have a hundred megabytes of tokens.
 * @param {import('./columns.js').Trajectory} t */
function cardOf(t) {
  return { turns: t.turns.length, calls: callsOf(t.turns), sampled: t.sampled, last: t.turns[t.turns.length - 1], notes: t.sample?.notes };
}

/** @param {{rollout: any, namespace: string}} props */
function One({ rollout: r, namespace }) {
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const seen = useSeen(card);
  const [t, setT] = useState(/** @type {ReturnType<typeof cardOf> | null} */ (null));
  const history = usePoll(seen ? url(`/v1/rollouts/${encodeURIComponent(r.id)}/history`, { namespace }) : null);
  const ended = r.finished_at !== null;
  useEffect(() => {
    if (!ended || !seen) return undefined;
    const control = new AbortController();
    readTrajectory(namespace, r.id, control.signal).then((whole) => setT(cardOf(whole)), () => {});
    return () => control.abort();
  }, [r.id, ended, seen]);
  const answer = t?.last && partsOf(t.last.text, t.last.tool_calls?.length > 0);
  return html`<li class="card" ref=${card}><h2><a href=${link(['rollouts', r.id], { ns: ns(namespace) })}>${r.mode === 'eval' ? r.id : `#${r.sample_index}`}</a> <${Mark} word=${r.status} /> <strong class="reward">${r.reward === null ? UNKNOWN : decimal(r.reward, 4)}</strong></h2>
    ${history.data && html`<${StoryBar} history=${history.data} compact />`}
    <p class="facts-line">${t ? `${t.turns} turns · calls: ${t.calls} · ${count(t.sampled)} sampled tokens` : ended ? 'Reading …' : 'has not ended'}</p>
    ${r.error && html`<p class="problem">${r.error.reason}: ${visible(r.error.message).slice(0, 300)}</p>`}
    ${answer && html`<h3>Last turn</h3><${TextBlock} text=${answer.said || answer.thoughts || t?.last.text} label="Last turn" />`}
    ${t?.notes?.length ? html`<h3>Why</h3><${TextBlock} text=${t.notes.join('\n')} label="Notes" />` : null}
  </li>`;
}
