// A job's checkpoints and savepoints.

import { optional } from "./api.js";
import { definitions, h, table } from "./dom.js";
import { bytes, count, duration, interval, time, UNKNOWN } from "./format.js";
import { badge } from "./states.js";

export function checkpointsPart(base, rest) {
  const here = `#/${base}/checkpoints`;
  const wanted = /^\d+$/.test(rest[1] ?? "") ? rest[1] : null;
  return {
    async load(ask) {
      const [statistics, config] = await Promise.all([
        optional(ask(`${base}/checkpoints`)), optional(ask(`${base}/checkpoints/config`)),
      ]);
      const details = statistics && wanted ? await optional(ask(`${base}/checkpoints/details/${wanted}`)) : null;
      return { statistics, config, details };
    },
    render({ statistics, config, details }) {
      if (!statistics) {
        return h("p", { class: "empty" }, "This job takes no checkpoints. ",
          h("code", {}, "execution.checkpointing.interval"), " makes a stream take them.");
      }
      const { counts, latest, history } = statistics;
      return [
        h("section", { "aria-labelledby": "counts" },
          h("h2", { id: "counts" }, "In numbers"),
          definitions([
            ["Completed", count(counts.completed)],
            ["In progress", count(counts.in_progress)],
            ["Failed", count(counts.failed)],
            ["Restored from one", `${count(counts.restored)} times`],
            latest.completed && ["Latest completed", link(here, latest.completed.id), ` at ${time(latest.completed.trigger_timestamp)}`],
            latest.savepoint && ["Latest savepoint", link(here, latest.savepoint.id), " ", h("code", {}, latest.savepoint.external_path ?? "deleted")],
            latest.failed && ["Latest failed", link(here, latest.failed.id), ` ${latest.failed.failure_message ?? ""}`],
            latest.restored && ["Latest restored", String(latest.restored.id)],
          ])),
        wanted && section(details, wanted, here),
        h("section", { "aria-labelledby": "summary" },
          h("h2", { id: "summary" }, "Summary"),
          counts.completed ? summary(statistics.summary) : h("p", { class: "empty" }, "None has completed.")),
        h("section", { "aria-labelledby": "history" },
          h("h2", { id: "history" }, "History"),
          table("History of checkpoints",
            [["Id", "number"], ["Kind"], ["State"], ["Triggered", "time"], ["Duration", "number"], ["Subtasks", "number"], ["State's size", "number"], ["New of it", "number"]],
            history.map((it) => ({
              key: `checkpoint ${it.id}`,
              class: String(it.id) === wanted ? "current" : null,
              cells: [
                link(here, it.id),
                it.is_savepoint ? "savepoint" : "checkpoint",
                badge(it.status),
                time(it.trigger_timestamp),
                duration(it.end_to_end_duration),
                `${it.num_acknowledged_subtasks} of ${it.num_subtasks}`,
                it.status === "COMPLETED" ? bytes(it.state_size) : UNKNOWN,
                it.status === "COMPLETED" ? bytes(it.checkpointed_size) : UNKNOWN,
              ],
            })), "None has been taken yet.")),
        config && h("section", { "aria-labelledby": "how" },
          h("h2", { id: "how" }, "How they are taken"), howTaken(config)),
      ];
    },
  };
}

function link(here, id) {
  return h("a", { href: `${here}/${id}` }, String(id));
}

function section(it, wanted, here) {
  return h("section", { class: "panel", "aria-labelledby": "checkpoint" },
    h("h2", { id: "checkpoint" }, `${it?.is_savepoint ? "Savepoint" : "Checkpoint"} ${wanted}`),
    h("p", {}, h("a", { href: here }, "Close")),
    it ? definitions([
      ["State", badge(it.status)],
      ["Triggered", time(it.trigger_timestamp)],
      ["Ended", time(it.latest_ack_timestamp)],
      ["Duration", duration(it.end_to_end_duration)],
      ["Subtasks", `${it.num_acknowledged_subtasks} of ${it.num_subtasks} have acknowledged it`],
      ["State's size", bytes(it.state_size)],
      ["New of it", bytes(it.checkpointed_size)],
      it.status === "COMPLETED" && ["Path", h("code", {}, it.external_path ?? "deleted")],
      it.failure_message && ["Failure", it.failure_message],
    ]) : h("p", { class: "empty" }, "It is not in the history any more."));
}

function summary(of) {
  const kinds = [["min", "Least"], ["avg", "Mean"], ["p50", "Median"], ["p95", "95 %"], ["p99", "99 %"], ["max", "Most"]];
  const rows = [
    ["Duration", of.end_to_end_duration, duration],
    ["State's size", of.state_size, bytes],
    ["New of it", of.checkpointed_size, bytes],
  ];
  return table("Summary of completed checkpoints in the history",
    [["Of"], ...kinds.map(([, name]) => [name, "number"])],
    rows.map(([name, values, shown]) => ({
      key: name, cells: [name, ...kinds.map(([kind]) => shown(values[kind]))],
    })));
}

export function howTaken(config) {
  const { externalization } = config;
  const kept = !externalization.enabled ? "deleted when the job ends"
    : externalization.delete_on_cancellation ? "kept, unless the job is cancelled" : "kept when the job ends";
  return definitions([
    ["Mode", config.mode === "exactly_once" ? "exactly once" : "at least once"],
    ["Interval", interval(config.interval)],
    ["Time limit", duration(config.timeout)],
    ["Pause between two", duration(config.min_pause)],
    ["At the same time", `at most ${count(config.max_concurrent)}`],
    ["Unaligned", config.unaligned_checkpoints ? "yes" : "no"],
    ["Failures that are tolerated", count(config.tolerable_failed_checkpoints)],
    ["Checkpoints are", kept],
    ["State backend", config.state_backend],
  ]);
}
