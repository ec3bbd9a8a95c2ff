// What a person may do: put another plan, after a look at what it would move; pause scaling. Only for those whom the run lets.

import { byId, h, table, text } from "./dom.js";
import { ask } from "./feed.js";
import * as f from "./format.js";
import { bar } from "./bar.js";
import { moved } from "./overview.js";
import { picture } from "./scheme.js";

const MODELS = ["adsp", "square", "hash", "dynamic", "readj", "biclique", "broadcast", "handshake"];

export class Change {
  constructor() {
    this.live = null;
    this.workers = h("input", { id: "change-workers", type: "number", min: 1, value: 1, step: 1 });
    this.model = h("select", { id: "change-model" }, MODELS.map((model) => h("option", { value: model }, model)));
    this.anew = h("input", { id: "change-anew", type: "checkbox" });
    this.said = h("p", { role: "status", id: "change-said" });
    this.shown = h("div", { id: "preview" });
    const fields = [
      h("label", { for: "change-workers" }, "Workers"), this.workers, h("label", { for: "change-model" }, "Model"), this.model,
      this.anew, h("label", { for: "change-anew" }, "cut anew, also for as many"), h("button", { type: "submit" }, "Show what it would move"),
    ];
    this.form = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); this.preview(); } }, fields);
    this.box = h("section", { "aria-labelledby": "change-title" }, h("h3", { id: "change-title" }, "Another plan"), this.form, this.said, this.shown);
    this.readOnly = h("p", { class: "muted" }, "Read-only: give the run's token to put plans.");
    this.stopping = h("p", { class: "muted", id: "stopping" });
    byId("change").append(this.box, this.readOnly, this.stopping);
    this.pause = h("button", { type: "button", id: "pause", onclick: () => this.pauseScaling() });
    byId("why").parentElement.append(" ", this.pause);
    this.touched = false;
    this.form.addEventListener("input", () => { this.touched = true; });
  }

  show(live) {
    this.live = live;
    const { plan, about, mayWrite, scheme, run } = live;
    text(this.stopping, stopping(run.name, about));
    this.box.hidden = !mayWrite || !plan;
    this.readOnly.hidden = Boolean(mayWrite);
    this.workers.min = about.minWorkers;
    this.workers.max = about.maxWorkers;
    if (!this.touched && plan) {
      this.workers.value = plan.workers;
      this.model.value = scheme.model;
    }
    this.pause.hidden = !mayWrite || !about.elastic || about.scaling === "Off";
    text(this.pause, about.pausedBy === null ? "Pause scaling" : "Let it scale again");
    byId("why").parentElement.hidden = !live.decisions.length && this.pause.hidden;
    if (this.generation !== undefined && plan && plan.generation !== this.generation) this.forget(""); // what was shown is of another plan
  }

  forget(said) {
    this.generation = undefined;
    this.shown.replaceChildren();
    text(this.said, said);
  }

  async preview() {
    const wish = { workers: Number(this.workers.value), model: this.model.value, replan: this.anew.checked };
    this.forget("Planning …");
    const { status, value } = await this.asked("v1/plan/preview", { method: "POST", body: wish });
    if (status !== 200) return text(this.said, value.error);
    if (!value.changed) return text(this.said, "The plan that runs serves as well: nothing would move.");
    this.generation = this.live.plan.generation;
    text(this.said, `Plan ${value.generation} for ${f.plural(value.workers, "worker")} (${value.model}): so far only a preview.${value.warning ? ` ${value.warning}.` : ""}`);
    const full = h("table");
    table(full, [
      { name: "task", row: true, of: (one) => String(one.task) },
      { name: "goes on from", of: (one) => (one.from === null ? "new" : `worker ${one.from}`) },
      { name: "τ", of: (one) => f.tau(one.tau) },
      { name: "how full", left: true, class: "bar", of: (one) => bar(one.tau, this.live.about.thresholds) },
    ], value.utilization.map((tau, task) => ({ task, tau, from: value.keep[task] })), (one) => one.task, "What each worker would hold");
    let added = this.live.plan.workers;
    this.shown.replaceChildren(h("div", { class: "preview" }, moved(value.moved), h("div", { class: "wide" }, full),
      value.shapes ? h("div", { class: "schemes" }, picture(value.shapes, `Plan ${value.generation}, a preview`, value.keep.map((worker) => worker ?? added++))) : null,
      h("p", { class: "row" },
        h("button", { type: "button", class: "strong", onclick: () => this.put(value) }, `Apply plan ${value.generation}`),
        h("button", { type: "button", onclick: () => this.forget("") }, "Leave it"))));
  }

  async put(preview) {
    const { status, value } = await this.asked("v1/plan", { method: "PUT", body: preview.put });
    this.touched = false;
    this.forget(status === 202 ? `Plan ${preview.generation} is on its way.` : status === 200 ? "That plan runs already." : value.error);
  }

  async pauseScaling() {
    const { status, value } = await this.asked("v1/scaling", { method: "PUT", body: { paused: this.live.about.pausedBy === null, by: "the page" } });
    if (status !== 200) text(this.said, value.error);
  }

  async asked(path, request) {
    try {
      return await ask(path, request);
    } catch {
      return { status: 0, value: { error: "The run cannot be reached." } };
    }
  }
}

/** How the whole join is stopped: not from here, where nobody has the right to. */
function stopping(name, { namespace, command }) {
  if (namespace === null) return `To stop it and keep its state: Ctrl-C where it runs; ${command} goes on at the same place.`;
  const act = (word) => `kubectl streamjoin ${word} ${name} -n ${namespace}`;
  return `To stop it and keep its state: ${act("suspend")}, or the page of all joins (kubectl streamjoin open); ${act("resume")} lets it go on at the same place.`;
}
