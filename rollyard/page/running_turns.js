/** The turns of a rollout that runs: those that the server has saved, read again every few seconds. */

import { ApiFailure, json, rolloutPath, url } from './api.js';
import { OneTurn } from './conversation.js';
import { Missed } from './loaded.js';
import { option } from './route.js';
import { html, useEffect, useState } from './view.js';

const REFRESH_SECONDS = 2;
const SLOW_SECONDS = 10;

/** @typedef {{number: number, turn: any, weights_version: string | null}} Saved */

/** The turn with the names that those of a trajectory have. @param {Saved} one @returns {Saved} */
const asRead = (one) => ({ ...one, turn: { ...one.turn, promptLength: one.turn.prompt_length, responseLength: one.turn.response_length } });

/** Read what is new, until the rollout has ended. @param {string} namespace @param {string} id */
function useSavedTurns(namespace, id) {
  const [answer, setAnswer] = useState(/** @type {import('./poll.js').Answer} */ ({ data: undefined, error: undefined, at: undefined }));
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    let fence = 0;
    /** @type {Saved[]} */
    let turns = [];
    const read = async () => {
      let wait = REFRESH_SECONDS;
      try {
        if (!document.hidden || !timer) {
          const data = await json(url(`${rolloutPath(id)}/turns`, { namespace, fence, after: turns.length }), control.signal);
          if (data.fence !== fence) turns = [];
          if (data.turns.length) turns = [...turns, ...data.turns.map(asRead)];
          fence = data.fence;
          setAnswer({ data: turns, error: undefined, at: Date.now() / 1000 });
          if (data.turns.length && turns.length < data.total) wait = 0.1;
        }
      } catch (error) {
        if (control.signal.aborted) return;
        const failed = error instanceof ApiFailure ? error : new ApiFailure(0, 'NoAnswer', String(error));
        setAnswer((/** @type {import('./poll.js').Answer} */ before) => ({ ...before, error: failed }));
        if (failed.isUnknownRoute) return;
        wait = SLOW_SECONDS;
      }
      if (!control.signal.aborted) timer = setTimeout(read, wait * 1000);
    };
    read();
    return () => { control.abort(); clearTimeout(timer); };
  }, [namespace, id]);
  return answer;
}

/** @param {{namespace: string, id: string, linkTo: (turn: number) => string}} props */
export function RunningTurns({ namespace, id, linkTo }) {
  const answer = useSavedTurns(namespace, id);
  /** @type {Saved[]} */
  const turns = answer.data ?? [];
  return html`<${Missed} of=${answer} what="turns" />
    ${turns.length > 0 && html`<ol class="turns">${turns.map((one, i) => html`<${OneTurn} key=${i} turn=${one.turn}
      version=${one.weights_version ?? undefined} number=${one.number} to=${linkTo(one.number)} />`)}</ol>`}
    ${answer.data && html`<p class="empty">${turns.length ? `${turns.length} turns so far; the next one is here when its tools have answered.`
      : 'No turn is saved yet. Turns are saved in RUN, unless the rollout could not go on from them elsewhere, such as those of a command.'}
      ${' '}<code>rollyard logs -f rollout/${id}${option(namespace)}</code> follows all of them. Tokens and reward are here when the rollout has ended.</p>`}`;
}
