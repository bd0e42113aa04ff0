/** Answers of the server that are asked for again while the page is looked at, never faster than every 2 s. */

import { ApiFailure, json } from './api.js';
import { onReturn } from './live.js';
import { useEffect, useRef, useState } from './view.js';

const LEAST_SECONDS = 2;
const MOST_SECONDS = 60;

/**
 * @typedef {object} Answer
 * @property {any} data undefined until the first answer; after an error the last good one
 * @property {ApiFailure | undefined} error why there is no newer answer
 * @property {number | undefined} at Unix seconds of `data`
 */

/** Ask now, and again every `seconds`; 0: once. After an error ask less often, and at once when the connection returns. Nothing is asked while
 * the tab is hidden.
 * @param {string | null} address null: nothing is asked @param {number} [seconds]
 * @param {string} [subject] what is asked for. While it stays the same, the last answer is shown until a new address has one:
 * an address may contain a time that moves on @returns {Answer} */
export function usePoll(address, seconds = 0, subject = address ?? '') {
  const [answer, setAnswer] = useState(/** @type {Answer & {of: string | null}} */ ({ of: null, data: undefined, error: undefined, at: undefined }));
  const shown = useRef(answer);
  shown.current = answer;
  useEffect(() => {
    if (address === null) return undefined;
    const control = new AbortController();
    let timer = 0;
    let wait = Math.max(seconds, LEAST_SECONDS);
    let due = false;
    let asking = false;
    let failing = false;
    const ask = async () => {
      clearTimeout(timer);
      if (document.hidden) { due = true; return; }
      asking = true;
      const before = shown.current.of === subject ? shown.current : undefined;
      try {
        const data = await json(address, control.signal);
        if (control.signal.aborted) return;
        setAnswer({ of: subject, data, error: undefined, at: Date.now() / 1000 });
        failing = false;
        wait = Math.max(seconds, LEAST_SECONDS);
      } catch (error) {
        if (control.signal.aborted) return;
        const failed = error instanceof ApiFailure ? error : new ApiFailure(0, 'NoAnswer', String(error));
        setAnswer({ of: subject, data: before?.data, error: failed, at: before?.at });
        if (failed.isUnknownRoute) return;
        failing = true;
        wait = Math.min(wait * 2, MOST_SECONDS);
      }
      asking = false;
      if (seconds || failing) timer = setTimeout(ask, wait * 1000);
    };
    const seen = () => {
      if (document.hidden || !due) return;
      due = false;
      ask();
    };
    const returned = () => {
      wait = Math.max(seconds, LEAST_SECONDS) / 2;
      if (failing && !asking) ask();
    };
    document.addEventListener('visibilitychange', seen);
    onReturn.add(returned);
    ask();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
      onReturn.delete(returned);
    };
  }, [address, seconds]);
  return answer.of === subject ? answer : { data: undefined, error: undefined, at: undefined };
}
