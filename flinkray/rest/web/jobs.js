// The list of jobs.

import { h, table } from "./dom.js";
import { count, duration, time } from "./format.js";
import { badge, hasEnded, tasksInWords } from "./states.js";

const SHOWN = 100;

export function jobsView() {
  let all = false;
  return {
    place: "jobs",
    section: "jobs",
    title: () => "Jobs",
    async load(ask) {
      const [overview, jobs] = await Promise.all([ask("overview"), ask("jobs/overview")]);
      return { overview, jobs: jobs.jobs };
    },
    render({ overview, jobs }, again) {
      // The field is kept when the view is made anew, and what is typed in it with it.
      const text = (document.getElementById("filter")?.value ?? "").trim().toLowerCase();
      const found = jobs.filter((job) => job.name.toLowerCase().includes(text) || job.jid.startsWith(text))
        .sort((a, b) => b["start-time"] - a["start-time"]);
      const running = found.filter((job) => !hasEnded(job.state));
      const ended = found.filter((job) => hasEnded(job.state));
      const few = all ? ended : ended.slice(0, SHOWN);
      return [
        h("h1", {}, "Jobs"),
        tiles(overview),
        h("p", { class: "filter" },
          h("label", { for: "filter" }, "Name or id"),
          h("input", {
            id: "filter", type: "search", autocomplete: "off",
            oninput: again,
          })),
        h("section", { "aria-labelledby": "running" },
          h("h2", { id: "running" }, `Running (${running.length})`),
          jobsTable("Running jobs", running, "No job is running.")),
        h("section", { "aria-labelledby": "ended" },
          h("h2", { id: "ended" }, `Ended (${ended.length})`),
          jobsTable("Ended jobs", few, "No job has ended."),
          few.length < ended.length && h("p", {}, h("button", {
            type: "button", onclick: () => { all = true; again(); },
          }, `Show all ${count(ended.length)}`))),
      ];
    },
  };
}

function tiles(overview) {
  const used = overview["slots-total"] - overview["slots-available"];
  return h("ul", { class: "tiles" },
    [
      [count(overview["jobs-running"]), "running"],
      [count(overview["jobs-finished"]), "finished"],
      [count(overview["jobs-failed"]), "failed"],
      [count(overview["jobs-cancelled"]), "cancelled"],
      [`${count(used)} of ${count(overview["slots-total"])}`, "slots in use"],
      [count(overview.taskmanagers), overview.taskmanagers === 1 ? "TaskExecutor" : "TaskExecutors"],
    ].map(([value, name]) => h("li", {}, h("strong", {}, value), " ", h("span", {}, name))));
}

function jobsTable(caption, jobs, empty) {
  const columns = [["Name"], ["State"], ["Started", "time"], ["Duration", "number"], ["Tasks", "number"], ["Of these"]];
  return table(caption, columns, jobs.map((job) => ({
    key: job.jid,
    cells: [
      h("a", { href: `#/jobs/${job.jid}` }, job.name || "(no name)"),
      badge(job.state),
      time(job["start-time"]),
      duration(job.duration),
      count(job.tasks.total),
      tasksInWords(job.tasks),
    ],
  })), empty);
}

