// A job: its graph, time line, checkpoints, exceptions and configuration, each at a place of its own.

import { actionsOf } from "./actions.js";
import { askEach, optional } from "./api.js";
import { checkpointsPart } from "./checkpoints.js";
import { configurationPart } from "./configuration.js";
import { definitions, h } from "./dom.js";
import { exceptionsPart } from "./exceptions.js";
import { count, duration, time } from "./format.js";
import { overviewPart } from "./overview.js";
import { badge } from "./states.js";
import { timelinePart } from "./timeline.js";

const PARTS = [
  ["", "Overview", overviewPart],
  ["timeline", "Time line", timelinePart],
  ["checkpoints", "Checkpoints", checkpointsPart],
  ["exceptions", "Exceptions", exceptionsPart],
  ["configuration", "Configuration", configurationPart],
];

export function jobView(id, rest) {
  const base = `jobs/${encodeURIComponent(id)}`;
  const name = PARTS.some(([path]) => path && path === rest[0]) ? rest[0] : "";
  const part = PARTS.find(([path]) => path === name)[2](base, rest);
  const actions = actionsOf(base);
  return {
    place: `job ${id} ${name}`,
    section: "jobs",
    title: (data) => data?.job.name ?? "Job",
    async load(ask, signal) {
      const job = await ask(base);
      const progress = await optional(ask(`${base}/progress`));
      const each = (paths) => askEach(paths, signal);
      return { job, progress, part: await part.load(ask, each, job, progress) };
    },
    render(data, again) {
      const { job, progress } = data;
      return [
        h("p", { class: "trail" }, h("a", { href: "#/jobs" }, "Jobs")),
        h("h1", {}, job.name || "(no name)", " ", badge(job.state)),
        progress?.["pending-reason"] && h("p", { class: "note", "data-key": "waits" },
          h("strong", {}, "Waiting for slots: "), progress["pending-reason"]),
        (progress?.warnings ?? []).map((text) => h("p", { class: "note", "data-key": text },
          h("strong", {}, "Warning: "), text)),
        definitions([
          ["Id", h("code", {}, job.jid)],
          ["Started", time(job["start-time"])],
          job["end-time"] > 0 && ["Ended", time(job["end-time"])],
          ["Duration", duration(job.duration)],
          ["Restarts", count(progress?.restarts ?? -1)],
          progress?.failovers > 0 && ["JobMasters lost", count(progress.failovers)],
          ["Kind", job["job-type"] === "BATCH" ? "batch" : "stream"],
          ["Logs", h("code", {}, `flinkray logs ${job.jid}`)],
        ], "facts"),
        actions(job, progress),
        h("nav", { class: "tabs", "data-key": "tabs", "aria-label": "Parts of the job" }, h("ul", {},
          PARTS.map(([path, title]) => h("li", {}, h("a", {
            href: `#/jobs/${encodeURIComponent(id)}${path && `/${path}`}`,
            "aria-current": path === name ? "page" : null,
          }, title))))),
        part.render(data.part, data, again),
      ];
    },
  };
}
