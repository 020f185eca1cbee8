// A job's graph: layers by the longest path from a source, vertices in a layer ordered so that few
// edges cross, drawn as SVG. Edges that pass layers go through places that are kept free in them.

import { svg } from "./dom.js";

export const SIZE = { width: 236, height: 118 };
const GAP = { along: 84, across: 28 };
const SWEEPS = 4;

// `nodes`: [{id, inputs: [{id}]}] in topological order, as Flink's plans have them.
// Returns {places: Map id -> {x, y}, edges: [{from, to, input, points}], width, height}.
export function layout(nodes, isDown) {
  const layer = new Map();
  for (const node of nodes) {
    const above = (node.inputs ?? []).map((input) => layer.get(input.id) ?? -1);
    layer.set(node.id, Math.max(-1, ...above) + 1);
  }
  const layers = [];
  const put = (cell) => (layers[cell.layer] ??= []).push(cell);
  const cells = new Map(nodes.map((node) => [node.id, { layer: layer.get(node.id), before: [], after: [] }]));
  cells.forEach(put);
  const edges = [];
  for (const node of nodes) {
    for (const input of node.inputs ?? []) {
      if (!cells.has(input.id)) continue;
      const path = [cells.get(input.id)];
      for (let i = layer.get(input.id) + 1; i < layer.get(node.id); i += 1) {
        const free = { layer: i, before: [], after: [], isFree: true };
        put(free);
        path.push(free);
      }
      path.push(cells.get(node.id));
      for (let i = 1; i < path.length; i += 1) {
        path[i - 1].after.push(path[i]);
        path[i].before.push(path[i - 1]);
      }
      edges.push({ from: input.id, to: node.id, input, path });
    }
  }
  order(layers);
  return place(nodes, cells, layers, edges, isDown);
}

function order(layers) {
  const number = (cells) => cells.forEach((cell, i) => { cell.order = i; });
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForward = sweep % 2 === 0;
    for (const cells of isForward ? layers : [...layers].reverse()) {
      for (const cell of cells) {
        const next = isForward ? cell.before : cell.after;
        const sum = next.reduce((total, one) => total + one.order, 0);
        cell.wish = next.length ? sum / next.length : cell.order;
      }
      cells.sort((a, b) => a.wish - b.wish || a.order - b.order);
      number(cells);
    }
  }
}

function place(nodes, cells, layers, edges, isDown) {
  const [length, breadth] = isDown ? [SIZE.height, SIZE.width] : [SIZE.width, SIZE.height];
  const breadthOf = (cell) => (cell.isFree ? GAP.across : breadth);
  const extent = (row) => row.reduce((sum, cell) => sum + breadthOf(cell) + GAP.across, -GAP.across);
  const widest = Math.max(0, ...layers.map(extent));
  layers.forEach((row, i) => {
    let across = (widest - extent(row)) / 2;
    for (const cell of row) {
      cell.along = i * (length + GAP.along);
      cell.across = across + breadthOf(cell) / 2;
      across += breadthOf(cell) + GAP.across;
    }
  });
  const point = (along, across) => (isDown ? { x: across, y: along } : { x: along, y: across });
  const places = new Map(nodes.map(({ id }) => {
    const cell = cells.get(id);
    return [id, point(cell.along, cell.across - breadth / 2)];
  }));
  const total = layers.length ? layers.length * (length + GAP.along) - GAP.along : 0;
  const size = point(total, widest);
  return {
    places,
    edges: edges.map((edge) => ({ ...edge, points: pointsOf(edge.path, length, point) })),
    width: size.x,
    height: size.y,
  };
}

function pointsOf(path, length, point) {
  return path.flatMap((cell, i) => {
    const ends = [];
    if (i > 0) ends.push(point(cell.along, cell.across));
    if (i < path.length - 1) ends.push(point(cell.along + length, cell.across));
    return ends;
  });
}

function curve(points, isDown) {
  const parts = [`M ${points[0].x} ${points[0].y}`];
  for (let i = 1; i < points.length; i += 1) {
    const [a, b] = [points[i - 1], points[i]];
    if (i % 2 === 0) {
      parts.push(`L ${b.x} ${b.y}`); // through a place that was kept free
    } else if (isDown) {
      const middle = (a.y + b.y) / 2;
      parts.push(`C ${a.x} ${middle} ${b.x} ${middle} ${b.x} ${b.y}`);
    } else {
      const middle = (a.x + b.x) / 2;
      parts.push(`C ${middle} ${a.y} ${middle} ${b.y} ${b.x} ${b.y}`);
    }
  }
  return parts.join(" ");
}

// At most `lines` lines for which `fits(line)`; what is too long ends with an ellipsis.
export function wrapped(text, fits, lines) {
  const rows = [];
  let rest = [...text.replace(/\s+/g, " ").trim()];
  while (rest.length > 0 && rows.length < lines) {
    const isLast = rows.length === lines - 1;
    const begin = (length) => rest.slice(0, length).join("");
    if (fits(begin())) {
      rows.push(begin());
      break;
    }
    let most = 1;
    while (fits(begin(most + 1) + (isLast ? "…" : ""))) most += 1;
    const space = rest.lastIndexOf(" ", most);
    const cut = !isLast && space > most / 2 ? space : most;
    rows.push(isLast ? `${begin(cut)}…` : begin(cut).trim());
    rest = [...rest.slice(cut).join("").trim()];
  }
  return rows;
}

let canvas = null;

// How wide a vertex's name is, in pixels: see .graph .name.
function widthOf(name) {
  if (canvas === null) {
    canvas = document.createElement("canvas").getContext("2d");
    canvas.font = `650 13px ${getComputedStyle(document.body).fontFamily}`;
  }
  return canvas.measureText(name).width;
}

// `draw(node)`: {href, title, name, lines, shares: [{class, of}], class, isCurrent}.
export function drawing(nodes, isDown, draw) {
  const { places, edges, width, height } = layout(nodes, isDown);
  const margin = 12;
  return svg("svg", {
    class: "graph",
    width: width + 2 * margin,
    height: height + 2 * margin,
    viewBox: `${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}`,
    role: "group",
    "aria-label": "Graph of the job",
  },
  svg("defs", {}, svg("marker", {
    id: "arrow", viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto",
  }, svg("path", { d: "M 0 0 L 8 4 L 0 8 z", class: "arrow" }))),
  edges.map((edge) => edgeOf(edge, isDown)),
  nodes.map((node) => nodeOf(places.get(node.id), draw(node))));
}

function edgeOf({ from, to, input, points }, isDown) {
  const [a, b] = points.slice(-2);
  const label = input.ship_strategy ?? "";
  return svg("g", { class: "edge", "data-key": `${from} ${to} ${input.num}` },
    svg("path", { d: curve(points, isDown), "marker-end": "url(#arrow)" }),
    svg("text", {
      x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 - (isDown ? -4 : 6), "text-anchor": "middle",
    }, label));
}

function nodeOf({ x, y }, drawn) {
  let left = 12;
  const room = SIZE.width - 24;
  const names = wrapped(drawn.name, (name) => widthOf(name) <= room, 2);
  return svg("a", {
    class: `node ${drawn.class}`,
    href: drawn.href,
    transform: `translate(${x} ${y})`,
    "aria-label": drawn.title,
    "aria-current": drawn.isCurrent ? "true" : null,
    "data-key": drawn.href,
  },
  svg("title", {}, drawn.title),
  svg("rect", { class: "box", width: SIZE.width, height: SIZE.height, rx: 8 }),
  names.map((name, i) => svg("text", { class: "name", x: 12, y: 22 + 16 * i }, name)),
  drawn.lines.map((line, i) => svg("text", { x: 12, y: 60 + 16 * i }, line)),
  svg("rect", { class: "track", x: 12, y: SIZE.height - 16, width: room, height: 6, rx: 3 }),
  drawn.shares.map(({ class: name, of }) => {
    const part = svg("rect", { class: name, x: left, y: SIZE.height - 16, width: room * of, height: 6 });
    left += room * of;
    return part;
  }));
}
