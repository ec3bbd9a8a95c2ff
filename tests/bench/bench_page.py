"""What a page costs that is open: epochs of 1,000 tuples in this process, one after another, with nobody, a client or a browser looking.

    python tests/bench/bench_page.py [--epochs 25] [--rounds 12] [--quick]

Short rounds of all settings alternate, so that other work of the machine meets all alike; each round's epochs follow each other without
a pause, so that there is the least room for anything else. Processor time is that of this process: of the epochs and of what shows them.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from rich.console import Console

from bench.report import machine, options, table
from browser import browser
from harness import SECOND, START, Input, driver_for, make_batch, make_job
from streamjoin.api.loop import Done
from streamjoin.cli.live import LiveRun
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject
from streamjoin.cli.view import LiveView
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.api import PlanApi
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage

FOLLOWER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/v1/live", headers={"Accept": "text/event-stream"})
for line in urllib.request.urlopen(request):
    print(line[:12], flush=True)
"""
CHROMIUM = "a page in Chromium"


class Run:
    """A join that is run as the command does: epochs in this thread, what is seen of them in another."""

    def __init__(self, root: Path, epochs: int) -> None:
        rng = random.Random(3)

        def stream() -> Input:
            begins = [(epoch * 500, START + epoch * SECOND // 20) for epoch in range(epochs)]
            rows = [[(first + i, rng.randint(0, 20_000), 0, at + i * 100) for i in range(500)] for first, at in begins]
            return Input([make_batch(batch, pa.int64()) for batch in rows], [1] * epochs)

        window = {"within": "10s"}
        job = make_job(root, on="abs(l.k - r.k) <= 1", window=window, watermark="1s", workers=2, capacity=1_000_000)
        self.driver = driver_for(job, (stream(), stream()), ObjectStorage(str(root / "state")), InlineRunner())
        self.metrics = Metrics(job)
        self.state = RunState(Subject("inline", "", self.driver), time.time())
        self.live = LiveRun(self.state)
        self.watched = Steps(self.driver, [self.metrics])
        api = PlanApi(self.driver, self.metrics.health, live=self.live.board, draw=self.live.draw)
        self.server = DriverServer(self.metrics, api=api)
        self.watched.start()

    def epochs(self, number: int, told: Callable[[Done], None], *, is_served: bool) -> list[float]:
        """Seconds of each. ``told`` hears of each in another thread."""
        stepper, found = self.watched if is_served else self.driver, []
        events: queue.SimpleQueue[Done | None] = queue.SimpleQueue()

        def see() -> None:
            while (event := events.get()) is not None:
                self.state.see(event)
                told(event)

        thread = threading.Thread(target=see)
        thread.start()
        for _ in range(number):
            began = time.perf_counter()
            result = stepper.step()
            found.append(time.perf_counter() - began)
            assert result is not None
            events.put(Done(result, time.time(), self.driver.plan_status()))
        events.put(None)
        thread.join()
        return found


@contextlib.contextmanager
def following(url: str, number: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            child = stack.enter_context(subprocess.Popen([sys.executable, "-c", FOLLOWER, url], stdout=subprocess.PIPE))
            stack.callback(child.kill)
            assert child.stdout is not None
            child.stdout.readline()
            threading.Thread(target=child.stdout.read, daemon=True).start()
        yield


def pieces(run: Run) -> str:
    """The least that each part takes: of so many tries one is undisturbed, whatever else the machine does."""
    last = run.state.history.last
    assert last is not None
    event = Done(last, time.time(), run.driver.plan_status())
    sections = run.live.sections()
    parts: list[tuple[str, Callable[[], object]]] = [
        ("an epoch is told to the page", lambda: run.live.show(event)),
        ("all that a page shows is put together, twice a second at most", run.live.sections),
        ("and written as JSON", lambda: [json.dumps(section) for section in sections.values()]),
        ("the keys of what is held are sorted for it, once in 5 s", run.driver.statistics),
    ]
    screen = LiveView(run.state, Console(file=io.StringIO(), force_terminal=True, width=100, height=30))
    parts.append(("for comparison: the terminal's screen is drawn, four times a second", screen.tick))
    lines = []
    for name, action in parts:
        times = []
        for _ in range(100):
            began = time.thread_time()
            action()
            times.append(time.thread_time() - began)
        lines.append([name, f"{min(times) * 1e3:.3f}", f"{statistics.median(times) * 1e3:.3f}"])
    screen.close()
    return table(["while a page is open", "ms, least", "ms, median"], lines)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    epochs, rounds = (40, 1) if arguments.quick else (arguments.epochs, arguments.rounds)
    print(machine())
    settings: dict[str, Any] = {
        "no page": None,
        "the terminal's screen": None,
        "a page that nobody looks at": 0,
        "one client that follows": 1,
        "eight clients that follow": 8,
        CHROMIUM: 0,
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in settings}
    busy: dict[str, list[float]] = {name: [] for name in settings}
    with tempfile.TemporaryDirectory() as directory, browser() as chromium:
        run = Run(Path(directory), 50 + rounds * epochs * len(settings))
        run.epochs(50, lambda event: None, is_served=False)  # until what is compiled is
        for _ in range(rounds):
            for name, followers in settings.items():
                with contextlib.ExitStack() as stack:
                    told: Callable[[Done], None] = lambda event: None  # noqa: E731
                    if name == "the terminal's screen":
                        screen = LiveView(run.state, Console(file=io.StringIO(), force_terminal=True, width=100, height=30))
                        stack.callback(screen.close)
                        told = screen.show
                    elif followers is not None:
                        told = run.live.show
                        stack.enter_context(following(run.server.url, followers))
                    if name == CHROMIUM:
                        page, _ = stack.enter_context(chromium.page(run.server.url))
                        page.wait_for_selector("#tile-input")
                    began = time.process_time()
                    seconds[name].append(run.epochs(epochs, told, is_served=followers is not None))
                    busy[name].append((time.process_time() - began) / epochs)
        shares = pieces(run)
        run.server.close()
    lines = []
    for name, parts in seconds.items():
        medians = [statistics.median(part) for part in parts]
        ratios = [median / statistics.median(alone) for median, alone in zip(medians, seconds["no page"], strict=True)]
        more = [(one - alone) * 1e3 for one, alone in zip(busy[name], busy["no page"], strict=True)]
        lines.append(
            [
                *(name, f"{statistics.median(medians) * 1e3:.1f}", f"{statistics.median(ratios):.2f}"),
                *(f"{statistics.median(busy[name]) * 1e3:.1f}", f"{statistics.median(more):+.1f}"),
            ]
        )
    print(shares, end="\n\n")
    print(table(["while there is", "an epoch, ms", "of one without", "processor, ms an epoch", "more than without"], lines))


if __name__ == "__main__":
    main()
