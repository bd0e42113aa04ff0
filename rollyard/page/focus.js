/** The focus when views change: on the content after a link, and where it was after a step back. */

const MOST = 200; // addresses
const WAIT_MS = 5_000; // a view that is gone back to may read its rows first

/** Address -> address of the link that had the focus there last. @type {Map<string, string>} */
const left = new Map();
/** Whether the view is about to change because somebody chose a link or a value, and not by a step back. */
let chosen = false;

/** Note what has the focus from now on. */
export function watchFocus() {
  addEventListener('focusin', (event) => {
    const href = /** @type {Element} */ (event.target).closest?.('main a[href^="#/"]')?.getAttribute('href');
    if (!href) return;
    left.delete(location.hash);
    left.set(location.hash, href);
    if (left.size > MOST) left.delete(left.keys().next().value ?? '');
  });
  for (const type of ['click', 'change', 'submit']) {
    addEventListener(type, () => {
      chosen = true;
      setTimeout(() => { chosen = false; }, 100);
    }, true);
  }
}

/** Put the focus into the view that has just been drawn: on the link that had it when the view was left, if the browser went back.
 * @param {HTMLElement} main @returns {(() => void) | undefined} stops the search for this link */
export function focusView(main) {
  const href = chosen ? undefined : left.get(location.hash);
  main.focus({ preventScroll: true });
  if (!href) {
    scrollTo(0, 0);
    return undefined;
  }
  const found = () => {
    const link = /** @type {HTMLElement | null} */ (main.querySelector(`a[href="${CSS.escape(href)}"]`));
    if (link && document.activeElement === main) link.focus();
    if (link || document.activeElement !== main) stop();
  };
  const rows = new MutationObserver(found);
  const timer = setTimeout(() => stop(), WAIT_MS);
  const stop = () => {
    rows.disconnect();
    clearTimeout(timer);
  };
  rows.observe(main, { childList: true, subtree: true });
  found();
  return stop;
}
