// A job's graph, and what its vertices do.

import { h, table } from "./dom.js";
import { bytes, count, counted, duration, rate, share, time, watermark, UNKNOWN } from "./format.js";
import { drawing } from "./graph.js";
import { badge, hasEnded, pressure, tasksInWords } from "./states.js";

const METRICS = [
  "numRecordsInPerSecond", "numRecordsOutPerSecond", "numBytesInPerSecond", "numBytesOutPerSecond",
  "busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond", "isHeld",
];
const MEASURED = 60;
const SHOWN = 100;

export function overviewPart(base, rest) {
  const wanted = rest[0] === "vertices" ? rest[1] : null;
  const here = `#/${base}`;
  let all = false;
  return {
    async load(ask, each, job) {
      const isRunning = !hasEnded(job.state);
      const vertices = isRunning ? job.vertices.slice(0, MEASURED) : [];
      const query = `get=${METRICS.join(",")}&agg=avg,max,sum`;
      const rows = await each(vertices.map((it) => `${base}/vertices/${it.id}/subtasks/metrics?${query}`));
      const known = job.vertices.some((it) => it.id === wanted);
      const [details, marks] = known
        ? await each([`${base}/vertices/${wanted}`, `${base}/vertices/${wanted}/watermarks`])
        : [null, null];
      return {
        metrics: new Map(vertices.map((it, i) => [it.id, new Map((rows[i] ?? []).map((one) => [one.id, one]))])),
        details,
        marks,
      };
    },
    render({ metrics, details, marks }, { job, progress }, again) {
      if (!job.vertices.length) {
        return h("p", { class: "empty" }, "No JobMaster has told of the job's vertices yet.");
      }
      const flows = job.vertices.map((vertex) => flowOf(vertex, metrics.get(vertex.id), progress));
      return [
        h("section", { "aria-labelledby": "graph" },
          h("h2", { id: "graph" }, "Graph"),
          graph(job, flows, wanted, here),
          h("p", { class: "legend" },
            h("span", { class: "key busy" }), "busy ", h("span", { class: "key pressed" }), "back-pressured ",
            h("span", { class: "key idle" }), "idle; means of the subtasks")),
        details && vertexSection(details, marks, here, all, () => { all = true; again(); }),
        h("section", { "aria-labelledby": "vertices" },
          h("h2", { id: "vertices" }, "Vertices"),
          vertices(flows, here)),
      ];
    },
  };
}

// What is said of a vertex. Rates are of the time between two looks: there are none at the first.
function flowOf(vertex, metrics, progress) {
  const value = (name, kind) => metrics?.get(name)?.[kind];
  const spark = progress?.vertices.find((it) => it.id === vertex.id);
  const isSpark = spark && (spark["spark-executors"] || spark["active-stages"].length || spark["completed-stages"]);
  return {
    vertex,
    spark: isSpark ? spark : null,
    busy: value("busyTimeMsPerSecond", "avg"),
    pressed: value("backPressuredTimeMsPerSecond", "avg"),
    worst: value("backPressuredTimeMsPerSecond", "max"),
    idle: value("idleTimeMsPerSecond", "avg"),
    held: value("isHeld", "sum"),
    recordsIn: value("numRecordsInPerSecond", "sum"),
    recordsOut: value("numRecordsOutPerSecond", "sum"),
    bytesIn: value("numBytesInPerSecond", "sum"),
    bytesOut: value("numBytesOutPerSecond", "sum"),
  };
}

function graph(job, flows, wanted, here) {
  const byId = new Map(flows.map((flow) => [flow.vertex.id, flow]));
  const nodes = job.plan.nodes.filter((node) => byId.has(node.id));
  const isDown = window.matchMedia("(max-width: 760px)").matches;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph, can be scrolled" },
    drawing(nodes, isDown, ({ id }) => {
      const flow = byId.get(id);
      const { vertex } = flow;
      const level = pressure(flow.worst);
      const lines = linesOf(flow, level);
      return {
        href: wanted === id ? here : `${here}/vertices/${id}`,
        name: vertex.name,
        title: [`${vertex.name}: ${vertex.status}`, `parallelism ${vertex.parallelism}`, ...lines].join(", "),
        lines: [`${vertex.status}, parallelism ${vertex.parallelism}`, ...lines],
        shares: sharesOf(flow),
        class: `pressure-${level} state-${vertex.status.toLowerCase()}`,
        isCurrent: wanted === id,
      };
    }));
}

function linesOf(flow, level) {
  if (flow.spark) return [sparkInWords(flow.spark)];
  const held = flow.held ? [heldInWords(flow)] : [];
  if (flow.busy === undefined) return held;
  const rates = [
    flow.recordsIn === undefined ? null : `in ${rate(flow.recordsIn)}`,
    flow.recordsOut === undefined ? null : `out ${rate(flow.recordsOut)}`,
  ].filter(Boolean).join(", ");
  const busy = `busy ${share(flow.busy)}`;
  const pressed = level === "ok" ? busy : `${busy}, back-pressure ${level}`;
  return [...(rates ? [`${rates} records`] : []), pressed, ...held];
}

function heldInWords(flow) {
  return `${flow.held} of ${flow.vertex.parallelism} held: Spark is behind`;
}

function sharesOf(flow) {
  const parts = [["busy", flow.busy], ["pressed", flow.pressed], ["idle", flow.idle]]
    .map(([name, value]) => ({ class: name, of: Math.max(0, value ?? 0) }));
  const sum = parts.reduce((total, part) => total + part.of, 0);
  return parts.map((part) => ({ ...part, of: sum ? part.of / sum : 0 }));
}

function sparkInWords(spark) {
  const stages = spark["active-stages"].map((it) =>
    `stage ${it["stage-id"]}: ${it["completed-tasks"]} of ${it["num-tasks"]} tasks`);
  return stages.join("; ") || `Spark: ${counted(spark["completed-stages"], "stage")} done`;
}

function pressureInWords(flow) {
  if (flow.held) return h("span", { class: "pressure-high" }, heldInWords(flow));
  const level = pressure(flow.worst);
  if (level === "unknown") return UNKNOWN;
  return h("span", { class: `pressure-${level}` }, `${level}, ${share(flow.worst)} at worst`);
}

function vertices(flows, here) {
  const columns = [
    ["Vertex"], ["State"], ["Tasks"], ["Busy", "number"], ["Back-pressure"], ["Records in", "number"],
    ["Records out", "number"], ["Bytes in", "number"], ["Bytes out", "number"], ["Duration", "number"],
  ];
  return table("Vertices", columns, flows.map((flow) => {
    const { vertex } = flow;
    const io = vertex.metrics;
    const both = (total, now) => (now === undefined || now === UNKNOWN ? total : [total, h("small", {}, now)]);
    const perSecond = (value) => (value === undefined ? undefined : rate(value));
    const bytesPerSecond = (value) => (value === undefined ? undefined : `${bytes(value)}/s`);
    return {
      key: vertex.id,
      cells: [
        h("a", { href: `${here}/vertices/${vertex.id}` }, vertex.name),
        badge(vertex.status),
        tasksInWords(vertex.tasks),
        share(flow.busy),
        flow.spark ? sparkInWords(flow.spark) : pressureInWords(flow),
        both(count(io["read-records"]), perSecond(flow.recordsIn)),
        both(count(io["write-records"]), perSecond(flow.recordsOut)),
        both(bytes(io["read-bytes"]), bytesPerSecond(flow.bytesIn)),
        both(bytes(io["write-bytes"]), bytesPerSecond(flow.bytesOut)),
        duration(vertex.duration),
      ],
    };
  }));
}

function vertexSection(details, marks, here, all, showAll) {
  const subtasks = all ? details.subtasks : details.subtasks.slice(0, SHOWN);
  const mark = new Map((marks ?? []).map((one) => [Number.parseInt(one.id, 10), Number(one.value)]));
  const columns = [
    ["Subtask", "number"], ["State"], ["Attempt", "number"], ["TaskExecutor"], ["Started", "time"], ["Duration", "number"],
    ["Records in", "number"], ["Records out", "number"], ["Watermark"],
  ];
  return h("section", { class: "panel", "aria-labelledby": "vertex" },
    h("h2", { id: "vertex" }, details.name),
    h("p", {}, h("a", { href: here }, "Close"), " · ",
      h("a", { href: `${here}/timeline/${details.id}` }, "Attempts of its subtasks")),
    table(`Subtasks of ${details.name}`, columns, subtasks.map((it) => ({
      key: `subtask ${it.subtask}`,
      cells: [
        count(it.subtask),
        badge(it.status),
        count(it.attempt),
        it["taskmanager-id"] === "(unassigned)"
          ? "no slot yet"
          : h("a", { href: `#/executors/${encodeURIComponent(it["taskmanager-id"])}` }, it["taskmanager-id"]),
        time(it["start-time"]),
        duration(it.duration),
        count(it.metrics["read-records"]),
        count(it.metrics["write-records"]),
        mark.has(it.subtask) ? watermark(mark.get(it.subtask)) : UNKNOWN,
      ],
    }))),
    subtasks.length < details.subtasks.length && h("p", {},
      h("button", { type: "button", onclick: showAll }, `Show all ${count(details.subtasks.length)}`)));
}
