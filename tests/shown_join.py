"""A join whose epochs a test runs one by one, with its page; and what a browser shows of it."""

from __future__ import annotations

import json
import random
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import Page
from prometheus_client.parser import text_string_to_metric_families

from harness import SECOND, START, Input, driver_for, join_of, make_batch, make_job
from streamjoin.api.loop import Done, Event, Waiting
from streamjoin.bearer import Token
from streamjoin.cli.live import LiveRun
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject
from streamjoin.epoch.ports import EpochResult
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.api import PlanApi
from streamjoin.serve.live import Board
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

STEPS = 50
ORIGIN = 1_800_000_000.0


class Shown:
    """A join whose epochs a test runs one by one, with its page."""

    def __init__(
        self, root: Path, *, token: Token | None = None, steps: int = STEPS, near: str = "abs(l.k - r.k) <= 3", namespace: str | None = None
    ) -> None:
        """``near``: the condition of its first join. ``namespace``: as of a join that an operator has run."""
        rng = random.Random(11)

        def stream() -> Input:
            batches = []
            for epoch in range(steps):
                late = -6 * SECOND if epoch > 10 and epoch % 3 == 0 else 0
                hot = [rng.choice((7, rng.randint(0, 400))) for _ in range(60)]
                rows = [(epoch * 60 + i, hot[i], 0, START + epoch * SECOND + i * 10_000 + (late if i < 4 else 0)) for i in range(60)]
                batches.append(make_batch(rows, pa.int64()))
            return Input(batches, [1] * steps)

        far = join_of(root, name="far", on=f"({near}) AND l.v + r.v < 9", window={"within": "2s"})
        far["output"] = {"select": ["l.rid AS a"], "sink": {"files": {"path": str(root / "far"), "format": "parquet"}}}
        job = make_job(root, joins=[join_of(root, name="near", on=near, window={"within": "5s"}), far], watermark="1s", capacity=1000)
        job = replace(job, min_workers=1, max_workers=4, streams=tuple(replace(one, expected_rate=None) for one in job.streams))
        self.driver = driver_for(job, (stream(), stream()), ObjectStorage(str(root / "state")), InlineRunner())
        self.metrics = Metrics(job)
        self.watched = Steps(self.driver, [self.metrics])
        self.now = ORIGIN
        subject = Subject("inline", "streamjoin run x", self.driver, namespace=namespace)
        self.state = RunState(subject, ORIGIN, clock=lambda: self.now)
        self.live = LiveRun(self.state, board=lambda observe: Board(observe, pause_seconds=0.02, beat_seconds=0.5))
        self.api = PlanApi(self.driver, self.metrics.health, token=token, live=self.live.board, draw=self.live.draw)
        self.server = DriverServer(self.metrics, api=self.api)
        self.url = self.server.url
        self.watched.start()

    def step(self) -> EpochResult:
        """One epoch, a second after the one before."""
        result = self.watched.step(final=True)
        assert result is not None, "the script has as many steps as the input has epochs"
        self.now = ORIGIN + len(self.state.history.samples) + 1.0
        self.tell(Done(result, self.now, self.driver.plan_status()))
        self.tell(Waiting())
        return result

    def tell(self, event: Event) -> None:
        self.state.see(event)
        self.live.show(event)

    def get(self, path: str, method: str = "GET", body: Any = None) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def samples(self) -> dict[tuple[str, ...], float]:
        """The metrics, by name and labels besides the join's name."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                labels = [value for label, value in sorted(sample.labels.items()) if label != "name"]
                found[sample.name, *labels] = sample.value
        return found


READ = """() => {
  const texts = (row) => Array.from(row.children, (cell) => cell.textContent);
  const cells = (id) => Array.from(document.querySelectorAll(`#${id} tbody tr`), texts);
  const heads = (id) => Array.from(document.querySelectorAll(`#${id} thead th`), (cell) => cell.textContent);
  const rows = (id) => cells(id).map((row) => Object.fromEntries(row.map((text, index) => [heads(id)[index], text])));
  const text = (id) => document.getElementById(id)?.textContent ?? null;
  const facts = (id) => Object.fromEntries(Array.from(document.getElementById(id)?.querySelectorAll("dl.facts dt") ?? [],
    (term) => [term.textContent, term.nextElementSibling.textContent]));
  return {
    facts: text("facts"), doing: text("doing"), tiles: Object.fromEntries(Array.from(document.querySelectorAll("#tiles > div"),
      (tile) => [tile.dataset.key, Array.from(tile.children, (part) => part.textContent).slice(1)])),
    workers: rows("workers"), streams: rows("streams"), steps: rows("step-table"), plans: rows("plans"), plan: text("plan-now"),
    coming: document.getElementById("coming").hidden ? null : text("coming-now"),
    drawn: Array.from(document.querySelectorAll("#scheme figure"), (figure) => Array.from(figure.querySelectorAll(".area"),
      (area) => [Number(area.dataset.task), ...["y", "height", "x", "width"].map((name) => Number(area.getAttribute(name)))])),
    near: facts("panel-join:near"), far: facts("panel-join:far"), left: facts("panel-stream:l"),
    troubles: Array.from(document.querySelectorAll("#troubles li"), (one) => one.textContent),
    bars: document.querySelectorAll("#steps rect").length,
  };
}"""


def read(page: Page, epoch: int) -> Any:
    """What the page shows once it shows this epoch."""
    page.wait_for_selector(f"html[data-epoch='{epoch}']", state="attached")
    return page.evaluate(READ)
