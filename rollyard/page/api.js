/** Requests to the server, on the page's own origin. Only GET. */

export class ApiFailure extends Error {
  /** @param {number} status 0: no answer @param {string} reason @param {string} message */
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }

  /** Whether no server answered: this is so for all questions at the same time. */
  get isAway() {
    return this.status === 0 || this.status === 503;
  }

  /** Whether the server has no such route: an older release. */
  get isUnknownRoute() {
    return (this.status === 404 && !this.reason) || this.status === 405;
  }
}

/** @param {string} path @param {Record<string, unknown>} [query] */
export function url(path, query = {}) {
  const given = Object.entries(query).filter(([, v]) => v !== undefined && v !== null && v !== '');
  const text = new URLSearchParams(given.map(([k, v]) => [k, String(v)])).toString();
  return text ? `${path}?${text}` : path;
}

/** @param {string} address @param {{accept?: string, signal?: AbortSignal}} [options] @returns {Promise<Response>} */
export async function request(address, { accept = 'application/json', signal } = {}) {
  let response;
  try {
    response = await fetch(address, { headers: { Accept: accept }, signal, credentials: 'same-origin' });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiFailure(0, 'NoAnswer', 'the server does not answer');
  }
  if (response.ok) return response;
  throw await failure(response);
}

/** @param {Response} response */
async function failure(response) {
  const text = await response.text().catch(() => '');
  try {
    const status = JSON.parse(text);
    return new ApiFailure(response.status, status.reason ?? '', status.message ?? text.slice(0, 300));
  } catch {
    return new ApiFailure(response.status, '', `HTTP ${response.status} ${text.slice(0, 200)}`);
  }
}

/** @param {string} address @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function json(address, signal) {
  return (await request(address, { signal })).json();
}

/** Paths below the objects' API. */
export const OBJECTS = '/apis/rollyard.dev/v1alpha1';

/** @param {string} id */
export const rolloutPath = (id) => `/v1/rollouts/${encodeURIComponent(id)}`;
