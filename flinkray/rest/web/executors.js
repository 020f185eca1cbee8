// TaskExecutors, their slots, and what is in these.

import { askEach } from "./api.js";
import { definitions, h, table } from "./dom.js";
import { amount, bytes, count, counted } from "./format.js";
import { badge } from "./states.js";

const SHOWN = 60;
const MEBIBYTE = 1 << 20;

function linkTo(id) {
  return `#/executors/${encodeURIComponent(id)}`;
}

function pathOf(id) {
  return `taskmanagers/${encodeURIComponent(id)}`;
}

export function executorsView() {
  return {
    place: "executors",
    section: "executors",
    title: () => "TaskExecutors",
    async load(ask, signal) {
      const [{ taskmanagers }, { jobs }] = await Promise.all([ask("taskmanagers"), ask("jobs/overview")]);
      const shown = taskmanagers.slice(0, SHOWN);
      const details = await askEach(shown.map((one) => pathOf(one.id)), signal);
      return { executors: taskmanagers, details, names: new Map(jobs.map((job) => [job.jid, job.name])) };
    },
    render({ executors, details, names }) {
      const free = executors.reduce((sum, one) => sum + one.freeSlots, 0);
      const total = executors.reduce((sum, one) => sum + one.slotsNumber, 0);
      return [
        h("h1", {}, "TaskExecutors"),
        h("p", {}, `${counted(executors.length, "TaskExecutor")}, ${free} of ${counted(total, "slot")} free.`),
        executors.length > SHOWN && h("p", {}, `The jobs of the first ${SHOWN} are shown.`),
        table("TaskExecutors",
          [["Name"], ["Slots"], ["Free", "number"], ["Processors", "number"], ["Memory", "number"]],
          executors.map((one, i) => ({
            key: one.id,
            cells: [
              h("a", { href: linkTo(one.id) }, one.id),
              slots(one, details[i], names),
              `${one.freeSlots} of ${one.slotsNumber}`,
              amount(one.totalResource.cpuCores),
              bytes(one.hardware.physicalMemory),
            ],
          })),
          "There is none. One is started when a job needs slots."),
      ];
    },
  };
}

// One box for each slot, with the job that has it.
function slots(executor, details, names) {
  const used = (details?.allocatedSlots ?? []).map((slot) => h("li", { class: "used" },
    h("a", { href: `#/jobs/${slot.jobId}` }, names.get(slot.jobId) ?? slot.jobId)));
  const taken = Math.max(0, executor.slotsNumber - executor.freeSlots - used.length);
  return h("ul", { class: "slots" },
    used,
    Array.from({ length: taken }, () => h("li", { class: "used" }, "in use")),
    Array.from({ length: Math.max(0, executor.slotsNumber - used.length - taken) },
      () => h("li", {}, "free")));
}

export function executorView(id) {
  return {
    place: `executor ${id}`,
    section: "executors",
    title: () => id,
    async load(ask) {
      const [details, found, { jobs }] = await Promise.all([
        ask(pathOf(id)), ask(`${pathOf(id)}/tasks`), ask("jobs/overview"),
      ]);
      return { details, tasks: found.tasks, names: new Map(jobs.map((job) => [job.jid, job.name])) };
    },
    render({ details, tasks, names }) {
      const resource = details.totalResource;
      return [
        h("p", { class: "trail" }, h("a", { href: "#/executors" }, "TaskExecutors")),
        h("h1", {}, details.id),
        definitions([
          ["Address", h("code", {}, details.path)],
          ["Slots", `${details.freeSlots} of ${details.slotsNumber} free`],
          ["Processors", amount(resource.cpuCores)],
          ["Memory of tasks", bytes(resource.taskHeapMemory * MEBIBYTE)],
          ...Object.entries(resource.extendedResources).map(([name, value]) => [name, amount(value)]),
        ]),
        h("section", { "aria-labelledby": "slots" },
          h("h2", { id: "slots" }, "Slots"), slots(details, details, names)),
        h("section", { "aria-labelledby": "tasks" },
          h("h2", { id: "tasks" }, `Tasks and Spark executors (${tasks.length})`),
          table("Tasks and Spark executors", [["Job"], ["Vertex"], ["Subtask", "number"], ["Attempt", "number"], ["State"], ["What"]],
            tasks.map((task) => ({
              key: `${task.vertex} ${task.subtask}`,
              cells: [
                h("a", { href: `#/jobs/${task.jid}` }, task.name || task.jid),
                h("a", { href: `#/jobs/${task.jid}/vertices/${task.vertex}` }, task["vertex-name"]),
                count(task.subtask),
                count(task.attempt),
                badge(task.status),
                whatIs(task["spark-executor"]),
              ],
            })),
            "None runs here.")),
      ];
    },
  };
}

export function whatIs(spark) {
  if (!spark) return "task";
  return h("span", {}, `Spark executor, process ${spark.pid ?? "unknown"}, Ray actor `,
    h("code", {}, spark["actor-id"]));
}
