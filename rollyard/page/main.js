/** The page: head, navigation, state of the connection, and the view that the address names. */

import { Allocations } from './allocations.js';
import { Batches } from './batches.js';
import { Evaluations } from './evaluations.js';
import { focusView, watchFocus } from './focus.js';
import { timeOfDay } from './format.js';
import { Group } from './group.js';
import { follow, namespaces, slurmAway, useLive } from './live.js';
import { Overview } from './overview.js';
import { ProfileView } from './profile.js';
import { Pools } from './pools.js';
import { Rollout } from './rollout.js';
import { Rollouts } from './rollouts.js';
import { go, link, namespaceOf, ns, useRoute } from './route.js';
import { Servers } from './servers.js';
import { Training } from './training.js';
import { message } from './visible_text.js';
import { Usage } from './usage.js';
import { html, memo, render, useEffect, useRef } from './view.js';

/** View outside the navigation -> the one that leads to it. @type {Record<string, string>} */
const WITHIN = { groups: 'rollouts', profile: 'rollouts', trainings: 'batches' };

/** First word of an address -> title, view, and whether it is in the navigation. A view that shows no object of the stream is
 * in `memo`, so it is not drawn again when one changes.
 * @type {Record<string, [string, (props: {route: import('./route.js').Route}) => unknown, boolean]>} */
const VIEWS = {
  overview: ['Overview', Overview, true],
  pools: ['Pools', Pools, true],
  allocations: ['Allocations', Allocations, true],
  servers: ['Model servers', Servers, true],
  batches: ['Batches', memo(Batches), true],
  evaluations: ['Evaluations', memo(Evaluations), true],
  rollouts: ['Rollouts', memo((props) => (props.route.path.length > 1 ? html`<${Rollout} ...${props} />` : html`<${Rollouts} ...${props} />`)), true],
  usage: ['Usage', memo(Usage), true],
  groups: ['Group', memo(Group), false],
  profile: ['Where time and tokens go', memo(ProfileView), false],
  trainings: ['Training', memo((props) => (props.route.path.length > 1 ? html`<${Training} ...${props} />` : html`<${Batches} ...${props} />`)), false],
};

function App() {
  const state = useLive();
  const route = useRoute();
  const word = route.path[0] ?? 'overview';
  const [title, View] = VIEWS[word] ?? ['Not found', NotFound, false];
  const place = [...route.path.slice(1)].pop();
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const address = route.path.join('/');
  const first = useRef(true);
  useEffect(() => { document.querySelector('header a[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' }); }, [word]);
  useEffect(() => {
    document.title = `${place ? `${place} · ` : ''}${title} · Rollyard`;
    const moved = !first.current && !route.query.turn;
    first.current = false;
    return moved && main.current ? focusView(main.current) : undefined;
  }, [address]);
  const away = slurmAway();
  const space = namespaceOf(route);
  const spaces = [...new Set([...namespaces(), space])];
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); main.current?.focus(); }}>To the content</a>
    <header>
      <span class="brand">Rollyard</span>
      <nav aria-label="Views"><ul>${Object.entries(VIEWS).filter(([, [,, shown]]) => shown).map(([name, [text]]) => html`
        <li key=${name}><a href=${link([name], { ns: ns(space) })} aria-current=${name === (WITHIN[word] ?? word) ? 'page' : undefined}>${text}</a></li>`)}</ul></nav>
      ${spaces.length > 1 && html`<label class="space">Namespace <select value=${space}
        onChange=${(/** @type {any} */ e) => go(link([word], { ns: ns(e.target.value) }))}>${spaces.map((s) => html`<option key=${s} value=${s}>${s}</option>`)}</select></label>`}
      <p class=${`connection ${state.connected ? 'on' : 'off'}`} role="status" aria-live="polite">${
        state.connected ? html`<span aria-hidden="true">●</span> live`
        : html`<span aria-hidden="true">✕</span> ${state.listed ? 'not connected' : 'no connection yet'} since ${timeOfDay(state.since)}`}</p>
    </header>
    ${!state.connected && html`<p class="problem banner">${state.listed
      ? `Not connected since ${timeOfDay(state.since)}${state.problem ? `: ${state.problem}` : ''}. What you see is older than that; the page tries again by itself.`
      : state.problem ? `Not connected: ${state.problem}. Is \`rollyard serve\` running? The page tries again by itself.` : 'Connecting …'}</p>`}
    ${state.connected && away && html`<p class="problem banner" role="status">${message(away.message)}. States, nodes and times of jobs are as Slurm gave them before that.</p>`}
    <main id="main" tabindex="-1" ref=${main}><${View} key=${address} route=${route} /></main>`;
}

function NotFound() {
  return html`<h1>There is no such view</h1><p>Choose one above.</p>`;
}

const root = /** @type {HTMLElement} */ (document.getElementById('app'));
root.replaceChildren();
render(html`<${App} />`, root);
watchFocus();
follow();
