// What failed in a job, newest first, each with its innermost cause before the rest.

import { innermost } from "./causes.js";
import { h } from "./dom.js";
import { time } from "./format.js";

const MOST = 20;

export function exceptionsPart(base) {
  let most = MOST;
  return {
    async load(ask) {
      const { exceptionHistory } = await ask(`${base}/exceptions?maxExceptions=${most}`);
      return exceptionHistory;
    },
    render({ entries, truncated }, data, again) {
      if (!entries.length) return h("p", { class: "empty" }, "Nothing has failed.");
      return h("section", { "aria-labelledby": "failures" },
        h("h2", { id: "failures" }, "Exceptions, newest first"),
        entries.map((entry) => article(entry)),
        truncated && h("p", {}, h("button", {
          type: "button", onclick: () => { most *= 10; again(); },
        }, "Show more from the next update on")));
    },
  };
}

function article(entry) {
  const cause = innermost(entry.stacktrace);
  return h("article", { class: "panel failure", "data-key": `${entry.timestamp} ${entry.taskName}` },
    h("h3", {}, cause.text),
    cause.place && h("p", {}, "In ", h("code", {}, cause.place)),
    cause.after.map((text) => h("p", {}, "Which led to: ", text)),
    h("p", { class: "where" },
      [time(entry.timestamp), entry.taskName ?? "the job as a whole", entry.taskManagerId && `on ${entry.taskManagerId}`, entry.endpoint]
        .filter(Boolean).join(" · ")),
    h("details", {}, h("summary", {}, "All of it"), h("pre", { tabindex: "0" }, entry.stacktrace)),
    entry.concurrentExceptions.length > 0 && h("details", {},
      h("summary", {}, `What failed besides it (${entry.concurrentExceptions.length})`),
      h("ul", {}, entry.concurrentExceptions.map((other) =>
        h("li", {}, `${other.taskName ?? "the job"}: ${innermost(other.stacktrace).text}`)))));
}
