// What a user does with a job. Each opens a dialog that says what will happen, and then what has.

import { ApiError, ask } from "./api.js";
import { innermost } from "./causes.js";
import { h } from "./dom.js";
import { hasEnded } from "./states.js";

const POLL = 1000;

// What was begun has come to nothing, or nobody can tell any more what has come of it.
class OperationError extends ApiError {
  constructor(kind, text) {
    super(500, [text]);
    this.kind = kind;
  }
}

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

// `perform(form, say)` returns what has been done, in words or elements. `verb`: null if nothing can be.
function open({ title, explains, fields = [], verb, isHarmful = false, perform }) {
  const answer = h("div", { class: "answer", role: "status" });
  const go = h("button", { type: "submit", class: isHarmful ? "harmful" : "primary", hidden: verb === null }, verb);
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
        if (error.status === 401) {
          dialog.close();
          window.dispatchEvent(new Event("token-needed"));
          return;
        }
        answer.className = "answer bad-text";
        say(h("strong", {}, error.kind ?? (error.status ? "Refused: " : "No answer: ")), error.message);
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
    perform: operation(`${base}/savepoints`, (form) => ({
      "target-directory": form.elements.directory.value.trim() || undefined, "cancel-job": false,
    })),
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
    perform: operation(`${base}/stop`, (form) => ({
      targetDirectory: form.elements.directory.value.trim() || undefined, drain: form.elements.drain.checked,
    })),
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
  let bounds = {};
  let why = null;
  try {
    bounds = await ask(`${base}/resource-requirements`);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    why = error.message;
  }
  const names = new Map(job.vertices.map((it) => [it.id, it.name]));
  const field = (id, which, value, text) => h("label", {}, text, " ", h("input", {
    type: "number", name: `${id} ${which}`, min: 1, max: 32768, step: 1, required: true, value,
  }));
  open({
    title: "Rescale",
    explains: [why === null
      ? `${nameOf(job)} goes on from its state with as many subtasks as there are slots for, within these bounds.`
      : `The present bounds of ${nameOf(job)} are not known, so that they cannot be changed now: ${why}`],
    fields: Object.entries(bounds).map(([id, { parallelism }]) => h("fieldset", {},
      h("legend", {}, names.get(id) ?? id),
      field(id, "lower", parallelism.lowerBound, "At least"),
      field(id, "upper", parallelism.upperBound, "At most"))),
    verb: why === null ? "Rescale it" : null,
    async perform(form) {
      const of = (id, which) => form.elements[`${id} ${which}`].valueAsNumber;
      const wanted = Object.fromEntries(Object.keys(bounds).map((id) =>
        [id, { parallelism: { lowerBound: of(id, "lower"), upperBound: of(id, "upper") } }]));
      await ask(`${base}/resource-requirements`, { method: "PUT", body: wanted });
      return "The new bounds hold. The job changes over as soon as it can.";
    },
  });
}

// Begin it, and ask until it has ended, or nobody looks at the dialog any more. What was not answered may
// have begun: asked for again, it is the same operation.
function operation(path, bodyOf) {
  let triggerId = newId();
  const place = path.replace(/\/stop$/, "/savepoints");
  return async (form, say) => {
    const tried = triggerId;
    try {
      await ask(path, { method: "POST", body: { ...bodyOf(form), triggerId } });
    } catch (error) {
      if (error instanceof ApiError && error.status) triggerId = newId();
      throw error;
    }
    triggerId = newId();
    say("It has begun. It goes on if you close this.");
    while (form.isConnected) {
      await new Promise((resolve) => setTimeout(resolve, POLL));
      const polling = await polled(`${place}/${tried}`);
      if (!polling) say("It has begun. The cluster cannot be reached at the moment; this asks again.");
      if (polling?.status.id !== "COMPLETED") continue;
      const cause = polling.operation["failure-cause"];
      if (cause) throw new OperationError("Failed: ", innermost(String(cause["stack-trace"])).text);
      return ["The savepoint is at ", h("code", {}, polling.operation.location)];
    }
    return [];
  };
}

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (it) => it.toString(16).padStart(2, "0")).join("");
}

// Null: nobody could tell. What was begun goes on, so asking again is right, and beginning again is not.
async function polled(path) {
  try {
    return await ask(path);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if ([0, 429, 503].includes(error.status)) return null;
    if (error.status !== 404) throw error;
    throw new OperationError("Not known: ",
      "the endpoint was begun anew and knows nothing of it. What has come of it is among the checkpoints of the job.");
  }
}
