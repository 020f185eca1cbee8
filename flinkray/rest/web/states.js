// States of jobs, tasks and checkpoints, and how busy tasks are.

import { h } from "./dom.js";

const GOOD = new Set(["RUNNING"]);
const DONE = new Set(["FINISHED", "COMPLETED"]);
const BAD = new Set(["FAILED", "FAILING"]);
const ENDED = new Set(["FINISHED", "FAILED", "CANCELED"]);

export function hasEnded(state) {
  return ENDED.has(state);
}

export function toneOf(state) {
  if (GOOD.has(state)) return "good";
  if (DONE.has(state)) return "done";
  if (BAD.has(state)) return "bad";
  return state === "CANCELED" || state === "CREATED" ? "quiet" : "moving";
}

export function badge(state) {
  return h("span", { class: `badge ${toneOf(state)}` }, state);
}

// Flink's limits of back-pressure.
export function pressure(msPerSecond) {
  if (typeof msPerSecond !== "number") return "unknown";
  const ratio = msPerSecond / 1000;
  return ratio <= 0.1 ? "ok" : ratio <= 0.5 ? "low" : "high";
}

export function tasksInWords(tasks) {
  const parts = Object.entries(tasks)
    .filter(([name, number]) => number && name.toLowerCase() !== "total")
    .map(([name, number]) => `${number} ${name.toLowerCase()}`);
  return parts.join(", ") || "none yet";
}
