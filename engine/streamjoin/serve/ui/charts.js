// Curves over time, by uPlot, in the page's colours; each is named for screen readers by what it says now.

import { h, text } from "./dom.js";

const HEIGHT = 170;
const timeOf = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");

/** A chart. `lines`: {name, colour (a CSS variable), dash, step, fill}; `format`: of values; `floor`: what the scale reaches at least. */
export class Chart {
  constructor({ title, lines, format, floor = 0 }) {
    this.lines = lines;
    this.format = format;
    this.floor = floor;
    this.now = h("span");
    this.box = h("div", { role: "img" });
    this.title = title;
    this.figure = h("figure", { class: "card" }, h("figcaption", {}, title, this.now), this.box);
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    new ResizeObserver(() => this.fit()).observe(this.box);
    dark.addEventListener("change", () => { this.drop(); this.fit(); });
  }

  /** `data`: times, then the values of each line; `now`: what to say of them. */
  show(data, now) {
    this.data = data;
    text(this.now, now);
    this.box.setAttribute("aria-label", `${this.title}: ${now}`);
    if (this.plot) this.plot.setData(data);
    else this.fit();
  }

  drop() {
    this.plot?.destroy();
    this.plot = null;
  }

  fit() {
    const width = Math.floor(this.box.clientWidth);
    if (!width) return; // in a panel that is not shown
    if (this.plot) this.plot.setSize({ width, height: HEIGHT });
    else this.plot = new uPlot(this.options(width), this.data, this.box);
  }

  options(width) {
    const grid = { stroke: css("--line"), width: 1 }, ticks = { stroke: css("--line"), width: 1, size: 4 };
    const axis = { stroke: css("--muted"), grid, ticks, font: "11px system-ui, sans-serif" };
    return {
      width, height: HEIGHT,
      padding: [8, 26, 0, 0],
      cursor: { y: false, points: { size: 6 } },
      legend: { show: this.lines.length > 1 },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(this.floor, (high ?? 0) * 1.08, 1e-9)] } },
      axes: [
        { ...axis, size: 30, space: 78, values: (_, values) => values.map(timeOf) },
        { ...axis, size: 58, values: (_, values) => values.map((value) => this.format(value)) },
      ],
      series: [
        { label: "at", value: (_, value) => (value === null ? "" : timeOf(value)) },
        ...this.lines.map((line) => ({
          label: line.name,
          stroke: css(line.colour),
          width: line.dash ? 1 : 1.8,
          dash: line.dash,
          fill: line.fill ? `color-mix(in srgb, ${css(line.colour)} 14%, transparent)` : undefined,
          paths: line.step ? uPlot.paths.stepped({ align: -1 }) : undefined,
          points: { show: false },
          spanGaps: true,
          value: (_, value) => (value === null || value === undefined ? "–" : this.format(value)),
        })),
      ],
    };
  }
}
