/** Hours of jobs beside those of Slurm's accounting: sums by pool, the causes of the difference, and the jobs that differ most. */

import { url } from './api.js';
import { clock, count, decimal, UNKNOWN } from './format.js';
import { Loaded } from './loaded.js';
import { usePoll } from './poll.js';
import { link, ns } from './route.js';
import { Table } from './table.js';
import { message } from './visible_text.js';
import { html } from './view.js';

const ASKED_SECONDS = 60; // what usePoll allows at most, because each answer asks slurmdbd for all jobs
const LISTED = 20;

/** @param {unknown} hours */
const sum = (hours) => (typeof hours === 'number' ? decimal(Number(hours.toFixed(2)), 6) : UNKNOWN);
/** @param {unknown} hours */
const fine = (hours) => (typeof hours === 'number' ? hours.toFixed(3) : UNKNOWN);
/** @param {number} hours */
const signed = (hours) => (hours < 0 ? `−${fine(-hours)}` : `+${fine(hours)}`);

/** @param {{namespace: string | undefined, since: number, subject: string}} props namespace: undefined for all */
export function SlurmUsage({ namespace, since, subject }) {
  const answer = usePoll(url('/v1/usage/slurm', { namespace, since, limit: LISTED }), ASKED_SECONDS, subject);
  return html`<section><h2>Beside Slurm's accounting</h2>
    <${Loaded} of=${answer} what="comparison with Slurm's accounting">${(/** @type {any} */ u) => (u.missing !== null
      ? html`<p role="status">Not known: ${message(u.missing)}.</p>` : html`<${Comparison} u=${u} />`)}<//></section>`;
}

/** @param {{u: any}} props */
function Comparison({ u }) {
  const [total, differing] = [u.total, u.jobs.filter((/** @type {any} */ j) => j.why.length > 0)];
  const more = total.differing + total.unknown_jobs - differing.length;
  const pools = u.rows.length ? [...u.rows, { ...total, isTotal: true }] : [];
  const at = (/** @type {any} */ r) => ({ ns: ns(r.namespace) });
  return html`<${Table} stack caption="Hours beside Slurm's" rows=${pools} keyOf=${(/** @type {any} */ r) => (r.isTotal ? 'total' : [r.namespace, r.pool_kind, r.pool].join('/'))} empty="No job ran in this time." columns=${[
    { head: 'Pool', main: true, cell: (/** @type {any} */ r) => (r.isTotal ? html`<strong>Total</strong>` : html`<a href=${link(['pools', r.pool_kind, r.pool], at(r))}>${r.pool}</a>`) },
    { head: 'Namespace', cell: (/** @type {any} */ r) => r.namespace ?? '' },
    { head: 'Jobs', figure: true, title: 'jobs that accounting knows', cell: (/** @type {any} */ r) => count(r.jobs) },
    { head: 'GPU-hours', figure: true, cell: (/** @type {any} */ r) => sum(r.gpu_hours) }, { head: 'GPU-hours by Slurm', figure: true, cell: (/** @type {any} */ r) => sum(r.slurm_gpu_hours) },
    { head: 'CPU-hours', figure: true, cell: (/** @type {any} */ r) => sum(r.cpu_hours) }, { head: 'CPU-hours by Slurm', figure: true, cell: (/** @type {any} */ r) => sum(r.slurm_cpu_hours) },
    { head: 'Differ', figure: true, title: 'of these jobs', cell: (/** @type {any} */ r) => count(r.differing) }, { head: 'Unknown to Slurm', figure: true, title: 'further jobs, which accounting does not know', cell: (/** @type {any} */ r) => count(r.unknown_jobs) },
  ]} />
  <p class="dim">At ${clock(u.until)}. Both sums are about the same jobs.${total.unknown_jobs > 0 && ` In neither, because accounting does not know the job: ${count(total.unknown_jobs)}, with ${sum(total.unknown_gpu_hours)} GPU-hours and ${sum(total.unknown_cpu_hours)} CPU-hours.`}</p>
  ${u.differences.length > 0 && html`<h3>Why Slurm has more or less</h3><${Table} stack caption="Why Slurm has more or less" rows=${u.differences} keyOf=${(/** @type {any} */ d) => d.cause} empty="" columns=${[
    { head: 'Cause', main: true, wide: true, cell: (/** @type {any} */ d) => d.message }, { head: 'Jobs', figure: true, cell: (/** @type {any} */ d) => count(d.jobs) },
    { head: 'GPU-hours', figure: true, cell: (/** @type {any} */ d) => signed(d.gpu_hours) }, { head: 'CPU-hours', figure: true, cell: (/** @type {any} */ d) => signed(d.cpu_hours) },
  ]} />`}
  ${differing.length > 0 && html`<h3>Jobs that differ most</h3><${Table} stack caption="Jobs that differ most" rows=${differing} keyOf=${(/** @type {any} */ j) => `${j.namespace}/${j.allocation}/${j.id}`} empty="" columns=${[
    { head: 'Allocation', main: true, cell: (/** @type {any} */ j) => html`<a href=${link(['allocations', j.allocation], at(j))}>${j.allocation}</a>` }, { head: 'Job', figure: true, cell: (/** @type {any} */ j) => j.id },
    { head: 'GPU-hours', figure: true, cell: (/** @type {any} */ j) => fine(j.gpu_hours) }, { head: 'GPU-hours by Slurm', figure: true, cell: (/** @type {any} */ j) => fine(j.slurm_gpu_hours) },
    { head: 'CPU-hours', figure: true, cell: (/** @type {any} */ j) => fine(j.cpu_hours) }, { head: 'CPU-hours by Slurm', figure: true, cell: (/** @type {any} */ j) => fine(j.slurm_cpu_hours) },
    { head: 'Why', wide: true, cell: (/** @type {any} */ j) => message(j.why.join('; ')) },
  ]} />${more > 0 && html`<p class="dim">${count(more)} more; <code>rollyard usage --slurm -o json</code> has all.</p>`}`}`;
}
