// What there is to see of the whole run: its state, rates, workers, scheme, plans, epochs, streams and troubles.

import { bar } from "./bar.js";
import { Chart } from "./charts.js";
import { byId, facts, h, keyed, s, table, text } from "./dom.js";
import * as f from "./format.js";
import { hotText, picture } from "./scheme.js";

const MOST_AREAS = 100;
const STEPS = ["plan", "tasks", "commit", "publish", "clean"];
const GOOD = ["running", "done"], BAD = ["retrying", "failed"];

export class Overview {
  constructor() {
    this.charts = {
      rates: new Chart({ title: "Tuples a second", format: f.short, lines: [{ name: "in", colour: "--blue", fill: true }, { name: "results", colour: "--green" }] }),
      fullest: new Chart({
        title: "Fullest worker (τ)", format: f.tau, floor: 1,
        lines: [{ name: "τ", colour: "--purple", fill: true }, ...["τ1", "τ2", "τ3"].map((name, index) => ({ name, colour: ["--green", "--yellow", "--red"][index], dash: [5, 4] }))],
      }),
      seconds: new Chart({ title: "An epoch takes", format: f.duration, lines: [{ name: "seconds", colour: "--orange", fill: true }] }),
      lag: new Chart({ title: "Event time lags by", format: f.duration, lines: [{ name: "lag", colour: "--teal", fill: true }] }),
      delay: new Chart({ title: "Records wait for their results (p99)", format: f.duration, lines: [{ name: "p99", colour: "--blue", fill: true }] }),
    };
    byId("charts").append(...Object.values(this.charts).map((chart) => chart.figure));
    this.drawn = "";
  }

  fit() {
    for (const chart of Object.values(this.charts)) chart.fit();
  }

  /** `live`: all sections; `changed`: the names of those that are new. */
  show(live, changed) {
    this.head(live);
    this.tiles(live);
    if (changed.has("series")) this.curves(live);
    if (changed.has("workers") || changed.has("about")) this.workers(live);
    if (changed.has("scheme") || changed.has("coming")) this.scheme(live);
    if (changed.has("plan") || changed.has("coming") || changed.has("switches")) this.plans(live);
    if (changed.has("epochs")) this.epochs(live);
    if (changed.has("streams")) this.streams(live);
    if (changed.has("troubles")) this.troubles(live);
  }

  head({ run, about }) {
    text(byId("name"), run.name);
    document.title = `${run.name}: ${run.doing}`;
    const state = run.doing.split(",")[0], doing = byId("doing");
    text(doing, run.doing);
    doing.className = `badge ${GOOD.includes(state) ? "good" : BAD.includes(state) ? "bad" : "busy"}`;
    const since = f.clock((run.ended ? run.at : Date.now() / 1000) - run.startedAt);
    const parts = [run.epoch === null ? "no epoch yet" : `epoch ${f.count(run.epoch)}`, `plan ${run.generation ?? "–"}`, `runs for ${since}`, about.main ?? "the predicate is chosen with the first input"];
    text(byId("facts"), parts.join(" · "));
  }

  tiles({ rates, workers, streams, about, joins, plan }) {
    const fullest = Math.max(0, ...workers.map((worker) => worker.utilization ?? 0));
    const lags = streams.map((stream) => stream.lagSeconds).filter((lag) => lag !== null);
    const delay = worstDelay(joins);
    const estimates = joins.map((join) => join.completeness?.["1h"]).filter(Boolean);
    const least = estimates.reduce((low, one) => (low === null || one.share < low.share ? one : low), null);
    const shed = streams.reduce((sum, stream) => sum + stream.shed, 0), late = streams.reduce((sum, stream) => sum + stream.late, 0);
    const { tau2, tau3 } = about.thresholds, epoch = rates.epochSeconds;
    const tiles = [
      { id: "input", name: "In", value: `${f.short(rates.inputPerSecond)}/s`, more: `${f.count(rates.input)} in all` },
      { id: "output", name: "Results", value: `${f.short(rates.outputPerSecond)}/s`, more: `${f.count(rates.output)} in all` },
      { id: "epoch", name: "An epoch takes", value: f.duration(epoch.last), more: `p50 ${f.duration(epoch.p50)}, p95 ${f.duration(epoch.p95)}` },
      { id: "tau", name: "Fullest worker", value: workers.length ? f.tau(fullest) : "–", more: `τ2 ${f.tau(tau2)}, τ3 ${f.tau(tau3)}`, kind: fullest >= tau3 ? "bad" : fullest >= tau2 ? "warn" : "" },
      { id: "workers", name: "Workers", value: plan ? f.count(plan.workers) : "–", more: `${about.minWorkers} to ${about.maxWorkers}${about.elastic ? ", scaled" : ""}` },
      { id: "lag", name: "Lag", value: f.duration(lags.length ? Math.max(...lags) : null), more: "of event time" },
      { id: "delay", name: "Results after", value: f.duration(delay?.p99 ?? null), more: delay ? `p50 ${f.duration(delay.p50)}, p99 of the last minute` : "p99 of the last minute" },
      { id: "backlog", name: "Waits to be read", value: f.short(rates.backlog), more: "records", kind: rates.backlog ? "warn" : "" },
      {
        id: "complete", name: "Results found", value: least ? f.percent(least.share) : "–", kind: least && least.share < 1 ? "bad" : "",
        more: shed || late ? `${f.count(shed)} shed, ${f.count(late)} late` : "nothing shed or late",
      },
    ];
    keyed(byId("tiles"), tiles, (tile) => tile.id, (tile) => h("div", {}, h("dt", {}, tile.name), h("dd", { id: `tile-${tile.id}` }), h("dd", { class: "more" })), (child, tile) => {
      text(child.children[1], tile.value);
      text(child.children[2], tile.more);
      child.className = tile.kind ?? "";
    });
  }

  curves({ series, rates, about, workers }) {
    const thresholds = ["tau1", "tau2", "tau3"].map((name) => series.at.map(() => about.thresholds[name]));
    const fullest = Math.max(0, ...workers.map((worker) => worker.utilization ?? 0)), last = (values) => values.at(-1) ?? null;
    this.charts.rates.show([series.at, series.input, series.output], `${f.short(rates.inputPerSecond)} in, ${f.short(rates.outputPerSecond)} results`);
    this.charts.fullest.show([series.at, series.fullest, ...thresholds], `${f.tau(fullest)}, ${f.plural(last(series.workers) ?? 0, "worker")}`);
    this.charts.seconds.show([series.at, series.seconds], `${f.duration(rates.epochSeconds.last)}, p95 ${f.duration(rates.epochSeconds.p95)}`);
    this.charts.lag.show([series.at, series.lag], f.duration(last(series.lag)));
    this.charts.delay.show([series.at, series.delay], f.duration(last(series.delay)));
  }

  workers({ workers, about, streams }) {
    const { tau1, tau2, tau3 } = about.thresholds, { amount, unit } = about.capacity;
    text(byId("workers-note"), `τ is what a worker holds of what it may: ${unit === "bytes" ? f.bytes(amount) : `${f.count(amount)} tuples`}. The ticks are τ1 ${f.tau(tau1)}, τ2 ${f.tau(tau2)} and τ3 ${f.tau(tau3)}.`);
    const sheds = workers.some((worker) => worker.shedFactor || worker.wouldShedFactor);
    table(byId("workers"), [
      { name: "worker", row: true, of: (worker) => String(worker.task) },
      { name: "τ", of: (worker) => f.tau(worker.utilization) },
      { name: "how full", left: true, class: "bar", of: (worker) => bar(worker.utilization, about.thresholds) },
      ...streams.map(({ name }) => ({ name: `held ${name}`, of: (worker) => f.count(worker.held[name]) })),
      { name: "busy", of: (worker) => f.duration(worker.busySeconds) },
      { name: "results", of: (worker) => f.count(worker.output) },
      ...(sheds ? [{ name: "sheds", of: (worker) => f.share(worker.shedFactor || worker.wouldShedFactor), kind: (worker) => (worker.shedFactor ? "lost" : "") }] : []),
    ], workers, (worker) => worker.task);
  }

  scheme({ scheme, coming }) {
    const drawn = JSON.stringify([scheme, coming]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    text(byId("scheme-note"), scheme
      ? `${scheme.predicate}. Keys lie to the scale of the tuples that have them; an area's worker joins its left keys with its right ones; grey is where pairs can match; orange ranges are hot.`
      : "The join is cut with the first input.");
    if (!scheme) return byId("scheme").replaceChildren();
    const figures = [picture(scheme, `Plan ${scheme.generation}, running`)];
    if (coming) {
      let added = scheme.tasks;
      figures.push(picture(coming.scheme, `Plan ${coming.generation}, coming`, coming.keep.map((worker) => worker ?? added++)));
    }
    byId("scheme").replaceChildren(...figures);
    this.words(scheme);
  }

  /** The scheme in words, for who cannot see it or wants to know exactly. */
  words(scheme) {
    const box = byId("scheme-text"), hot = scheme.sides.flatMap((side) => side.hot.map((one) => hotText(side, one)));
    if (!box.children.length) {
      box.append(h("h3", {}, "Hot keys"), h("ul", { id: "hot" }), h("h3", { id: "areas-title" }, "Who joins what"),
        h("div", { class: "wide areas", role: "region", "aria-labelledby": "areas-title", tabindex: "0" }, h("table", { id: "areas" })));
    }
    box.children[0].hidden = box.children[1].hidden = !hot.length;
    keyed(byId("hot"), hot, (line) => line, (line) => h("li", {}, line));
    const named = scheme.areas.some((area) => area.keys.some(Boolean));
    table(byId("areas"), [
      { name: "worker", row: true, of: ({ area }) => String(area.task) },
      ...scheme.sides.map((side, index) => ({ name: named ? `keys of ${side.name}` : side.name, left: true, class: "text", of: ({ area }) => part(area, index) })),
    ], scheme.areas.slice(0, MOST_AREAS).map((area, index) => ({ area, index })), ({ index }) => index, scheme.areas.length > MOST_AREAS ? `The first ${MOST_AREAS} of ${f.count(scheme.areas.length)} areas` : "");
  }

  plans({ plan, coming, switches }) {
    if (!plan) return text(byId("plan-now"), "There is no plan yet.");
    text(byId("plan-now"), `Plan ${plan.generation} runs on ${f.plural(plan.workers, "worker")}.${plan.warning ? ` ${plan.warning}.` : ""}${plan.dropped ? ` The last plan was dropped: ${plan.dropped}` : ""}`);
    const box = byId("coming");
    box.hidden = !coming;
    if (coming) {
      const phase = { WaitingForWorkers: `waits for workers, ${plan.readyWorkers} are ready`, Preparing: `workers fetch state, ${f.bytes(coming.toFetchBytes)} to come`, Switching: "begins with the next epoch" }[plan.phase] ?? plan.phase;
      box.replaceChildren(h("p", { id: "coming-now" }, `Plan ${coming.generation} for ${f.plural(coming.workers, "worker")} is coming: ${phase}${plan.absence ? `; ${plan.absence}` : ""}.`), ...moved(coming));
    }
    const fates = plan.ended.filter((one) => one.fate !== "Switched");
    const rows = [
      ...switches.map((one) => ({ ...one, fate: one.generation === plan.generation ? "runs" : "ran", what: `${f.count(one.movedTuples)} tuples moved, ${f.count(one.keptTuples)} stayed; it took ${f.duration(one.waitedSeconds)} to come, and a pause of ${f.duration(one.pauseSeconds)}` })),
      ...fates.map((one) => ({ ...one, at: null, what: one.reason })),
    ].sort((one, other) => other.generation - one.generation);
    table(byId("plans"), [
      { name: "plan", row: true, of: (one) => String(one.generation) },
      { name: "since", of: (one) => f.time(one.at) },
      { name: "fate", left: true, class: "text", of: (one) => one.fate.toLowerCase() },
      { name: "what it took", left: true, class: "free", of: (one) => one.what },
    ], rows, (one) => `${one.generation} ${one.fate}`);
    byId("plans").parentElement.hidden = !rows.length;
  }

  epochs({ epochs }) {
    const box = byId("steps"), longest = Math.max(1e-6, ...epochs.map((epoch) => epoch.seconds)), width = 900 / Math.max(30, epochs.length);
    const drawing = s("svg", { class: "steps", viewBox: "0 0 900 120", preserveAspectRatio: "none", role: "img", "aria-label": `Steps of the last ${f.plural(epochs.length, "epoch")}; the longest took ${f.duration(longest)}` });
    epochs.forEach((epoch, index) => {
      let below = 120;
      for (const step of STEPS) {
        const height = (118 * (epoch.steps[step] ?? 0)) / longest;
        below -= height;
        if (height > 0) drawing.append(s("rect", { class: `step-${step}`, x: (index * width).toFixed(1), y: below.toFixed(2), width: (width * 0.86).toFixed(1), height: height.toFixed(2) }, s("title", {}, `epoch ${epoch.epoch}, ${step}: ${f.duration(epoch.steps[step])}`)));
      }
    });
    if (!box.children.length) {
      box.append(h("p", { class: "muted" }), h("div"), h("ul", { class: "legend" }, STEPS.map((step) => h("li", {}, h("span", { class: `key step-${step}` }), step))));
    }
    text(box.children[0], epochs.length ? `The last ${f.plural(epochs.length, "epoch")}, each with its steps; the longest took ${f.duration(longest)}.` : "No epoch has ended yet.");
    box.children[1].replaceChildren(drawing);
    table(byId("step-table"), [
      { name: "epoch", row: true, of: (epoch) => f.count(epoch.epoch) },
      { name: "took", of: (epoch) => f.duration(epoch.seconds) },
      ...STEPS.map((step) => ({ name: step, of: (epoch) => f.duration(epoch.steps[step] ?? null) })),
      { name: "in", of: (epoch) => f.count(sum(epoch.input)) },
      { name: "results", of: (epoch) => f.count(sum(epoch.output)) },
    ], epochs.slice(-6).reverse(), (epoch) => epoch.epoch);
  }

  streams({ streams }) {
    table(byId("streams"), [
      { name: "stream", row: true, of: (stream) => stream.name },
      { name: "in/s", of: (stream) => f.count(stream.perSecond) },
      { name: "total", of: (stream) => f.count(stream.input) },
      ...COUNTERS.map(([field, name, kind]) => ({ name, of: (stream) => f.count(stream[field]), kind: (stream) => (stream[field] ? kind : "") })),
      { name: "watermark", of: (stream) => f.time(stream.watermark) },
      { name: "lag", of: (stream) => f.duration(stream.lagSeconds) },
      { name: "backlog", of: (stream) => f.count(stream.backlog), kind: (stream) => (stream.backlog ? "some" : "") },
    ], streams, (stream) => stream.name);
  }

  troubles({ troubles }) {
    const shown = troubles.length ? [...troubles].reverse() : [{ at: null, kind: "none", text: "There were none." }];
    const names = { failure: "failed", warning: "warning", notice: "warning", none: "" };
    keyed(byId("troubles"), shown, (one) => `${one.kind} ${one.text}`, (one) => h("li", { class: one.kind === "notice" ? "notice-kind" : one.kind }, h("time"), h("b", {}, names[one.kind]), h("span", {}, one.text)), (child, one) => {
      text(child.children[0], one.at === null ? "" : f.time(one.at));
    });
  }
}

export const COUNTERS = [["accepted", "joined", ""], ["late", "late", "some"], ["shed", "shed", "lost"], ["wouldShed", "would shed", "some"], ["rejected", "rejected", "some"], ["filtered", "filtered", ""], ["unmatchable", "no key", ""]];

/** Which part of a side an area has: its keys, and of their tuples the share that its units are. */
function part(area, side) {
  const keys = area.keys[side] ?? "all", pieces = side ? area.columns : area.rows, width = sum(pieces.map(([begin, end]) => end - begin));
  return `${keys}${area.holds[side] ? "" : ", only to probe"} (${f.share(width)})`;
}

/** Of the join whose records wait longest for their results. */
const worstDelay = (joins) => joins.map((join) => join.resultDelay).filter(Boolean).reduce((worst, one) => (worst && worst.p99 >= one.p99 ? worst : one), null);

const sum = (values) => values.reduce((one, other) => one + other, 0);

/** What a plan moves, as elements. */
export function moved(record) {
  const list = h("dl");
  facts(list, [
    ["moves", `${f.count(record.movedTuples)} tuples; no plan of so many workers, none fuller, moves less than ${f.count(record.leastTuples)}`],
    ["stays", `${f.count(record.keptTuples)} tuples`],
    ["anew", `${f.count(record.naiveTuples)} tuples would move if every worker began anew`],
  ]);
  const moves = record.moves.map((move) => h("li", {}, `${move.from === null ? "storage" : `worker ${move.from}`} → task ${move.to}: ${f.count(move.tuples)} tuples`));
  return [list, ...(moves.length ? [h("details", {}, h("summary", {}, `Between whom (${moves.length})`), h("ul", {}, moves))] : [])];
}
