// What a user does with a job. Each opens a dialog that says what will happen, and then what has.

import { ApiError, ask } from "./api.js";
import { innermost } from "./causes.js";
import { h } from "./dom.js";
import { hasEnded } from "./states.js";

const POLL = 1000;

export function actionsOf(base) {
  return (job, progress) => {
    if (hasEnded(job.state)) return null;
    const isStream = job["job-type"] !== "BATCH";
    const button = (text, open) => h("button", { type: "button", onclick: open }, text);
    return h("p", { class: "actions", "data-key": "actions", role: "group", "aria-label": "What can be done with the job" },
      isStream && button("Take a savepoint …", () => savepoint(base, job)),
      isStream && button("Stop with a savepoint …", () => stop(base, job)),
      progress?.["is-elastic"] && button("Rescale …", () => rescale(base, job)),
      button("Cancel the job …", () => cancel(base, job)));
  };
}

// `perform(form, say)` returns what has been done, in words or elements.
function open({ title, explains, fields = [], verb, isHarmful = false, perform }) {
  const answer = h("div", { class: "answer", role: "status" });
  const go = h("button", { type: "submit", class: isHarmful ? "harmful" : "primary" }, verb);
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Do nothing");
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      answer.className = "answer";
      const say = (...content) => answer.replaceChildren(...content);
      say("Asking the cluster …");
      try {
        say(...[await perform(form, say)].flat());
        go.hidden = true;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        answer.className = "answer bad-text";
        say(h("strong", {}, error.status ? "Refused: " : "No answer: "), error.message);
        go.disabled = false;
      }
      close.textContent = "Close";
    },
  },
  h("h2", { id: "dialog-title" }, title), explains.map((text) => h("p", {}, text)),
  fields, answer, h("p", { class: "actions" }, go, close));
  const opener = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  dialog.addEventListener("close", () => {
    dialog.remove();
    opener?.focus?.();
  });
  document.body.append(dialog);
  dialog.showModal();
}

const nameOf = (job) => `“${job.name}”`;

function directory() {
  return [
    h("label", { for: "directory" }, "Directory (an absolute path or a URI)"),
    h("input", { id: "directory", name: "directory", type: "text", autocomplete: "off", spellcheck: "false" }),
    h("p", { class: "hint" }, "Empty: the one that ", h("code", {}, "execution.checkpointing.savepoint-dir"), " names."),
  ];
}

function savepoint(base, job) {
  open({
    title: "Take a savepoint",
    explains: [`Of ${nameOf(job)}, which goes on running.`],
    fields: directory(),
    verb: "Take it",
    perform: (form, say) => operation(`${base}/savepoints`, {
      "target-directory": form.elements.directory.value.trim() || undefined, "cancel-job": false,
    }, say),
  });
}

function stop(base, job) {
  open({
    title: "Stop with a savepoint",
    explains: [`${nameOf(job)} ends when the savepoint is complete. It can be started again from it.`],
    fields: [
      ...directory(),
      h("p", {}, h("label", { class: "check" }, h("input", { type: "checkbox", name: "drain" }),
        " Drain: tell the functions that the stream ends. Do this if the job is not to go on.")),
    ],
    verb: "Stop it",
    isHarmful: true,
    perform: (form, say) => operation(`${base}/stop`, {
      targetDirectory: form.elements.directory.value.trim() || undefined, drain: form.elements.drain.checked,
    }, say),
  });
}

function cancel(base, job) {
  open({
    title: "Cancel the job",
    explains: [`${nameOf(job)} ends now, without a savepoint. What it did since its last checkpoint is not kept.`],
    verb: "Cancel it",
    isHarmful: true,
    async perform() {
      await ask(base, { method: "PATCH" });
      return "It is being cancelled.";
    },
  });
}

async function rescale(base, job) {
  let bounds;
  try {
    bounds = await ask(`${base}/resource-requirements`);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    bounds = {};
  }
  const names = new Map(job.vertices.map((it) => [it.id, it.name]));
  const field = (id, which, value, text) => h("label", {}, text, " ", h("input", {
    type: "number", name: `${id} ${which}`, min: 1, max: 32768, step: 1, required: true, value,
  }));
  open({
    title: "Rescale",
    explains: [`${nameOf(job)} goes on from its state with as many subtasks as there are slots for, within these bounds.`],
    fields: Object.entries(bounds).map(([id, { parallelism }]) => h("fieldset", {},
      h("legend", {}, names.get(id) ?? id),
      field(id, "lower", parallelism.lowerBound, "At least"),
      field(id, "upper", parallelism.upperBound, "At most"))),
    verb: "Rescale it",
    async perform(form) {
      const of = (id, which) => form.elements[`${id} ${which}`].valueAsNumber;
      const wanted = Object.fromEntries(Object.keys(bounds).map((id) =>
        [id, { parallelism: { lowerBound: of(id, "lower"), upperBound: of(id, "upper") } }]));
      await ask(`${base}/resource-requirements`, { method: "PUT", body: wanted });
      return "The new bounds hold. The job changes over as soon as it can.";
    },
  });
}

// Begin it, and ask until it has ended.
async function operation(path, body, say) {
  const id = (await ask(path, { method: "POST", body }))["request-id"];
  say("It has begun. It goes on if you close this.");
  const place = path.replace(/\/stop$/, "/savepoints");
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL));
    const polling = await polled(`${place}/${id}`);
    if (!polling) say("It has begun. The cluster cannot be reached at the moment; this asks again.");
    if (polling?.status.id !== "COMPLETED") continue;
    const cause = polling.operation["failure-cause"];
    if (cause) throw new ApiError(500, [innermost(String(cause["stack-trace"])).text]);
    return ["The savepoint is at ", h("code", {}, polling.operation.location)];
  }
}

// Null: nobody could tell. What was begun goes on, so asking again is right, and beginning again is not.
async function polled(path) {
  try {
    return await ask(path);
  } catch (error) {
    if (error instanceof ApiError && [0, 429, 503].includes(error.status)) return null;
    throw error;
  }
}
