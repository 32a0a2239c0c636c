// Numbers, times and durations for people.

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** An integer with thousands separators; also for texts of digits and BigInt. */
export function number(value) {
  if (value === undefined || value === null) return "–";
  return whole.format(typeof value === "string" ? BigInt(value) : value);
}

/** A number in three or four characters, for axes. */
export function compact(value) {
  return short.format(value);
}

/** The reserved share of a limit. One without capacity is full, since nothing can be reserved. */
export function share({ reserved, capacity }) {
  const [taken, all] = [Number(reserved), Number(capacity)];
  return all === 0 ? 1 : taken / all;
}

/** A share as a whole percentage, rounded down, so that only a full limit has 100%. */
export function percent(part) {
  return `${Math.floor(part * 100 + 1e-9)}%`;
}

const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

/** A moment: the time of today, or the date with the time. */
export function moment(unixMs) {
  const at = new Date(unixMs);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time.format(at) : `${day.format(at)} ${time.format(at)}`;
}

/** The time of a day with seconds, for axes. */
export function clockSeconds(unixMs) {
  return time.format(new Date(unixMs));
}

/** Hours and minutes, for axes. */
export function clock(unixMs) {
  return minute.format(new Date(unixMs));
}

const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

/** A day in UTC, for axes. */
export function utcDay(unixMs) {
  return date.format(new Date(unixMs));
}

/** A moment for machines. */
export function iso(unixMs) {
  return new Date(unixMs).toISOString();
}

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

/** A duration in its two largest units. */
export function duration(ms) {
  let rest = Math.max(0, Math.ceil(ms / 1_000));
  const parts = [];
  for (const [unit, seconds] of UNITS) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count > 0 && parts.length < 2) parts.push(`${count} ${unit}`);
  }
  return parts.length === 0 ? "0 s" : parts.join(" ");
}

/** A latency in microseconds. */
export function latency(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1_000) return `${us} µs`;
  if (us < 1_000_000) return `${(us / 1_000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1_000_000).toFixed(1)} s`;
}
