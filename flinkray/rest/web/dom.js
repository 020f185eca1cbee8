// Elements out of data. Text stays text: nothing here, or in what uses it, parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "ontoggle"];

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (HANDLERS.includes(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

// What a user has done to an element is the user's: what is open stays open, what was typed stays.
const KEPT = new Set(["open", "value", "checked"]);

// Make `old` equal to `fresh` and keep what is alike, so that focus, selection and scroll positions
// survive an update. Elements that have a key are matched by it, and others by their place.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) old[name] = fresh[name];
  morphChildren(old, [...fresh.childNodes]);
}

function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  return node.id || node.getAttribute("data-key") || node.getAttribute("aria-labelledby") || "";
}

function morphChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = parent.firstChild;
  for (const fresh of wanted) {
    const known = keyed.get(keyOf(fresh));
    if (known && known !== at) parent.insertBefore(known, at);
    const old = known ?? at;
    if (!old || (!known && (keyOf(old) || keyOf(fresh)))) {
      parent.insertBefore(fresh, at);
      continue;
    }
    at = old.nextSibling;
    morph(old, fresh);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// A table whose rows are cards on a narrow screen: each cell knows the name of its column then.
// `columns`: [name, class of its cells]; `rows`: {key, cells, class}; a cell is text or a node.
export function table(caption, columns, rows, empty = "None.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "table" }, h("table", { role: "table" },
    h("caption", { class: "hidden" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, kind]) =>
      h("th", { role: "columnheader", scope: "col", class: kind }, name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) =>
      h("tr", { role: "row", "data-key": row.key, class: row.class }, row.cells.map((cell, i) =>
        h(i ? "td" : "th", {
          role: i ? "cell" : "rowheader",
          scope: i ? null : "row",
          class: columns[i][1],
          "data-label": columns[i][0],
        }, h("span", {}, cell))))))));
}

export function definitions(pairs, key) {
  return h("dl", { "data-key": key }, pairs.filter(Boolean).map(([name, ...value]) =>
    h("div", { "data-key": name }, h("dt", {}, name), h("dd", {}, ...value))));
}
