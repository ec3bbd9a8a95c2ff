// Numbers, times and durations as people read them; the same as on the terminal.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** `12`, `3.45k`, `120k`, `1.23M`. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) {
      const scaled = value / size;
      return scaled.toFixed(Math.abs(scaled) < 9.995 ? 2 : Math.abs(scaled) < 99.95 ? 1 : 0) + unit;
    }
  }
  return value.toFixed(0);
}

export const bytes = (value) => `${short(value)}B`;
export const tau = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** `12 ms`, `1.2 s`, `3 min 04 s`, `2 h 05 min`, `324 d`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const sign = seconds < 0 ? "-" : "", size = Math.abs(seconds), two = (value) => String(value).padStart(2, "0");
  if (size === 0) return "0 s";
  if (size < 0.00095) return `${sign}${(size * 1e6).toFixed(0)} µs`;
  if (size < 0.00995) return `${sign}${(size * 1e3).toFixed(1)} ms`;
  if (size < 0.0995) return `${sign}${(size * 1e3).toFixed(0)} ms`;
  if (size < 9.95) return `${sign}${size.toFixed(size < 0.995 ? 2 : 1)} s`;
  const whole = Math.round(size);
  if (whole < 60) return `${sign}${whole} s`;
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 2 * 86400) return `${sign}${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${sign}${count(Math.floor(whole / 86400))} d`;
}

/** As many digits as tell it from 100 %. */
export function percent(share) {
  for (const digits of [1, 2, 3, 4]) {
    if (share === 0 || share === 1 || 1 - share >= 5 * 10 ** -(digits + 2)) return `${(share * 100).toFixed(digits)} %`;
  }
  return `${(share * 100).toFixed(4)} %`;
}

export const share = (value) => `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)} %`;

const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const YEAR = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A time of day, with the day where that is not today; seconds since 1970. */
export function time(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return `${at} s`;
  if (date.getFullYear() !== new Date().getFullYear()) return YEAR.format(date);
  return (Math.abs(Date.now() - date.getTime()) < 12 * 3.6e6 ? TIME : DAY).format(date);
}

/** `0:07`, `12:34`, `1:02:03`. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds)), two = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
