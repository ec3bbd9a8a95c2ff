"""A driver for tests of the operator's autoscaler: it answers as the plan API and the metrics do, and is as full as its plan makes it.

Plans, loads and statistics are the engine's own (``elastic.planner``); only the tuples are not there. Time is the test's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import http_stub
from operator_parts import Object, joined, streamjoin
from streamjoin.controlplane.arrivals import PENDING_SECONDS, STABILIZATION_SECONDS
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.mapping import Keep
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import make_plan
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme, same_cut
from streamjoin_operator.derived import derive
from streamjoin_operator.driver import Answered, Report, distrust, measure

START_SECONDS, MOVE_SECONDS = 10.0, 5.0
"""How long workers take to start, and state to move."""


def workers_of(wish: Object) -> int:
    """For how many workers it is."""
    return int(wish["workers"] if "workers" in wish else wish["scheme"]["tasks"])


class ScaledJoin:
    """Has the methods of ``driver.DriverClient``."""

    def __init__(
        self,
        clock: Callable[[], float],
        tuples: float,
        workers: int = 1,
        *,
        start_seconds: float = START_SECONDS,
        move_seconds: float = MOVE_SECONDS,
        **spec: Any,
    ) -> None:
        """``tuples``: that each side of the scheme holds. Tests whose clock is the real one give less time than the defaults."""
        job = derive(streamjoin(**spec)).job
        assert job is not None
        self._job, self._clock = job, clock
        self._start_seconds, self._change_seconds = start_seconds, start_seconds + move_seconds
        self.main: MainPredicate = job.layouts[0].main
        self.tuples = tuples
        self.backlog, self.epoch_seconds = 0.0, 0.1
        self.rates = {stream.name: 100.0 for stream in job.streams}
        self.state, self.began = "running", clock()
        self.plan = make_plan(None, self.statistics_now, self.main, **self._limits(workers)).plan
        self.wanted: Plan | None = None
        self.put_at = 0.0
        self.switched: Object | None = None
        self.dropped: str | None = None
        self.ended: list[Object] = []
        """What became of plans, as ``GET /v1/plan`` says it."""
        self.wishes: list[Object] = []
        self.answers: list[int] = []
        self.answer: Answered | None = None
        """Given instead of what would be done."""
        self.first_workers = 0
        self.pace = 1.0
        """Seconds of event time that pass in each."""
        self.reordered: list[Object] = []
        """The last changes of how streams meet."""
        self.lost = 0
        """So many answers to wishes get lost on the way back."""
        self.spoil: Callable[[str], str] = lambda text: text
        """What becomes of the metrics."""

    def _limits(self, workers: int) -> dict[str, Any]:
        job = self._job
        return {
            "model": job.model,
            "workers": workers,
            "capacity": job.capacity,
            "tau1": job.tau1,
            "minimum": 1,
            "maximum": 64,
        }

    @property
    def statistics_now(self) -> Statistics:
        return Statistics((SideStatistics(self.tuples), SideStatistics(self.tuples)))

    @property
    def workers(self) -> int:
        return self.plan.scheme.tasks

    @property
    def tau(self) -> list[float]:
        return self.tau_of(self.plan.scheme)

    def tau_of(self, scheme: Scheme) -> list[float]:
        """By task, what it would hold / capacity."""
        return [float(load) / self._job.capacity.amount for load in loads(scheme, self.statistics_now)]

    def advance(self) -> None:
        """Have done what takes until now."""
        wanted = self.wanted
        if wanted is not None and self._clock() - self.put_at >= self._change_seconds:
            self.plan, self.wanted = Plan(wanted.generation, wanted.scheme, tuple(range(wanted.scheme.tasks))), None
            self._end(wanted, "Switched")
            self.switched = {
                "generation": wanted.generation,
                "epoch": self.epochs,
                "at": self.put_at + self._change_seconds,
                "waitedSeconds": self._start_seconds,
                "pauseSeconds": 0.5,
                "keptTuples": 100,
                "movedTuples": 1900,
            }

    def drop(self, why: str) -> None:
        """The plan's first epoch fails."""
        assert self.wanted is not None
        self.dropped = f"generation {self.wanted.generation}: {why}"
        self._end(self.wanted, "Dropped", self.dropped)
        self.wanted = None

    def _end(self, plan: Plan, fate: str, reason: str = "") -> None:
        self.ended.append({"generation": plan.generation, "fate": fate, "reason": reason})

    @property
    def epochs(self) -> int:
        return int(self._clock() - self.began) + 1

    def health(self) -> Object:
        return {"state": self.state, "lastError": None}

    def answer_plan(self) -> Object:
        self.advance()
        waits = self._clock() - self.put_at < self._start_seconds
        wanted = self.wanted
        return {
            "firstWorkers": self.first_workers,
            "reordered": self.reordered,
            "generation": self.plan.generation,
            "workers": self.workers,
            "phase": "Running" if wanted is None else "WaitingForWorkers" if waits else "Preparing",
            "readyWorkers": self.workers,
            "toFetchBytes": 0,
            "dropped": self.dropped,
            "ended": list(self.ended),
            "scheme": self.plan.scheme.to_json(),
            "wanted": None
            if wanted is None
            else {
                "generation": wanted.generation,
                "workers": wanted.scheme.tasks,
                "scheme": wanted.scheme.to_json(),
                "keep": list(wanted.keep),
            },
            "switched": self.switched,
        }

    def answer_statistics(self) -> Object:
        found = self.statistics_now.to_json()
        for side, streams in zip(("left", "right"), self._job.streams_by_side, strict=True):
            found[side]["acceptedPerSecond"] = sum(self.rates[stream] for stream in streams)
        return {"predicate": self.main.text, **found}

    def take(self, wish: Object) -> Answered:
        """``PUT /v1/plan``, as ``serve.api`` answers it: so many workers, or a whole scheme."""
        self.advance()
        self.wishes.append(wish)
        answered = self.answer or self._put(wish)
        self.answers.append(answered.status)
        if self.lost:
            self.lost -= 1
            return Answered(0, "TimeoutError")
        return answered

    def _put(self, wish: Object) -> Answered:
        newest = self.wanted or self.plan
        if "scheme" in wish:
            scheme = Scheme.from_json(wish["scheme"])
            if wish["generation"] == newest.generation and same_cut(scheme, newest.scheme):
                return Answered(200, "")
            if wish["generation"] <= newest.generation:
                return Answered(409, f"plan.generation: {wish['generation']} must be above {newest.generation}; read it again")
            return self._accept(*map_tasks(self.plan.scheme, scheme, self.statistics_now))
        if wish.get("after") not in (None, newest.generation):
            return Answered(409, f"after: {wish['after']} is not the newest plan, which is {newest.generation}; read it again")
        if newest.scheme.tasks == wish["workers"] and not wish.get("replan"):
            return Answered(200, "")
        made = make_plan(self.plan, self.statistics_now, self.main, **self._limits(wish["workers"]))
        return self._accept(made.plan.scheme, made.plan.keep) if made.changed else Answered(200, "")

    def _accept(self, scheme: Scheme, keep: Keep) -> Answered:
        newest = self.wanted or self.plan
        if self.wanted is not None:
            self._end(self.wanted, "Replaced", f"generation {newest.generation}: replaced by generation {newest.generation + 1}")
        self.wanted = Plan(newest.generation + 1, scheme, keep)
        self.put_at, self.dropped = self._clock(), None
        return Answered(202, "")

    @property
    def task_tuples(self) -> float:
        """Of each stream, as if every task held all."""
        return self.tuples

    def arrived(self, rate: float) -> float:
        """How many tuples of a stream that brings so many a second have come."""
        return rate * (self._clock() - self.began)

    def metrics(self) -> str:
        """One scrape."""
        self.advance()
        epochs = self.epochs
        lines = [f'streamjoin_plan_generation{{name="one"}} {self.plan.generation}.0', *joined(epochs)]
        lines = [line for line in lines if "_sum" not in line]
        lines.append(f'streamjoin_epoch_duration_seconds_sum{{name="one"}} {epochs * self.epoch_seconds}')
        for task, tau in enumerate(self.tau):
            lines.append(f'streamjoin_worker_utilization_ratio{{name="one",task="{task}"}} {tau}')
            lines.append(f'streamjoin_worker_shed_ratio{{name="one",task="{task}"}} 0.0')
            for side in ("left", "right"):
                lines.append(f'streamjoin_worker_tuples{{name="one",side="{side}",task="{task}"}} {self.task_tuples}')
        for stream, rate in self.rates.items():
            lines.append(f'streamjoin_shed_tuples_total{{name="one",stream="{stream}"}} 0.0')
            lines.append(f'streamjoin_accepted_tuples_total{{name="one",stream="{stream}"}} {self.arrived(rate)}')
            lines.append(f'streamjoin_backlog_records{{name="one",stream="{stream}"}} {self.backlog}')
            watermark = self.began + self.pace * (self._clock() - self.began)
            lines.append(f'streamjoin_watermark_timestamp_seconds{{name="one",stream="{stream}"}} {watermark}')
        lines.append(f'streamjoin_last_commit_timestamp_seconds{{name="one"}} {self._clock()}')
        return self.spoil("\n".join(lines) + "\n")

    # As the operator's client has them.

    async def read(self, url: str, token: str) -> Report:
        plan, text = self.answer_plan(), self.metrics()
        measured = measure(text)
        return Report(self.health(), plan, measured, text, metrics_problem=distrust(measured, plan))

    async def put(self, url: str, token: str, wish: Object) -> Answered:
        return self.take(wish)

    async def statistics(self, url: str, token: str) -> Object:
        return self.answer_statistics()


class ScarceJoin(ScaledJoin):
    """The same in a cluster that has room for some workers only: it takes those that come, as ``controlplane.replan`` does."""

    room = 64
    gone = 0
    """Of the workers that run."""
    absence = "0/3 nodes are available: 3 Insufficient memory"
    asked: int | None = None
    _moves_since: float | None = None

    @property
    def there(self) -> int:
        has_started = self._clock() - self.put_at >= self._start_seconds
        wanted = self.asked or 0 if has_started else 0
        return max(self.workers, min(self.room, wanted)) - self.gone

    @property
    def came_at(self) -> float:
        """When workers have come last."""
        return self.put_at + self._start_seconds

    @property
    def stabilization(self) -> float:
        return STABILIZATION_SECONDS

    def advance(self) -> None:
        if self.wanted is None:
            return
        now, there = self._clock(), self.there
        self.asked = self.asked or self.wanted.scheme.tasks
        waited = now - self.came_at
        if self._moves_since is None and there >= self.wanted.scheme.tasks:
            self._moves_since = now
        elif self._moves_since is None and there > self.workers and waited >= self.stabilization:
            made = make_plan(self.plan, self.statistics_now, self.main, **self._limits(there)).plan
            self.wanted, self._moves_since = Plan(self.wanted.generation, made.scheme, made.keep), now
        elif self._moves_since is None and waited >= PENDING_SECONDS:
            self.drop(f"of {self.asked - self.workers} new workers 0 are there, and no other has come for 600 s: {self.absence}")
            self.asked = None
        if self._moves_since is not None and now - self._moves_since >= MOVE_SECONDS:
            self._switch(now)

    def _switch(self, now: float) -> None:
        wanted, asked, self._moves_since = self.wanted, self.asked, None
        assert wanted is not None
        assert asked is not None
        self.plan, self.wanted, self.asked = Plan(wanted.generation, wanted.scheme, tuple(range(wanted.scheme.tasks))), None, None
        self._end(wanted, "Switched")
        took = {"waitedSeconds": now - self.put_at, "pauseSeconds": 0.5, "keptTuples": 100, "movedTuples": 1900}
        self.switched = {"generation": wanted.generation, "epoch": self.epochs, "asked": asked, "at": now, **took}
        if asked > self.workers:
            made = make_plan(self.plan, self.statistics_now, self.main, **self._limits(asked)).plan
            self.wanted, self.asked, self.put_at = Plan(self.plan.generation + 1, made.scheme, made.keep), asked, now

    def _put(self, wish: Object) -> Answered:
        if self.wanted is not None and wish.get("workers") == self.workers and not wish.get("replan") and self._moves_since is None:
            self._end(self.wanted, "Withdrawn", f"generation {self.wanted.generation}: withdrawn, as the plan that runs is wanted")
            self.wanted = self.asked = None
            return Answered(202, "")
        if self.wanted is not None and wish.get("workers") == self.asked and not wish.get("replan"):
            return Answered(200, "")
        answered = super()._put(wish)
        if answered.status == 202:
            assert self.wanted is not None
            self.asked, self._moves_since = self.wanted.scheme.tasks, None
        return answered

    def answer_plan(self) -> Object:
        answer = super().answer_plan()
        if self.wanted is not None:
            answer["wanted"]["asked"] = self.asked
            answer["phase"] = "WaitingForWorkers" if self._moves_since is None else "Preparing"
        return answer | {"readyWorkers": self.there, "absence": self.absence if answer["phase"] == "WaitingForWorkers" else None}


class ScaledServer:
    """A join's HTTP port, as the operator and a Prometheus see it."""

    def __init__(self, join: ScaledJoin) -> None:
        self.join = join
        lock = threading.Lock()

        class Handler(http_stub.Handler):
            def do_GET(self) -> None:
                known = {"/v1/health": join.health, "/v1/plan": join.answer_plan, "/v1/statistics": join.answer_statistics}
                with lock:
                    text = join.metrics() if self.path == "/metrics" else json.dumps(known[self.path]())
                self.answer(200, text.encode(), {"Content-Type": "text/plain; version=0.0.4"})

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    answered = join.take(body)
                self.answer(answered.status, json.dumps({"error": answered.text}).encode())

        self._served = http_stub.Served(Handler)
        self.address = self._served.address

    def close(self) -> None:
        self._served.close()
