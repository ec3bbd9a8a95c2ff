// The autoscaler's ledger: as a timeline, as a list, and one decision with all that was known: "why so many workers?".

import { byId, h, keyed, s, table, text } from "./dom.js";
import { ask } from "./feed.js";
import * as f from "./format.js";

const KINDS = { ALLOCATE: "more workers", DEALLOCATE: "fewer workers", REPLAN: "cut anew", ENLARGE: "more memory", REORDER: "other ways", HOLD: "hold" };

/** What a decision is, in a few words. */
export function headline(one) {
  const only = one.kind !== "HOLD" && one.mode === "Recommend" ? " (recommended)" : "";
  if (one.kind === "REORDER") return "streams meet in another way";
  if (one.kind === "HOLD") return `hold at ${f.plural(one.workers, "worker")}`;
  return one.target === one.workers ? `cut anew among ${f.plural(one.workers, "worker")}${only}` : `${one.workers} → ${f.plural(one.target, "worker")}${only}`;
}

export class Decisions {
  constructor() {
    byId("why").addEventListener("click", () => this.why(null));
    this.live = null;
  }

  show(live) {
    this.live = live;
    const { decisions, about, plan, series, run } = live, last = decisions.at(-1);
    const workers = plan ? f.plural(plan.workers, "worker") : "workers";
    text(byId("why"), plan ? `Why ${workers}?` : "Why so many workers?");
    byId("why").hidden = !decisions.length;
    text(byId("decision-now"), last ? `${headline(last)}: ${last.sentence}.` : about.elastic ? "Nothing has been decided yet." : `${workers}; nothing scales this run from within. On Kubernetes the operator decides: kubectl streamjoin explain ${run.name}`);
    byId("timeline").replaceChildren(...(series.at.length ? [this.drawing(series, decisions, run)] : []));
    const newest = [...decisions].reverse();
    keyed(byId("decisions"), newest, (one) => one.number, (one) => h("li", {}, h("time"), h("b"), h("span"), h("button", { type: "button", onclick: () => this.why(one.number) }, "why?")), (child, one) => {
      text(child.children[0], f.time(one.firstAt));
      text(child.children[1], headline(one));
      const came = one.realised ? ` Plan ${one.realised.generation}: τ ${f.tau(one.realised.tau)}, ${f.count(one.realised.movedTuples)} tuples moved, a pause of ${f.duration(one.realised.pauseSeconds)}.` : "";
      text(child.children[2], `${one.sentence}.${came}${one.count > 1 ? ` (said ${f.count(one.count)} times, until ${f.time(one.lastAt)})` : ""}`);
      child.children[3].setAttribute("aria-label", `why: ${headline(one)}, ${f.time(one.firstAt)}`);
    });
  }

  drawing(series, decisions, run) {
    const width = 900, height = 120, left = 30, bottom = 96, top = 14;
    const begin = run.startedAt, end = Math.max(series.at.at(-1), begin + 1), most = Math.max(2, ...series.workers, ...decisions.map((one) => one.target));
    const x = (at) => left + ((width - left - 8) * (Math.min(Math.max(at, begin), end) - begin)) / (end - begin), y = (workers) => bottom - ((bottom - top) * workers) / most;
    const steps = series.at.map((at, index) => `${index ? `V${y(series.workers[index]).toFixed(1)}` : `M${x(begin).toFixed(1)} ${y(series.workers[0]).toFixed(1)}`}H${x(at).toFixed(1)}`);
    const acts = decisions.filter((one) => one.kind !== "HOLD" && one.lastAt >= begin);
    return s("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Workers since ${f.time(begin)}, with ${f.plural(acts.length, "change")}; the list below says each` },
      s("line", { class: "axis", x1: left, x2: width - 8, y1: bottom, y2: bottom }),
      ...[0, most].map((workers) => s("text", { x: left - 6, y: y(workers) + 4, "text-anchor": "end" }, String(workers))),
      s("text", { x: left, y: height - 6 }, f.time(begin)), s("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, f.time(end)),
      s("path", { class: "workers", d: steps.join("") }),
      ...acts.map((one) => s("path", { class: `mark ${one.kind}`, d: mark(one, x(one.firstAt), y(one.target)), onclick: () => this.why(one.number) }, s("title", {}, `${f.time(one.firstAt)}: ${headline(one)}: ${one.sentence}`))));
  }

  /** Opens what is known of a decision; `number` null: of those that made the workers as many as they are. */
  async why(number) {
    const dialog = byId("why-dialog"), body = byId("why-body");
    body.replaceChildren(h("p", {}, "…"));
    const { plan, decisions } = this.live;
    text(byId("why-title"), number === null ? `Why ${f.plural(plan.workers, "worker")}?` : headline(decisions.find((one) => one.number === number)));
    if (!dialog.open) dialog.showModal();
    const { status, value } = await ask("v1/decisions");
    if (status !== 200) return body.replaceChildren(h("p", {}, value.error));
    const record = (index) => value.records[index - value.forgotten];
    if (number !== null) return body.replaceChildren(...(record(number) ? told(record(number)) : [h("p", {}, "The ledger has forgotten it.")]));
    const led = [...value.records].reverse().find((one) => one.realised && one.realised.generation <= plan.generation && one.decision.target === plan.workers);
    const last = value.records.at(-1);
    body.replaceChildren(
      ...(led ? [h("h3", {}, "How it came to that"), ...told(led)] : [h("p", {}, `Plan ${plan.generation} is not the outcome of a decision: it is the first plan, or somebody has put it.`)]),
      ...(last && last !== led ? [h("h3", {}, "Why not another number now"), ...told(last)] : []));
  }
}

const mark = (one, x, y) => (one.target > one.workers ? `M${x} ${y - 9}l7 12h-14z` : one.target < one.workers ? `M${x} ${y + 9}l7 -12h-14z` : `M${x} ${y - 8}l7 8l-7 8l-7 -8z`);

/** By its name in the manifest; waits are in seconds. */
const threshold = ([name, value]) => (name.endsWith("_after") ? `${name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())} ${f.duration(value)}` : `${name} ${value}`);

/** A record of the ledger with all that was known, as elements. */
function told({ decision, first_at: first, last_at: last, count, realised }) {
  const inputs = decision.inputs, found = [h("p", {}, h("b", {}, headline(decision)), `: ${decision.sentence}. ${f.time(first)}${count > 1 ? `, the same until ${f.time(last)}` : ""}.`)];
  if (inputs) found.push(h("p", {}, `It was decided by a sample of plan ${inputs.generation}: τ ${f.tau(inputs.tau_max)} at most, ${f.tau(inputs.tau_mean)} on average${inputs.shed_fraction ? `, ${f.share(inputs.shed_fraction)} shed` : ""}. Thresholds: ${Object.entries(decision.thresholds).map(threshold).join(", ")}.`));
  if (decision.reordering) {
    const ways = h("table"), { changes, rounds, seconds, measured } = decision.reordering, { exchange } = measured;
    const rate = (name) => ({ name, of: (one) => `${f.short(one[name === "sent" ? "bytes_before" : "bytes_after"])}B/s` });
    table(ways, [
      { name: "new tuples of", row: true, of: (one) => one.stream }, { name: "met", left: true, of: (one) => one.before }, rate("sent"),
      { name: "meet", left: true, of: (one) => one.after }, rate("send"),
    ], changes, (one) => one.stream, "How streams met, and meet now, as priced by what was measured");
    found.push(h("div", { class: "wide" }, ways), h("p", {}, `${rounds[0]} → ${f.plural(rounds[1], "round")} of the exchange, ${f.duration(seconds[0])} → ${f.duration(seconds[1])} of an epoch. Measured: a round ${f.duration(exchange.round_seconds)}, ${f.short(exchange.bytes_per_second)}B/s of each of ${f.plural(exchange.tasks, "task")}; ${measured.rates.map(f.short).join(", ")} tuples/s; ${measured.held.map(f.short).join(", ")} held.`));
  }
  if (realised) found.push(h("p", {}, `It led to plan ${realised.generation}: τ is ${f.tau(realised.tau_max)}${decision.prediction ? `, ${f.tau(decision.prediction.tau_max)} was expected` : ""}; ${f.count(realised.moved_tuples)} tuples moved, the pause was ${f.duration(realised.pause_seconds)}.`));
  if (decision.verdicts.length) {
    const rules = h("table");
    table(rules, [
      { name: "rule", row: true, of: (one) => one.rule }, { name: "says", left: true, class: "text", of: (one) => KINDS[one.kind] },
      { name: "because", left: true, class: "free", of: (one) => `${one.reason}: ${one.sentence}` },
    ], decision.verdicts, (one) => one.rule, "What each rule said");
    found.push(h("div", { class: "wide" }, rules));
  }
  if (decision.candidates.length) {
    const bills = h("table"), cost = (bill, name) => (!bill ? "" : bill[name] > 0 && bill[name] < 0.001 ? "< 0.001" : bill[name].toPrecision(3));
    table(bills, [
      { name: "workers", row: true, of: (one) => String(one.workers) }, { name: "τ at most", of: (one) => f.tau(one.prospect.tau_max) },
      { name: "moves", of: (one) => f.short(one.prospect.moved_tuples) },
      ...["workers", "moving", "pause", "shed", "change"].map((name) => ({ name: `${name} (wh)`, of: (one) => cost(one.bill, name) })),
    ], decision.candidates, (one) => one.workers, "What was considered, with its bill in worker-hours");
    found.push(h("div", { class: "wide" }, bills));
  }
  return found;
}
