// Numbers and times for people, with their units. -1 and null stand for what is not known.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const parts = new Intl.NumberFormat("en", { maximumFractionDigits: 4 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value) && value >= 0;
}

export function count(value) {
  return isKnown(value) ? whole.format(value) : UNKNOWN;
}

// Of what can be had in parts: of processors, for one.
export function amount(value) {
  return isKnown(value) ? parts.format(value) : UNKNOWN;
}

export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 1000 ? short.format(value) : whole.format(value)} ${units[unit]}`;
}

export function duration(ms) {
  if (!isKnown(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

// As the browser's clock has it: 2026-11-27 05:23:04.
export function time(ms) {
  if (!isKnown(ms) || ms === 0) return UNKNOWN;
  const at = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `
    + `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function zone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "the browser's time zone";
}

// Milliseconds of each second, as a share.
export function share(msPerSecond) {
  return isKnown(msPerSecond) ? `${Math.round(Math.min(1000, msPerSecond) / 10)} %` : UNKNOWN;
}

export function rate(perSecond, unit = "/s") {
  if (!isKnown(perSecond)) return UNKNOWN;
  return `${perSecond < 10 ? short.format(perSecond) : whole.format(perSecond)}${unit}`;
}

// What Java's largest and smallest numbers stand for in Flink's answers.
const LARGEST = 2 ** 62;

export function interval(ms) {
  return ms > LARGEST ? "on request only" : duration(ms);
}

export function watermark(value) {
  if (typeof value !== "number" || value < -LARGEST) return "none yet";
  return value > LARGEST ? "at the end" : time(value);
}
