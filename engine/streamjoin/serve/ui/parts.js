// A tab for each join, and for each stream.

import { Chart } from "./charts.js";
import { byId, facts, h, keyed, table, text } from "./dom.js";
import * as f from "./format.js";
import { COUNTERS } from "./overview.js";

const SPANS = [["1h", "last hour"], ["1d", "last day"], ["run", "since the first epoch"]];

class JoinPanel {
  constructor(name) {
    this.facts = h("dl");
    this.found = h("table");
    this.charts = [
      new Chart({ title: "Results of an epoch", format: f.short, lines: [{ name: "results", colour: "--green", fill: true }] }),
      new Chart({ title: "Records wait for their results (p99)", format: f.duration, lines: [{ name: "p99", colour: "--blue", fill: true }] }),
    ];
    const title = `join-${name}-title`;
    this.parts = [
      h("section", { class: "card", "aria-label": `Join ${name}` }, h("h2", {}, `Join ${name}`), this.facts),
      h("div", { class: "charts" }, this.charts.map((chart) => chart.figure)),
      h("section", { class: "card", "aria-labelledby": title }, h("h2", { id: title }, "Which part of all results was found"), h("div", { class: "wide", tabindex: "0", role: "region", "aria-labelledby": title }, this.found)),
    ];
  }

  show({ joins, epochs }, index) {
    const join = joins[index], delay = join.resultDelay;
    facts(this.facts, [
      ["condition", join.condition], ["type", join.type], ["window", join.window], ["streams", join.streams.join(", ")], ["results go to", join.sink],
      ["results", `${f.count(join.output)}, ${f.short(join.perSecond)} a second`],
      ["results after", delay ? `p50 ${f.duration(delay.p50)}, p99 ${f.duration(delay.p99)}, at most ${f.duration(delay.max)}, of the last minute's ${f.plural(delay.records, "record")}` : "–"],
      ["pairs compared", `${f.count(join.candidates)}${join.candidates > 0 ? `, of which ${f.share(join.output / join.candidates)} are results` : ""}`],
    ]);
    const last = epochs.at(-1)?.output[index] ?? null;
    const at = epochs.map((epoch) => epoch.at), delays = epochs.map((epoch) => epoch.resultDelay[index]);
    this.charts[0].show([at, epochs.map((epoch) => epoch.output[index])], `${f.count(last)} in the last one`);
    this.charts[1].show([at, delays], f.duration(delays.findLast((one) => one !== null) ?? null));
    const rows = SPANS.map(([span, name]) => ({ name, estimate: join.completeness?.[span] ?? null }));
    table(this.found, [
      { name: "time", row: true, of: (row) => row.name },
      { name: "found", of: (row) => (row.estimate ? f.percent(row.estimate.share) : "–") },
      { name: "between", of: (row) => (row.estimate ? `${f.percent(row.estimate.low)} and ${f.percent(row.estimate.high)}` : "–") },
      { name: "lost to shedding", of: (row) => (row.estimate ? f.share(row.estimate.lostToShedding) : "–") },
      { name: "lost to lateness", of: (row) => (row.estimate ? f.share(row.estimate.lostToLateness) : "–") },
    ], rows, (row) => row.name);
  }
}

class StreamPanel {
  constructor(name) {
    this.facts = h("dl");
    this.charts = [
      new Chart({ title: "Records of an epoch", format: f.short, lines: [{ name: "records", colour: "--blue", fill: true }, { name: "shed or late", colour: "--red" }] }),
      new Chart({ title: "Event time lags by", format: f.duration, lines: [{ name: "lag", colour: "--teal", fill: true }] }),
      new Chart({ title: "Records that wait", format: f.short, floor: 1, lines: [{ name: "backlog", colour: "--orange", fill: true }] }),
    ];
    this.parts = [
      h("section", { class: "card", "aria-label": `Stream ${name}` }, h("h2", {}, `Stream ${name}`), this.facts),
      h("div", { class: "charts" }, this.charts.map((chart) => chart.figure)),
    ];
  }

  show({ streams, epochs, joins }, index) {
    const stream = streams[index];
    facts(this.facts, [
      ["joined by", joins.filter((join) => join.streams.includes(stream.name)).map((join) => join.name).join(", ")],
      ["records", `${f.count(stream.input)}, ${f.short(stream.perSecond)} a second`],
      ...COUNTERS.map(([field, name]) => [name, f.count(stream[field])]),
      ["watermark", f.time(stream.watermark)], ["lag", f.duration(stream.lagSeconds)],
      ["waits to be read", f.count(stream.backlog)], ["stored", f.bytes(stream.storedBytes)],
    ]);
    const at = epochs.map((epoch) => epoch.at), of = (field) => epochs.map((epoch) => epoch[field][index]);
    this.charts[0].show([at, of("input"), of("lost")], `${f.count(epochs.at(-1)?.input[index] ?? null)} in the last one`);
    this.charts[1].show([at, of("lag")], f.duration(stream.lagSeconds));
    this.charts[2].show([at, of("backlog")], f.count(stream.backlog));
  }
}

/** The tabs: that of all, then one for each join and each stream. */
export class Tabs {
  constructor(overview) {
    this.overview = overview;
    this.panels = new Map();
    this.chosen = "all";
    byId("tabs").addEventListener("keydown", (event) => this.move(event));
    addEventListener("hashchange", () => this.choose(this.wanted()));
  }

  wanted() {
    const id = decodeURIComponent(location.hash.slice(1));
    return this.entries?.some((entry) => entry.id === id) ? id : "all";
  }

  show(live) {
    const entries = [
      { id: "all", name: "All", kind: "" },
      ...live.joins.map((join, index) => ({ id: `join:${join.name}`, name: join.name, kind: "join", index })),
      ...live.streams.map((stream, index) => ({ id: `stream:${stream.name}`, name: stream.name, kind: "stream", index })),
    ];
    const first = !this.entries;
    this.entries = entries;
    keyed(byId("tabs"), entries, (entry) => entry.id, (entry) => h("button", { role: "tab", type: "button", id: entry.id === "all" ? "tab-all" : `tab-${entry.id}`, "aria-controls": `panel-${entry.id}`, onclick: () => this.choose(entry.id) }, entry.kind ? h("small", {}, `${entry.kind} `) : null, entry.name));
    const others = entries.slice(1);
    keyed(byId("panels"), others, (entry) => entry.id, (entry) => {
      const panel = entry.kind === "join" ? new JoinPanel(entry.name) : new StreamPanel(entry.name);
      this.panels.set(entry.id, panel);
      return h("section", { role: "tabpanel", id: `panel-${entry.id}`, "aria-labelledby": `tab-${entry.id}`, hidden: true }, panel.parts);
    });
    for (const entry of others) this.panels.get(entry.id).show(live, entry.index);
    if (first) this.choose(this.wanted(), false);
    else this.mark();
  }

  choose(id, addressed = true) {
    this.chosen = id;
    if (addressed) history.replaceState(null, "", id === "all" ? location.pathname : `#${encodeURIComponent(id)}`);
    this.mark();
    this.overview.fit();
    for (const panel of this.panels.values()) for (const chart of panel.charts) chart.fit();
  }

  mark() {
    for (const tab of byId("tabs").children) {
      const chosen = tab.dataset.key === this.chosen;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    byId("panel-all").hidden = this.chosen !== "all";
    for (const panel of byId("panels").children) panel.hidden = panel.dataset.key !== this.chosen;
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = Array.from(byId("tabs").children), at = tabs.findIndex((tab) => tab.dataset.key === this.chosen);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    this.choose(next.dataset.key);
    next.focus();
    event.preventDefault();
  }
}
