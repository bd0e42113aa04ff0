/** Trajectories as columns: a safetensors file whose numbers need no parsing (docs/columns.md). */

import { request, rolloutPath, url } from './api.js';

const TYPE = 'application/vnd.rollyard.columns';
const READERS = { U8: Uint8Array, I16: Int16Array, I32: Int32Array, I64: BigInt64Array, F32: Float32Array, F64: Float64Array };
const decoder = new TextDecoder();

/**
 * @typedef {object} Trajectory
 * @property {any} view the rollout, as lists have it
 * @property {any} sample all fields but segments and turns; null while the rollout has not ended
 * @property {ArrayLike<number>} ids
 * @property {Uint8Array} mask 1: sampled
 * @property {number} sampled number of sampled tokens
 * @property {ArrayLike<number>} logprobs 0 where not sampled
 * @property {ArrayLike<number>} version index into `versions`, -1 where not sampled
 * @property {string[]} versions
 * @property {Segment[]} segments
 * @property {Turn[]} turns
 */
/** @typedef {{start: number, end: number, promptLength: number, extras: any}} Segment tokens from `start` to before `end` */
/** @typedef {any} Turn the turn's JSON with `segment`, `start` and `end`: the places of its sampled tokens */

/** @param {string} namespace @param {string} id @param {AbortSignal} [signal] @returns {Promise<Trajectory>} */
export async function readTrajectory(namespace, id, signal) {
  const response = await request(url(rolloutPath(id), { namespace }), { accept: TYPE, signal });
  return parse(await response.arrayBuffer());
}

/** @param {ArrayBuffer} data @returns {Trajectory} */
export function parse(data) {
  const size = Number(new DataView(data).getBigUint64(0, true));
  const header = JSON.parse(decoder.decode(new Uint8Array(data, 8, size)));
  /** @param {string} name @returns {any} */
  const array = (name) => {
    const { dtype, shape, data_offsets: [from, to] } = header[name];
    const Reader = READERS[/** @type {keyof typeof READERS} */ (dtype)];
    const at = 8 + size + from;
    return at % Reader.BYTES_PER_ELEMENT ? new Reader(data.slice(at, 8 + size + to)) : new Reader(data, at, shape[0]);
  };
  /** @param {string} name @returns {number[]} */
  const numbers = (name) => Array.from(array(name), Number);
  /** @param {string} name @returns {any[]} */
  const documents = (name) => {
    const bytes = array(`${name}_json`);
    const offsets = numbers(`${name}_json_offsets`);
    return offsets.slice(1).map((end, i) => JSON.parse(decoder.decode(bytes.subarray(offsets[i], end))));
  };
  const mask = /** @type {Uint8Array} */ (array('loss_mask'));
  const about = JSON.parse(header.__metadata__.about ?? '{}');
  const [starts, prompts] = [numbers('segment_offsets'), numbers('segment_prompt_length')];
  const segments = documents('segment').map((found, i) => ({
    start: starts[i], end: starts[i + 1], promptLength: prompts[i], extras: found.extras ?? {},
  }));
  const [of, before, long] = [numbers('turn_segment'), numbers('turn_prompt_length'), numbers('turn_response_length')];
  const turns = documents('turn').map((found, i) => {
    const start = (segments[of[i]]?.start ?? 0) + before[i];
    return { ...found, segment: of[i], promptLength: before[i], responseLength: long[i], start, end: start + long[i] };
  });
  return {
    view: about.rollout,
    sample: documents('sample')[0] ?? null,
    ids: array('token_ids'),
    mask,
    sampled: mask.reduce((n, one) => n + one, 0),
    logprobs: array('logprobs'),
    version: array('weights_version'),
    versions: JSON.parse(header.__metadata__.versions),
    segments,
    turns,
  };
}
