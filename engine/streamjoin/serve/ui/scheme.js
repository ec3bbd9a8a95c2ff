// How the join is cut: areas over the keys of both sides, the band of pairs that can match, ranges that are hot.

import { h, s } from "./dom.js";
import * as f from "./format.js";

const SIZE = 1000, LEFT = 190, TOP = 92, MARGIN = 26;

/** A worker's colour: neighbours differ by the golden angle. */
export const colour = (worker) => `hsl(${((210 + worker * 137.5) % 360).toFixed(1)} var(--area))`;

/** A figure of the shapes that /v1/live gives. `workers`: by task, whose colour and number it has. */
export function picture(shapes, title, workers = null) {
  const worker = (task) => workers?.[task] ?? task;
  const x = (part) => LEFT + part * SIZE, y = (part) => TOP + part * SIZE;
  const [rows, columns] = shapes.sides;
  const drawing = s("svg", {
    class: "scheme", viewBox: `0 0 ${LEFT + SIZE + MARGIN} ${TOP + SIZE + MARGIN}`, role: "img",
    "aria-label": `${title}: ${shapes.summary}; ${f.plural(shapes.areas.length, "area")} of ${f.plural(shapes.tasks, "worker")}`,
  });
  for (const area of shapes.areas) drawing.append(...pieces(area, shapes, worker, x, y));
  const steps = [...shapes.band.map(([top, bottom, , end]) => `${x(end)},${y(top)} ${x(end)},${y(bottom)}`),
    ...shapes.band.map(([top, bottom, begin]) => `${x(begin)},${y(bottom)} ${x(begin)},${y(top)}`).reverse()];
  drawing.append(s("polygon", { class: "band", points: steps.join(" ") }));
  for (const part of coverages(shapes.areas)) {
    drawing.append(s("rect", { class: "coverage", x: x(part.begin), y: y(part.top), width: SIZE * (part.end - part.begin), height: SIZE * (part.bottom - part.top) }));
  }
  for (const area of shapes.areas) drawing.append(number(area, worker(area.task), x, y));
  drawing.append(s("rect", { class: "frame", x: LEFT, y: TOP, width: SIZE, height: SIZE }));
  for (const hot of rows.hot) drawing.append(s("rect", { class: "hot", x: LEFT - 12, y: y(hot.ends[0]), width: 10, height: Math.max(3, SIZE * (hot.ends[1] - hot.ends[0])) }, s("title", {}, hotText(rows, hot))));
  for (const hot of columns.hot) drawing.append(s("rect", { class: "hot", x: x(hot.ends[0]), y: TOP - 12, width: Math.max(3, SIZE * (hot.ends[1] - hot.ends[0])), height: 10 }, s("title", {}, hotText(columns, hot))));
  drawing.append(...ticks(rows.ticks, 26).map(([place, name]) => s("text", { class: "tick", x: LEFT - 18, y: y(place) + 7, "text-anchor": "end" }, cut(name))));
  drawing.append(...ticks(columns.ticks, 120).map(([place, name]) => s("text", { class: "tick", x: x(place), y: TOP - 20, "text-anchor": "middle" }, cut(name))));
  drawing.append(s("text", { class: "label", x: LEFT + SIZE / 2, y: 30, "text-anchor": "middle" }, `${columns.name}: ${f.count(columns.tuples)} tuples →`));
  drawing.append(s("text", { class: "label", x: LEFT, y: 30, "text-anchor": "end" }, "↓ keys"));
  drawing.append(s("text", { class: "label", transform: `translate(34 ${TOP + SIZE / 2}) rotate(-90)`, "text-anchor": "middle" }, `← ${rows.name}: ${f.count(rows.tuples)} tuples`));
  return h("figure", {}, h("figcaption", {}, title, h("span", {}, `${shapes.model}, ${f.plural(shapes.tasks, "worker")}`)), drawing);
}

export const hotText = (side, hot) => `${side.name}: ${f.share(hot.share)} of the tuples have keys ${hot.keys}`;

function pieces(area, shapes, worker, x, y) {
  const [rows, columns] = shapes.sides, who = worker(area.task);
  const keys = [[rows, area.keys[0]], [columns, area.keys[1]]].filter(([, range]) => range).map(([side, range]) => `${side.name}: ${range}`);
  const name = `worker ${who}${keys.length ? `; keys of ${keys.join("; of ")}` : ""}`;
  return area.rows.flatMap(([top, bottom]) => area.columns.map(([begin, end]) => {
    const shape = s("rect", {
      class: area.holds.every(Boolean) ? "area" : "area half", "data-task": area.task,
      x: x(begin), y: y(top), width: Math.max(0, SIZE * (end - begin)), height: Math.max(0, SIZE * (bottom - top)),
    }, s("title", {}, name));
    shape.style.fill = colour(who);
    return shape;
  }));
}

function number(area, who, x, y) {
  const longest = (parts) => parts.reduce((best, part) => (part[1] - part[0] > best[1] - best[0] ? part : best));
  let [top, bottom] = longest(area.rows), [begin, end] = longest(area.columns);
  if (!area.holds[1]) end = begin + (end - begin) * 0.1;
  if (!area.holds[0]) bottom = top + (bottom - top) * 0.1;
  const size = Math.min(64, 0.6 * SIZE * Math.min(bottom - top, (end - begin) / (0.62 * String(who).length)));
  return size < 9 ? "" : s("text", { class: "number", x: x((begin + end) / 2), y: y((top + bottom) / 2), "font-size": size.toFixed(1) }, String(who));
}

function coverages(areas) {
  const found = new Map();
  for (const area of areas) {
    const known = found.get(area.coverage) ?? { top: 1, bottom: 0, begin: 1, end: 0 };
    for (const [top, bottom] of area.rows) { known.top = Math.min(known.top, top); known.bottom = Math.max(known.bottom, bottom); }
    for (const [begin, end] of area.columns) { known.begin = Math.min(known.begin, begin); known.end = Math.max(known.end, end); }
    found.set(area.coverage, known);
  }
  return found.values();
}

/** Those that leave room for their labels. */
function ticks(all, room) {
  const found = [];
  for (const tick of all) if (!found.length || (tick[0] - found.at(-1)[0]) * SIZE >= room) found.push(tick);
  return found;
}

const cut = (name) => (name.length > 11 ? `${name.slice(0, 10)}…` : name);
