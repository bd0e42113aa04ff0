/** Numbers and times as text. What is not known is a dash, and never 0. */

export const UNKNOWN = '–';

/** @param {unknown} value @returns {value is number} */
export const known = (value) => typeof value === 'number' && Number.isFinite(value);

/** A count, with thin spaces between thousands. @param {unknown} value */
export function count(value) {
  return known(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, '\u2009') : UNKNOWN;
}

/** @param {unknown} value @param {number} [digits] */
export function decimal(value, digits = 3) {
  if (!known(value)) return UNKNOWN;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(digits)));
}

/** @param {unknown} value share from 0 to 1 */
export function percent(value) {
  if (!known(value)) return UNKNOWN;
  const p = value * 100;
  return `${p > 0 && p < 1 ? p.toFixed(1) : Math.round(p)}%`;
}

/** @param {unknown} part @param {unknown} whole */
export function share(part, whole) {
  return known(part) && known(whole) && whole > 0 ? part / whole : undefined;
}

/** A number of bytes, as the command line writes it. @param {unknown} value */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const power = [3, 2, 1].find((n) => value >= 1024 ** n) ?? 0;
  return `${Number((value / 1024 ** power).toPrecision(4))} ${['B', 'KiB', 'MiB', 'GiB'][power]}`;
}

/** @param {unknown} seconds */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const s = Math.abs(seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} m`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The coarse distance of a time from now: `5 s ago`, `in 3 m`. @param {number} at Unix seconds @param {number} now */
export function distance(at, now) {
  const s = Math.round(Math.abs(now - at));
  const text = s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} m`
    : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m` : `${Math.floor(s / 86400)} d`;
  return at > now + 1 ? `in ${text}` : `${text} ago`;
}

/** Unix seconds of a time from the API: a number, or ISO text. @param {unknown} value @returns {number | undefined} */
export function unix(value) {
  if (known(value)) return value;
  if (typeof value !== 'string' || !value) return undefined;
  const ms = Date.parse(value);
  return Number.isFinite(ms) ? ms / 1000 : undefined;
}

/** Local date and time of day, to the second. @param {number} at Unix seconds */
export function clock(at) {
  const d = new Date(at * 1000);
  const two = (/** @type {number} */ n) => String(n).padStart(2, '0');
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** Time of day, with the date of another day than today. @param {number} at Unix seconds */
export function timeOfDay(at) {
  const [text, today] = [clock(at), clock(Date.now() / 1000)];
  return text.slice(0, 10) === today.slice(0, 10) ? text.slice(11) : text;
}

const UTC = /\b(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC\b/g;

/** The text with each time in UTC, as the server writes them, as a time of the browser's zone. @param {string} text */
export const localTimes = (text) => text.replace(UTC, (_, day, time) => timeOfDay(Date.parse(`${day}T${time}Z`) / 1000));
