// Which view is shown, and when it is looked at anew.

import { ApiError, ask, token } from "./api.js";
import { h, morph } from "./dom.js";
import { executorView, executorsView } from "./executors.js";
import { time, zone } from "./format.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const fresh = document.getElementById("fresh");
const pauseButton = document.getElementById("pause");
const forgetButton = document.getElementById("forget");
const LONGEST_PAUSE = 30_000;

let interval = 3000;
let version = "";
let view = null;
let data = null; // What the view has been told last.
let seen = null; // When that was.
let failures = 0;
let isPaused = false;
let isAsking = false; // For the token: then nothing is looked at until it is given.
let timer = 0;
let round = new AbortController();

// A link from the terminal of the endpoint may bring the token. It goes from the address bar and the
// history at once.
function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  token.set(decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  if (parts[0] === "executors") return parts[1] ? executorView(parts[1]) : executorsView();
  if (parts[0] === "jobs" && parts[1]) return jobView(parts[1], parts.slice(2));
  return jobsView();
}

// `isNew`: the user has gone somewhere else, so that the focus goes there, too.
async function show(isNew) {
  clearTimeout(timer);
  round.abort();
  isAsking = false;
  round = new AbortController();
  const { signal } = round;
  if (isNew) {
    const next = route();
    if (next.place !== view?.place) {
      data = null;
      seen = null;
      // A new element: nothing that was typed or opened elsewhere goes along.
      main.replaceChildren(h("p", { class: "empty" }, "Loading …"));
    }
    view = next;
    for (const link of document.querySelectorAll("nav [data-place]")) {
      if (link.dataset.place === view.section) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  try {
    if (!version) {
      const config = await ask("config", { signal });
      interval = Math.max(1000, Number(config["refresh-interval"]) || interval);
      version = String(config["flink-version"]);
    }
    data = await view.load((path, options) => ask(path, { signal, ...options }), signal);
    if (signal.aborted) return;
    failures = 0;
    seen = Date.now();
    report(null);
    render();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof ApiError)) {
      report([`This page has met a mistake of its own: ${error}`]);
      throw error;
    }
    if (error.status === 401) {
      askForToken();
      return;
    }
    failures += 1;
    failed(error);
  }
  plan();
}

// The next look, unless nobody sees it. After failures the pauses become longer.
function plan() {
  clearTimeout(timer);
  if (document.hidden || (isPaused && !failures)) return;
  const pause = failures ? Math.min(LONGEST_PAUSE, interval * 2 ** (failures - 1)) : interval;
  timer = setTimeout(() => show(false), pause);
}

export function render() {
  const content = h("div", { class: "view" }, view.render(data, render));
  document.title = `${view.title(data)} · flinkray`;
  if (main.firstElementChild?.className === "view") morph(main.firstElementChild, content);
  else main.replaceChildren(content);
  forgetButton.hidden = !token.get();
  const when = seen ? `As of ${time(seen)} (${zone()})` : "";
  const paused = isPaused ? ", updates are paused" : "";
  fresh.textContent = `${when}${paused}. flinkray ${version}.`;
}

function failed(error) {
  const texts = [];
  if (error.status === 404 && !data) {
    main.replaceChildren(
      h("h1", {}, "Not there"),
      h("p", {}, error.message),
      h("p", {}, "Jobs that ended long ago are forgotten. ", h("a", { href: "#/jobs" }, "All jobs")),
    );
    report(null);
    return;
  }
  if (error.status === 0) texts.push(error.message);
  else if (error.status === 503) texts.push("The cluster cannot be reached: no Dispatcher answers.");
  else texts.push(error.message);
  if (seen) texts.push(`What is shown is of ${time(seen)}.`);
  texts.push("This page tries again by itself.");
  if (!data) main.replaceChildren(h("p", { class: "empty" }, "Nothing is known yet."));
  report(texts);
}

function report(texts) {
  const message = texts?.join(" ") ?? "";
  // Said once by screen readers, not at each try.
  if (trouble.textContent !== message) trouble.textContent = message;
}

function askForToken() {
  isAsking = true;
  report(null);
  forgetButton.hidden = true;
  const wasWrong = token.get() !== null;
  token.forget();
  data = null;
  const field = h("input", {
    id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": wasWrong ? "wrong" : "why", "aria-invalid": wasWrong ? "true" : null,
  });
  document.title = "Token · flinkray";
  main.replaceChildren(h("form", {
    class: "panel narrow",
    onsubmit: (event) => {
      event.preventDefault();
      token.set(field.value.trim());
      main.replaceChildren(h("p", { class: "empty" }, "Loading …"));
      show(false);
    },
  },
  h("h1", {}, "Token"),
  h("p", { id: "why" }, "This endpoint answers those who know its token. ",
    h("code", {}, "flinkray rest-token"), " prints it. This tab keeps it until it is closed."),
  wasWrong && h("p", { id: "wrong", class: "bad-text", role: "alert" }, "That is not the token."),
  h("label", { for: "token" }, "Token"),
  field,
  h("p", {}, h("button", { type: "submit", class: "primary" }, "Go on"))));
  field.focus();
}

pauseButton.addEventListener("click", () => {
  isPaused = !isPaused;
  pauseButton.setAttribute("aria-pressed", String(isPaused));
  if (isPaused) {
    clearTimeout(timer);
    if (data) render();
  } else {
    show(false);
  }
});
forgetButton.addEventListener("click", () => {
  token.forget();
  show(false);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!isPaused && !isAsking) show(false);
});
window.addEventListener("token-needed", () => {
  clearTimeout(timer);
  round.abort();
  askForToken();
});
window.addEventListener("online", () => {
  if (!isAsking) show(false);
});
window.addEventListener("hashchange", () => {
  takeToken();
  show(true);
});
window.matchMedia("(max-width: 760px)").addEventListener("change", () => data && render());
takeToken();
show(true);
