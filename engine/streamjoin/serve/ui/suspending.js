// Suspending a StreamJoin and letting it go on, for those whom the operator lets; after a look at what that does.

import { h, text } from "./dom.js";
import { ask } from "./feed.js";
import * as f from "./format.js";

export class Suspending {
  /** `changed` is called when something was done. */
  constructor(changed) {
    this.changed = changed;
    this.wanted = null; // what was asked for and is to be confirmed: true, suspend; false, resume
    this.begin = h("button", { type: "button", onclick: () => this.want(!this.join.suspended) });
    this.what = h("p", { role: "status" });
    this.sure = h("button", { type: "button", class: "strong", onclick: () => this.carryOut() });
    this.leave = h("button", { type: "button", onclick: () => this.want(null) }, "Leave it");
    this.choice = h("p", { class: "row" }, this.sure, this.leave);
    this.box = h("section", { id: "suspending", "aria-label": "Suspend and resume" }, h("h3", {}, "Suspend and resume"), this.what, h("p", {}, this.begin), this.choice);
  }

  forget() {
    this.wanted = null;
    this.said = "";
  }

  /** `join`: one of `found.streamJoins`. */
  show(join, { mayWrite, takesToken }) {
    this.join = join;
    if (this.wanted === join.suspended || !mayWrite) this.wanted = null; // somebody else was quicker, or the token is no more
    const { wanted } = this, act = join.suspended ? "resume" : "suspend";
    this.begin.hidden = !mayWrite || wanted !== null;
    this.choice.hidden = wanted === null;
    text(this.begin, join.suspended ? "Resume …" : "Suspend …");
    text(this.sure, wanted ? `Suspend ${join.name}` : `Resume ${join.name}`);
    const command = `kubectl streamjoin ${act} ${join.name} -n ${join.namespace}`;
    const how = takesToken ? "Give the page's token to do it here, or" : "This page has no token by which it could be done here (operator.pageTokenSecret of the chart);";
    const now = join.suspended ? "It is suspended." : "";
    text(this.what, wanted !== null ? does(join, wanted) : [this.said, now, mayWrite ? "" : `${how} ${command} does.`].filter(Boolean).join(" "));
  }

  want(wanted) {
    this.wanted = wanted;
    this.said = "";
    this.changed();
    this.show(this.join, { mayWrite: true, takesToken: true });
    (wanted === null ? this.begin : this.sure).focus();
  }

  async carryOut() {
    const { join, wanted } = this;
    this.wanted = null;
    this.said = "Asking …";
    this.show(join, { mayWrite: true, takesToken: true });
    try {
      const { status, value } = await ask(`v1/streamjoins/${encodeURIComponent(join.namespace)}/${encodeURIComponent(join.name)}/suspend`, { method: "PUT", body: { suspend: wanted } });
      this.said = status === 200 ? "" : value.error;
    } catch {
      this.said = "The operator cannot be reached; whether it was done is not known.";
    }
    this.changed();
  }
}

/** What it will do, in a line. */
function does(join, suspend) {
  const workers = join.workers ? `Its ${f.plural(join.workers, "worker")} and its driver end` : "Its driver and its workers end";
  const what = suspend
    ? `${workers} after the epoch that runs. Its state stays where it is, and what comes meanwhile waits in its sources, for as long as these keep it; resumed, it goes on at the same place.`
    : "Its driver and its workers start, and go on from its checkpoint at the same place: first with what has come meanwhile.";
  return join.paused ? `${what} But spec.paused is true: the operator leaves it alone, and does this once that is false.` : what;
}
