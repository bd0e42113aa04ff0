/** A rollout's story: a bar of time, and the table of its history. */

import { clock, decimal, duration } from './format.js';
import { phases } from './history.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { useNow } from './time.js';
import { message } from './visible_text.js';
import { html } from './view.js';

/** @param {{history: any, compact?: boolean}} props */
export function StoryBar({ history, compact }) {
  const now = useNow();
  const found = phases(history.entries, now);
  if (!found.length) return html`<p class="empty">The history has no beginning: a release before histories made it.</p>`;
  const [start, end] = [found[0].from, found[found.length - 1].to];
  const whole = Math.max(end - start, 0.001);
  const text = found.map((p) => `${p.kind} ${duration(p.to - p.from)}${p.why ? ` (${p.why})` : ''}`).join(', ');
  const worked = found.filter((p) => p.kind !== 'queued');
  const [attempts, leases] = [new Set(worked.map((p) => p.attempt)).size, new Set(worked.map((p) => p.lease)).size];
  return html`<figure class="story">
    <div class="bar" role="img" aria-label=${`${duration(whole)}: ${text}`}>${found.map((p, i) => html`<span key=${i}
      class=${`phase ${p.kind}${p.open ? ' open' : ''}`} style=${{ flexGrow: (p.to - p.from) / whole }}
      title=${`${p.kind}, attempt ${p.attempt}${p.lease ? `, lease ${p.lease}` : ''}: ${duration(p.to - p.from)} from ${clock(p.from)}${p.why ? `\n${p.why}` : ''}`}>${
        !compact && (p.to - p.from) / whole > 0.09 ? `${p.kind} ${duration(p.to - p.from)}` : ''}</span>`)}</div>
    ${!compact && html`<figcaption>${clock(start)} to ${found[found.length - 1].open ? 'now' : clock(end)}, ${duration(whole)} in all, each stage with waiting${leases > 1 ? `, ${leases} leases in ${attempts === 1 ? 'one attempt' : `${attempts} attempts`}` : ''}.
      <span class="legend">${['queued', 'INIT', 'RUN', 'EVAL'].map((k) => html`<span key=${k}><i class=${`phase ${k}`}></i>${k}</span>`)}</span></figcaption>`}
  </figure>`;
}

/** @param {{history: any, namespace: string}} props */
export function HistoryTable({ history, namespace }) {
  const start = history.entries[0]?.at ?? 0;
  const rows = history.entries.map((/** @type {any} */ e, /** @type {number} */ i) => ({ ...e, i }));
  return html`<${Table} caption="History" rows=${rows} keyOf=${(/** @type {any} */ e) => String(e.i)} columns=${[
    { head: 'After', figure: true, cell: (/** @type {any} */ e) => html`<span title=${clock(e.at)}>${duration(e.at - start)}</span>` },
    { head: 'Attempt', figure: true, cell: (/** @type {any} */ e) => e.attempt },
    { head: 'Lease', figure: true, title: 'a lost lease that another one resumes uses up no attempt', cell: (/** @type {any} */ e) => e.lease ?? '' },
    { head: 'Stage', cell: (/** @type {any} */ e) => e.stage },
    { head: 'Event', cell: (/** @type {any} */ e) => e.event },
    { head: 'Details', wide: true, cell: (/** @type {any} */ e) => details(e, namespace) },
  ]} />
  ${history.dropped > 0 && html`<p class="dim">${history.dropped} entries after the first ${history.kept_first} are not kept.</p>`}`;
}

/** @type {Record<string, string>} */
const ENDPOINT_REASONS = { WarmPrefix: 'a part of the prompt is in its cache', SameNode: 'on the same node', LeastLoad: 'least load' };

/** Why this node agent was chosen. @param {any} e */
function leaseReason(e) {
  /** @type {Record<string, string>} */
  const why = {
    OnlyOne: 'the only node agent with room for it', MostRoom: `the most room of ${e.able} node agents: ${e.free}`,
    HasImage: `of the node agents with its image, the most room: ${e.free}`, Exclusive: 'a node agent without other work',
  };
  return why[e.reason] ?? e.reason;
}

/** @param {any} e @param {string} namespace */
function details(e, namespace) {
  const words = [];
  if (e.status) words.push(`${e.status}${e.reward === undefined ? '' : `, reward ${decimal(e.reward)}`}`);
  if (e.role) words.push(`${e.role} from ${e.previous ?? 'none'} to ${e.endpoint}`);
  for (const [role, chosen] of Object.entries(e.endpoints ?? {})) words.push(`${role} ${chosen.id}${chosen.reason ? ` (${ENDPOINT_REASONS[chosen.reason] ?? chosen.reason})` : ''}`);
  if (e.weights_version) words.push(`weights ${e.weights_version}`);
  const why = [e.event === 'Leased' ? leaseReason(e) : e.reason, e.message].filter(Boolean).join(': ');
  if (why) words.push(why);
  const work = Object.entries(e.seconds ?? {}).map(([stage, seconds]) => `${stage.toUpperCase()} ${duration(seconds)}`);
  if (work.length) words.push(`at work: ${work.join(', ')}`);
  if (e.retry_at) words.push(`the next attempt begins ${duration(e.retry_at - e.at)} later, ${e.turns ? `after turn ${e.turns}` : `from the beginning of ${e.stage === 'EVAL' ? 'EVAL' : 'INIT'}`}`);
  const text = message(words.join('; '));
  return e.allocation
    ? html`node ${e.node}, <a href=${link(['allocations', e.allocation], { ns: ns(namespace) })}>${e.allocation}</a>; ${text}` : text;
}
