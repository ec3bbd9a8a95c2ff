// The page of one running join: follows /v1/live, and shows each section as it comes.

import { Change } from "./change.js";
import { Decisions } from "./decisions.js";
import { byId, text } from "./dom.js";
import { adoptToken, follow, setToken, token } from "./feed.js";
import { Overview } from "./overview.js";
import { Tabs } from "./parts.js";

adoptToken();

const live = {};
const overview = new Overview(), tabs = new Tabs(overview), decisions = new Decisions(), change = new Change();
let isOver = false;

function show(changed) {
  notice(null);
  document.documentElement.dataset.epoch = String(live.run.epoch ?? "");
  overview.show(live, changed);
  tabs.show(live);
  decisions.show(live);
  change.show(live);
  link(live.mayWrite ? "live" : "live, read-only");
}

const anew = follow("v1/live", {
  event(kind, value) {
    if (kind === "end") {
      isOver = true;
      return link("the run is over");
    }
    isOver = false;
    Object.assign(live, value);
    show(new Set(Object.keys(value)));
  },
  lost(why) {
    if (!isOver) link(`${why}; trying again`);
  },
  refused(status, error) {
    link("not connected");
    notice(status === 401 ? "This join asks for a token." : error);
    if (status === 401 && !byId("token-dialog").open) askToken(token() ? "The token is not the right one." : "This join asks for a token. It is kept in this tab alone.");
  },
});

function link(what) {
  text(byId("link"), what);
}

function notice(what) {
  byId("notice").hidden = what === null;
  text(byId("notice"), what ?? "");
}

function askToken(why) {
  text(byId("token-why"), why);
  byId("token").value = "";
  byId("token-dialog").showModal();
}

byId("ask-token").addEventListener("click", () => askToken(token() ? "This tab has a token. Another replaces it." : "The token is kept in this tab alone, until it is closed."));
byId("token-form").addEventListener("submit", (event) => {
  setToken(event.submitter?.value === "forget" ? null : byId("token").value.trim());
  anew();
});
