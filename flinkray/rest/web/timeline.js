// When vertices ran, and each attempt of the subtasks of one.

import { h, svg, table } from "./dom.js";
import { count, duration, time } from "./format.js";
import { badge, hasEnded, toneOf } from "./states.js";

const SHOWN = 200;
const WIDTH = 1000;

export function timelinePart(base, rest) {
  const here = `#/${base}/timeline`;
  let all = false;
  return {
    async load(ask, each, job) {
      const wanted = rest[1] ?? job.vertices[0]?.id;
      const known = job.vertices.some((it) => it.id === wanted);
      const [attempts] = known ? await each([`${base}/vertices/${wanted}/attempts`]) : [null];
      return { attempts };
    },
    render({ attempts }, { job }, again) {
      const from = job["start-time"];
      const until = job["end-time"] > 0 ? job["end-time"] : job.now;
      return [
        h("section", { "aria-labelledby": "statuses" },
          h("h2", { id: "statuses" }, "The job"),
          statuses(job)),
        h("section", { "aria-labelledby": "of-vertices" },
          h("h2", { id: "of-vertices" }, "Vertices"),
          table("Time line of the vertices", [["Vertex"], ["State"], ["Time line"], ["Started", "time"], ["Duration", "number"]],
            job.vertices.map((it) => ({
              key: it.id,
              class: it.id === attempts?.id ? "current" : null,
              cells: [
                h("a", { href: `${here}/${it.id}`, "aria-current": it.id === attempts?.id ? "true" : null }, it.name),
                badge(it.status),
                bar(from, until, it["start-time"] > 0
                  ? [[it.status, it["start-time"], it["start-time"] + it.duration]] : []),
                time(it["start-time"]),
                duration(it.duration),
              ],
            })), "None is known yet.")),
        attempts && h("section", { "aria-labelledby": "attempts" },
          h("h2", { id: "attempts" }, `Attempts of ${attempts.name}`),
          attemptsTable(attempts, from, until, all),
          attempts.attempts.length > SHOWN && !all && h("p", {}, h("button", {
            type: "button", onclick: () => { all = true; again(); },
          }, `Show all ${count(attempts.attempts.length)}`)),
          h("p", { class: "legend" }, "Of earlier attempts the newest are kept.")),
      ];
    },
  };
}

function statuses(job) {
  const entered = Object.entries(job.timestamps).filter(([, at]) => at > 0).sort((a, b) => a[1] - b[1]);
  return h("ol", { class: "steps" }, entered.map(([state, at]) =>
    h("li", { "data-key": state }, badge(state), " ", time(at))));
}

function attemptsTable({ attempts, now }, from, until, all) {
  const columns = [["Subtask", "number"], ["Attempt", "number"], ["State"], ["Time line"], ["Started", "time"], ["Duration", "number"], ["TaskExecutor"], ["Failure"]];
  return table("Attempts", columns, (all ? attempts : attempts.slice(0, SHOWN)).map((it) => {
    const entered = Object.entries(it.timestamps);
    const spans = entered.map(([state, at], i) => [state, at, entered[i + 1]?.[1] ?? (hasEnded(state) ? at : now)])
      .filter(([state]) => !hasEnded(state));
    const end = entered.at(-1)?.[1];
    const start = it.timestamps.DEPLOYING ?? -1;
    return {
      key: `${it.subtask} ${it.attempt}`,
      cells: [
        count(it.subtask),
        count(it.attempt),
        badge(it.status),
        bar(from, until, spans, it.status),
        time(start),
        start < 0 ? duration(-1) : duration((hasEnded(it.status) ? end : now) - start),
        it["taskmanager-id"],
        it.failure ? it.failure.trim().split("\n")[0] : "",
      ],
    };
  }));
}

// `spans`: [state, from, until]. The table has the same as text.
function bar(from, until, spans, end) {
  const whole = Math.max(1, until - from);
  const at = (moment) => Math.min(WIDTH, Math.max(0, (moment - from) / whole * WIDTH));
  const last = spans.at(-1);
  return svg("svg", {
    class: "bar", viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", "aria-hidden": "true",
  },
  svg("rect", { class: "track", width: WIDTH, height: 12 }),
  spans.map(([state, start, stop]) => svg("rect", {
    class: toneOf(state), x: at(start), width: Math.max(3, at(stop) - at(start)), height: 12,
  })),
  last && end === "FAILED" && svg("rect", { class: "bad", x: Math.max(0, at(last[2]) - 6), width: 6, height: 12 }));
}
