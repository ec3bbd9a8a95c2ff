// The page of all StreamJoins that an operator looks after: asks for their statuses every few seconds. Who has its token may suspend them.

import { bar } from "./bar.js";
import { byId, facts, h, keyed, table, text } from "./dom.js";
import { adoptToken, ask, setToken, token } from "./feed.js";
import * as f from "./format.js";
import { Suspending } from "./suspending.js";

adoptToken();

const EVERY_MS = 2000, MOST_DECISIONS = 30;
let found = { at: 0, operator: "", streamJoins: [] }, opened = null, wake = () => {};
const suspending = new Suspending(() => wake());

const id = (join) => `${join.namespace}/${join.name}`;
const condition = (join, type) => join.conditions.find((one) => one.type === type);
const moment = (instant) => (instant ? f.time(Date.parse(instant) / 1000) : "–");
const number = (value) => (value === null || value === undefined ? null : Number(value));
const hours = (value) => (value < 10 ? value.toFixed(1) : f.count(value));

function problem(join) {
  const degraded = condition(join, "Degraded"), ready = condition(join, "Ready");
  if (degraded?.status === "True") return degraded.reason;
  return ready && ready.status !== "True" && !join.suspended ? ready.reason : "";
}

function matches(join, wanted) {
  const words = [join.namespace, join.name, join.phase ?? "", problem(join), join.plan?.model ?? ""].join(" ").toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((word) => words.includes(word));
}

function show() {
  const { streamJoins: all, operator, at } = found, wanted = byId("filter").value.trim();
  const joins = all.filter((join) => matches(join, wanted));
  text(byId("operator"), operator);
  byId("operator").className = `badge ${operator === "active" ? "good" : "busy"}`;
  text(byId("facts"), operator.startsWith("standby") ? "This operator waits for its turn, and has seen nothing; ask the one that is active." : `as of ${f.time(at)}`);
  tiles(all);
  text(byId("shown"), wanted ? `${f.count(joins.length)} of ${f.count(all.length)}` : "");
  byId("none").hidden = joins.length > 0;
  table(byId("joins"), [
    { name: "namespace", left: true, class: "text", of: (join) => join.namespace },
    { name: "name", row: true, class: "text", left: true, once: true, of: (join) => h("button", { type: "button", class: "link", "aria-label": `all about ${id(join)}`, onclick: () => open(id(join)) }, join.name) },
    { name: "phase", left: true, class: "text", of: (join) => (join.suspended ? "Suspended" : join.phase ?? "not looked at yet") },
    { name: "problem", left: true, of: problem, class: "text", kind: (join) => (problem(join) ? "lost" : "") },
    { name: "workers", of: (join) => `${join.workers ?? "–"}${join.desiredWorkers !== null && join.desiredWorkers !== join.workers ? ` → ${join.desiredWorkers}` : ""}` },
    { name: "τ", of: (join) => f.tau(number(join.utilization?.max)) },
    { name: "how full", left: true, class: "bar narrow", of: (join) => bar(number(join.utilization?.max), join.thresholds) },
    { name: "found (1 h)", of: (join) => (join.completeness?.["1h"]?.estimate === undefined ? "–" : f.percent(number(join.completeness["1h"].estimate))) },
    { name: "executor-hours", of: (join) => (join.cost ? hours(join.cost.executorHours) : "–") },
    { name: "avoided", of: (join) => (join.cost ? hours(join.cost.avoidedExecutorHours) : "–") },
    { name: "last commit", of: (join) => moment(join.lastCommit) },
  ], joins, id);
  decisions(joins);
  byId("ask-token").hidden = !found.takesToken;
  text(byId("link"), !found.takesToken ? "live, read-only" : found.mayWrite ? "live" : token() ? "live, read-only: the token is not the right one" : "live, read-only without the token");
  if (opened) about();
}

function tiles(all) {
  const sum = (of) => all.reduce((one, join) => one + of(join), 0), price = all.some((join) => join.cost?.spent);
  const running = all.filter((join) => join.phase === "Running").length, troubled = all.filter(problem).length;
  const entries = [
    { id: "joins", name: "StreamJoins", value: f.count(all.length), more: `${f.count(running)} running` },
    { id: "troubled", name: "With a problem", value: f.count(troubled), more: "see their reasons", kind: troubled ? "bad" : "" },
    { id: "workers", name: "Workers", value: f.count(sum((join) => join.workers ?? 0)), more: `of ${f.count(sum((join) => join.workersLimits[1] ?? 0))} allowed` },
    { id: "hours", name: "Executor-hours", value: hours(sum((join) => join.cost?.executorHours ?? 0)), more: price ? `cost ${f.count(sum((join) => join.cost?.spent ?? 0))}` : "since each was made" },
    { id: "avoided", name: "Avoided", value: hours(sum((join) => join.cost?.avoidedExecutorHours ?? 0)), more: "hours of workers.max all the time" },
  ];
  keyed(byId("tiles"), entries, (one) => one.id, (one) => h("div", {}, h("dt", {}, one.name), h("dd", { id: `tile-${one.id}` }), h("dd", { class: "more" })), (child, one) => {
    text(child.children[1], one.value);
    text(child.children[2], one.more);
    child.className = one.kind ?? "";
  });
}

const change = (one) => `${one.workersBefore ?? "–"} → ${one.workersAfter ?? "–"} workers`;

function decisions(joins) {
  const last = joins.flatMap((join) => join.decisions.map((one) => ({ ...one, join: id(join) }))).sort((one, other) => (one.time < other.time ? 1 : -1)).slice(0, MOST_DECISIONS);
  const shown = last.length ? last : [{ join: "", none: "Nothing has been decided yet." }];
  keyed(byId("decisions"), shown, (one) => `${one.join} ${one.time} ${one.rule} ${one.workersAfter}`, (one) => (one.none ? h("li", {}, one.none) : h("li", {}, h("time", {}, moment(one.time)), h("b", {}, one.join), h("span"))), (child, one) => {
    if (!one.none) text(child.children[2], `${change(one)}, ${(one.outcome ?? "").toLowerCase()}: ${one.message ?? one.reason}`);
  });
}

function open(join) {
  opened = join;
  suspending.forget();
  about();
  byId("dialog").showModal();
}

function about() {
  const join = found.streamJoins.find((one) => id(one) === opened);
  text(byId("dialog-title"), opened);
  if (!join) return byId("dialog-body").replaceChildren(h("p", {}, "It is not there any more."));
  const body = byId("dialog-body");
  if (!body.querySelector("#about-facts")) {
    body.replaceChildren(h("dl", { id: "about-facts" }), suspending.box, h("h3", {}, "Conditions"), h("div", { class: "wide" }, h("table", { id: "about-conditions" })), h("h3", {}, "Decisions"), h("div", { class: "wide" }, h("table", { id: "about-decisions" })));
  }
  suspending.show(join, found);
  const { plan, cost, utilization } = join;
  facts(byId("about-facts"), [
    ["phase", join.phase ?? "–"],
    ["workers", `${join.workers ?? "–"}, ${join.desiredWorkers ?? "–"} desired, ${join.workersLimits.map((limit) => limit ?? "–").join(" to ")} allowed`],
    ["τ", utilization ? `${f.tau(number(utilization.max))} at most, ${f.tau(number(utilization.mean))} on average, by ${utilization.source ?? "–"} (${moment(utilization.at)})` : "not measured"],
    ["plan", plan ? `${plan.generation}: ${plan.model ?? ""}, ${plan.summary ?? ""}${plan.movedTuples === undefined ? "" : `; the last switch moved ${f.count(plan.movedTuples)} tuples`}` : join.firstPlan ?? "none yet"],
    ["last change", join.change ?? "–"],
    ["cost", cost ? `${hours(cost.executorHours)} executor-hours, ${hours(cost.avoidedExecutorHours)} avoided${cost.spent ? `; spent ${cost.spent.toFixed(2)}, avoided ${cost.avoided.toFixed(2)}` : ""}` : "–"],
    ["image", join.image ?? "–"], ["made", moment(join.createdAt)], ["its page", `kubectl streamjoin open ${join.name} -n ${join.namespace}`],
  ]);
  table(byId("about-conditions"), [
    { name: "condition", row: true, of: (one) => one.type }, { name: "status", left: true, class: "text", of: (one) => one.status },
    { name: "reason", left: true, class: "text", of: (one) => one.reason ?? "" }, { name: "since", of: (one) => moment(one.lastTransitionTime) },
    { name: "message", left: true, class: "free", of: (one) => one.message ?? "" },
  ], join.conditions, (one) => one.type);
  table(byId("about-decisions"), [
    { name: "time", row: true, of: (one) => moment(one.time) }, { name: "workers", left: true, class: "text", of: change },
    { name: "outcome", left: true, class: "text", of: (one) => one.outcome ?? "" }, { name: "τ", of: (one) => f.tau(number(one.utilization)) },
    { name: "expected", of: (one) => f.tau(number(one.predictedUtilization)) }, { name: "came true", of: (one) => f.tau(number(one.realizedUtilization)) },
    { name: "why", left: true, class: "free", of: (one) => one.message ?? one.reason ?? "" },
  ], join.decisions, (one) => `${one.time} ${one.rule} ${one.workersAfter}`);
}

byId("filter").addEventListener("input", show);
byId("dialog").addEventListener("close", () => { opened = null; });
byId("ask-token").addEventListener("click", () => {
  byId("token").value = "";
  byId("token-dialog").showModal();
});
byId("token-form").addEventListener("submit", (event) => {
  setToken(event.submitter?.value === "forget" ? null : byId("token").value.trim());
  wake();
});

for (;;) {
  try {
    const { status, value } = await ask("v1/streamjoins");
    byId("notice").hidden = status === 200;
    if (status === 200) {
      found = value;
      show();
      document.documentElement.dataset.at = String(value.at);
    } else text(byId("notice"), value.error);
  } catch {
    text(byId("link"), "the operator cannot be reached; trying again");
  }
  await new Promise((resolve) => { wake = resolve; setTimeout(resolve, EVERY_MS); });
}
