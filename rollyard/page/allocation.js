/** One allocation: its job in Slurm, its times, its output. */

import { OBJECTS, request, url } from './api.js';
import { isMissed, slurmSays, spanOf, spanOfEnded, STATE_TONES } from './allocation_state.js';
import { Conditions } from './conditions.js';
import { Events, newest } from './events.js';
import { UNKNOWN } from './format.js';
import { live, object } from './live.js';
import { Loaded, Missed } from './loaded.js';
import { Mark } from './mark.js';
import { PlannedTimes, usePlannedSuccessors } from './planned_successors.js';
import { usePoll } from './poll.js';
import { link, namespaceOf, ns } from './route.js';
import { Facts } from './table.js';
import { TextBlock } from './text_block.js';
import { At, Time } from './time.js';
import { message } from './visible_text.js';
import { html, useEffect, useState } from './view.js';

const LINES = 200;
const DAY = 86400;

/** @param {{route: import('./route.js').Route}} props */
export function Allocation({ route }) {
  const [namespace, name] = [namespaceOf(route), route.path[1]];
  const found = object('Allocation', namespace, name);
  const gone = usePoll(live.listed && !found ? url('/v1/allocations/history', { namespace, since: Math.floor(Date.now() / 1000 / DAY) * DAY - 30 * DAY, limit: 5000 }) : null);
  const old = gone.data?.allocations?.find((/** @type {any} */ a) => a.name === name);
  const { plans, answer } = usePlannedSuccessors(namespace);
  const span = found ? spanOf(found) : old && spanOfEnded(old);
  if (!span) {
    return html`<h1><span class="kind">Allocation</span> ${name}</h1>${!live.listed ? html`<p class="empty">Reading the allocations …</p>`
      : html`<${Loaded} of=${gone} what="ended allocations">${() => html`<p class="empty">The server knows no allocation ${name} in the namespace ${namespace}, also not among those that ended within 30 days.</p>`}<//>`}`;
  }
  const successor = [...live.kinds.Allocation.values()].find((a) => a.spec.successorOf === name && a.metadata.namespace === namespace);
  const at = { ns: ns(namespace) };
  const planned = found && !successor ? plans.find((p) => p.allocation === name) : undefined;
  const uid = found?.metadata.uid ?? old?.uid;
  return html`<div><h1><span class="kind">Allocation</span> ${name}</h1>
    <${Facts} pairs=${[
      ['State', html`<${Mark} tone=${STATE_TONES[span.state]} word=${span.state} />`],
      ['Pool', html`<a href=${link(['pools', span.poolKind, span.pool], at)}>${span.pool}</a>`],
      ['Job', span.job || UNKNOWN], ['Slurm says', slurmSays(span) || 'nothing yet'], ['Node', span.node || UNKNOWN],
      ['Submitted', html`<${Time} at=${span.submitted} />`],
      span.started === undefined && span.ended === undefined ? ['Expected start', html`<${Time} at=${span.expectedStart} />`] : ['Started', html`<${Time} at=${span.started} />`],
      ['First ready', html`<${Time} at=${span.ready} />`],
      [span.ended === undefined ? 'Walltime ends' : isMissed(span) ? 'Ended before' : 'Ended', html`<${At} at=${span.ended ?? span.walltimeEnd} />`],
      ...(span.exitCode === undefined || span.exitCode === null ? [] : [['Exit code', String(span.exitCode)]]),
      ...(span.successorOf ? [['Replaces', html`<a href=${link(['allocations', span.successorOf], at)}>${span.successorOf}</a>`]] : []),
      ...(planned ? [['Successor', html`<${PlannedTimes} planned=${planned} namespace=${namespace} />`]] : []),
      ...(successor ? [['Successor', html`<a href=${link(['allocations', successor.metadata.name], at)}>${successor.metadata.name}</a>`]] : []),
    ]} />
    ${found && html`<${Missed} of=${answer} what="plan of successors" />`}
    ${found && span.walltimeEnd !== undefined && answer.data && html`<p>${atWalltime(span, successor, planned)}</p>`}
    ${span.reason && html`<p>${span.ended === undefined ? 'Reason' : 'Cause of the end'}: ${message(span.reason)}</p>`}
    ${found?.status?.conditions?.length > 0 && html`<section><h2>Conditions</h2><${Conditions} conditions=${found.status.conditions} /></section>`}
    ${found && html`<${Output} namespace=${namespace} name=${name} />`}
    <section><h2>Events</h2><${Events} events=${newest((e) => e.involvedObject.uid === uid, 30)} /></section>
    ${found && html`<section><h2>Job as submitted</h2><${TextBlock} text=${JSON.stringify(found.spec.template, null, 2)} label="Template" kind="code" /></section>`}</div>`;
}

/** What happens when the walltime ends. @param {import('./allocation_state.js').Span} span @param {any} successor @param {import('./allocation_state.js').Planned | undefined} planned */
function atWalltime(span, successor, planned) {
  const end = html`At <${At} at=${span.walltimeEnd} />, Slurm ends the job.`;
  const work = span.poolKind === 'RolloutPool' ? 'its rollouts are finished, or handed back and go on elsewhere' : 'its rollouts go on at other model servers';
  if (span.state === 'draining') return html`It drains: it takes no new work, and ${work}. ${end}`;
  if (successor) return html`${end} ${successor.metadata.name} replaces it: as soon as that one is ready, and its time has come, this one drains, and ${work}.`;
  if (planned?.waits_for) return html`${end} A successor is submitted only after ${planned.waits_for} has started; if that is too late, nothing replaces this one for a while. It drains, and ${work}.`;
  if (planned) return html`${end} A successor is submitted before. As soon as it is ready, and its time has come, this one drains, and ${work}.`;
  return html`${end} No successor is planned.`;
}

/** The end of the job's output. @param {{namespace: string, name: string}} props */
function Output({ namespace, name }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    request(url(`${OBJECTS}/namespaces/${encodeURIComponent(namespace)}/allocations/${encodeURIComponent(name)}/log`, { tail: LINES }), { accept: 'text/plain', signal: control.signal })
      .then((r) => r.text()).then(setText, (error) => { if (!control.signal.aborted) setText(error.message); });
    return () => control.abort();
  }, [namespace, name, asked]);
  return html`<section><h2>Output</h2>${text === null ? html`<p class="dim">Reading …</p>` : html`<${TextBlock} text=${text || '(no output)'} label="Output of the job" kind="output" />`}
    <button type="button" class="plain" onClick=${() => setAsked(asked + 1)}>Read the last ${LINES} lines again</button></section>`;
}
