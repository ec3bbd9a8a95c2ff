"""What the page shows of a run, as JSON: the observation that the terminal's screen draws, and what the driver says of its plan.

Always holds: the run's own thread does nothing for it; a client gets what the run had reported by then. ``docs/api.md`` lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamjoin.api.loop import Done, Entering, Event
from streamjoin.cli.completeness import completeness_record
from streamjoin.cli.delays import delay_record
from streamjoin.cli.history import RATE_SECONDS, History, Sample
from streamjoin.cli.record import epoch_seconds, fullness, rounded
from streamjoin.cli.scheme_shapes import shapes
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject, window_text
from streamjoin.controlplane.replan import PlanStatus
from streamjoin.elastic.ledger import Record
from streamjoin.elastic.migration import Migration, plan_migration
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import overfull
from streamjoin.epoch.ports import TaskWork
from streamjoin.language.layout import Layout
from streamjoin.language.sides import SIDES
from streamjoin.manifest.model import TAUS
from streamjoin.manifest.problem import listed
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.serve.live import Board
from streamjoin.serve.preview import moved
from streamjoin.serve.scaler import Scaler

COUNTERS = {
    "input": "input",
    "accepted": "accepted",
    "late": "late",
    "shed": "shed",
    "would_shed": "wouldShed",
    "rejected": "rejected",
    "filtered": "filtered",
    "unmatchable": "unmatchable",
}
"""Counters of tuples by stream: the checkpoint's name of each, and its name here."""
MOST_POINTS = 240
"""The most points of the whole run's curves."""
MOST_RECORDS = 60
"""The most records of the ledger."""
MOST_SWITCHES = 30
STATISTICS_SECONDS = 5.0
"""The time for which statistics serve: to take them takes some milliseconds."""


class LiveRun:
    """See the module. Any thread may ask for ``sections``, one at a time."""

    def __init__(
        self,
        state: RunState,
        scaler: Scaler | None = None,
        *,
        board: Callable[[Callable[[], Mapping[str, Any]]], Board] = Board,
    ) -> None:
        """``board`` makes that on which ``sections`` are."""
        self._state, self._driver, self._scaler = state, state.subject.driver, scaler
        self._statistics: tuple[float, Statistics] | None = None
        self._migration: tuple[int, Migration] | None = None
        self._drawn: dict[str, tuple[Scheme, Statistics, dict[str, Any]]] = {}
        """The last shapes, by section, and what they were made of."""
        self.board = board(self.sections)

    def show(self, event: Event) -> None:
        """An event happened, which the state has seen."""
        if not isinstance(event, Entering):  # some of each epoch: a step that takes long is seen all the same
            self.board.changed()

    @property
    def _subject(self) -> Subject:
        return self._state.subject

    @property
    def _history(self) -> History:
        return self._state.history

    def sections(self) -> dict[str, Any]:
        """All that is shown, by section."""
        with self._state.lock:
            now = self._state.clock()
            found = {
                "run": self._run(now),
                "about": self._about(),
                "joins": self._joins(now),
                "streams": self._streams(now),
                "rates": self._rates(now),
                "workers": self._workers(),
                "epochs": [self._epoch_record(epoch) for epoch in self._state.epochs],
                "series": series(self._history),
                "switches": self._switches(),
                "troubles": [{"at": one.at, "kind": one.kind.value, "text": one.text} for one in self._state.troubles],
            }
        return found | self._planned(now) | {"decisions": self._decisions()}

    def _run(self, now: float) -> dict[str, Any]:
        state, last = self._state, self._history.last
        return {
            "name": self._subject.job.name,
            "doing": state.doing(now),
            "at": round(now, 3),
            "startedAt": self._history.origin,
            "epoch": None if last is None else last.epoch,
            "generation": None if last is None else last.generation,
            "step": None if state.step is None else {"step": state.step.step, "since": state.step.at},
            "ended": None
            if state.ended is None
            else {"reason": state.ended.reason.value, "error": state.ended.failure and state.ended.failure.sentence},
        }

    def _about(self) -> dict[str, Any]:
        job, subject = self._subject.job, self._subject
        spec = job.manifest.spec
        return {
            "runner": subject.runner,
            "command": None if subject.namespace is not None else subject.command,
            "namespace": subject.namespace,
            "elastic": subject.elastic,
            "main": subject.main,
            "model": job.model,
            "minWorkers": job.min_workers,
            "maxWorkers": job.max_workers,
            "capacity": {"amount": job.capacity.amount, "unit": "bytes" if job.capacity.in_bytes else "tuples"},
            "thresholds": {name: getattr(job, name) for name in TAUS},
            "scaling": spec.scaling.mode,
            "pausedBy": None if self._scaler is None else self._scaler.paused_by,
            "shedding": job.shedding_model,
            "interval": job.interval_micros / 1e6,
            "checkpoint": job.checkpoint,
        }

    def _joins(self, now: float) -> list[dict[str, Any]]:
        subject, last = self._subject, self._history.last
        totals = {} if last is None else last.totals
        rates = self._outputs_of_late(now)
        found = []
        for number, (join, condition, sink) in enumerate(zip(subject.job.joins, subject.conditions, subject.sinks, strict=True)):
            suffix = "" if len(subject.job.joins) == 1 else f"/{join.name}"
            found.append(
                {
                    "name": join.name,
                    "type": join.type.value,
                    "condition": condition,
                    "window": window_text(join.window, [subject.streams[each] for each in join.streams]),
                    "streams": [subject.streams[each] for each in join.streams],
                    "sink": sink,
                    "output": totals.get(f"output{suffix}", [0])[0],
                    "candidates": totals.get(f"candidates{suffix}", [0])[0],
                    "perSecond": rates[number],
                    "completeness": None if last is None else completeness_record(last, join.name),
                    "resultDelay": delay_record(self._history.delays.of(join.name, now)),
                }
            )
        return found

    def _outputs_of_late(self, now: float) -> list[float]:
        """Results per second over the last RATE_SECONDS, by join, of the kept epochs."""
        since = now - RATE_SECONDS
        found = [0] * len(self._subject.job.joins)
        begin = self._history.origin + (self._history.began or 0.0)
        for epoch in self._state.epochs:
            if epoch.finished > since:
                found = [one + more for one, more in zip(found, self._outputs(epoch), strict=True)]
            else:
                begin = since
        span = max(min(RATE_SECONDS, now - begin), 0.1)
        return [rounded(count / span) or 0.0 for count in found]

    def _outputs(self, epoch: Done) -> list[int]:
        works = [epoch.result.joins.get(join.name) for join in self._subject.job.joins]
        return [0 if work is None else work.output for work in works]

    def _streams(self, now: float) -> list[dict[str, Any]]:
        history, last = self._history, self._history.last
        rates = history.rates(now)
        found = []
        for number, name in enumerate(self._subject.streams):
            totals = {} if last is None else last.totals
            counts = {shown: totals[counter][number] if counter in totals else 0 for counter, shown in COUNTERS.items()}
            found.append(
                {
                    "name": name,
                    "perSecond": rounded(rates.input[number]) if rates.input else 0.0,
                    **counts,
                    "watermark": None if last is None or last.watermarks[number] is None else last.watermarks[number] / 1e6,  # type: ignore[operator]
                    "lagSeconds": None if last is None else rounded(last.lag[number]),
                    "backlog": 0 if last is None else last.backlog[number],
                    "storedBytes": 0 if last is None else last.stored_bytes[number],
                }
            )
        return found

    def _rates(self, now: float) -> dict[str, Any]:
        history, last = self._history, self._history.last
        rates = history.rates(now)
        totals = {} if last is None else last.totals
        return {
            "inputPerSecond": rounded(sum(rates.input)),
            "outputPerSecond": rounded(rates.output),
            "input": sum(totals.get("input", [0])),
            "output": sum(totals.get("output", [0])),
            "candidates": sum(totals.get("candidates", [0])),
            "epochSeconds": {
                "last": None if last is None else rounded(last.duration),
                **epoch_seconds(history),
            },
            "epochs": history.epochs,
            "blocks": 0 if last is None else last.blocks,
            "readBack": history.read_back,
            "backlog": 0 if last is None else sum(last.backlog),
        }

    def _workers(self) -> list[dict[str, Any]]:
        last, subject = self._history.last, self._subject
        if last is None:
            return []
        return [
            {
                "task": task,
                "held": dict(zip(subject.streams, held, strict=True)),
                **fullness(last, task),
                **_work(last.work.get(task)),
            }
            for task, held in sorted(last.held.items())
        ]

    def _epoch_record(self, epoch: Done) -> dict[str, Any]:
        result = epoch.result
        delays = [result.delays.get(join.name) for join in self._subject.job.joins]
        return {
            "epoch": result.epoch,
            "at": round(epoch.finished, 3),
            "seconds": rounded(result.duration),
            "steps": {name: rounded(seconds) for name, seconds in result.seconds.items() if "." not in name},
            "input": list(result.counts["input"]),
            "output": self._outputs(epoch),
            "lag": [rounded(lag) for lag in result.lag],
            "backlog": list(result.backlog),
            "lost": list(map(sum, zip(result.counts["shed"], result.counts["late"], strict=True))),
            "resultDelay": [rounded(None if of_join is None else of_join.quantile(0.99)) for of_join in delays],
        }

    def _switches(self) -> list[dict[str, Any]]:
        return [
            {
                "generation": switched.generation,
                "epoch": switched.epoch,
                "at": switched.at,
                "movedTuples": switched.moved_tuples,
                "keptTuples": switched.kept_tuples,
                "waitedSeconds": rounded(switched.waited_seconds),
                "pauseSeconds": rounded(switched.pause_seconds),
            }
            for _, switched in list(self._history.switches)[-MOST_SWITCHES:]
        ]

    def _planned(self, now: float) -> dict[str, Any]:
        status, layout = self._driver.plan_status(), self._driver.layout
        if status is None or layout is None:
            return {"plan": None, "scheme": None, "coming": None}
        statistics = self._known(now)
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        plan = {
            "generation": status.generation,
            "workers": status.workers,
            "phase": status.phase.value,
            "readyWorkers": status.ready_workers,
            "absence": status.absence,
            "dropped": status.dropped,
            "ended": [{"generation": one.generation, "fate": one.fate.value, "reason": one.reason} for one in status.ended],
            "warning": overfull(loads(newest, statistics), newest.model, self._subject.job.capacity),
        }
        drawn = self._drawn_of("scheme", status.scheme, statistics, layout) | {"generation": status.generation}
        coming = None if status.wanted is None else self._coming(status, status.wanted, statistics, layout)
        return {"plan": plan, "scheme": drawn, "coming": coming}

    def _coming(self, status: PlanStatus, wanted: Plan, statistics: Statistics, layout: Layout) -> dict[str, Any]:
        known = self._migration
        if known is None or known[0] != wanted.generation:
            known = wanted.generation, plan_migration(status.scheme, wanted.scheme, wanted.keep, statistics, layout.main)
            self._migration = known
        return {
            "generation": wanted.generation,
            "workers": wanted.workers,
            "keep": list(wanted.keep),
            "toFetchBytes": status.to_fetch_bytes,
            **moved(known[1]),
            "scheme": self._drawn_of("coming", wanted.scheme, statistics, layout),
        }

    def _drawn_of(self, section: str, scheme: Scheme, statistics: Statistics, layout: Layout) -> dict[str, Any]:
        known = self._drawn.get(section)
        if known is None or known[0] is not scheme or known[1] is not statistics:
            known = self._drawn[section] = scheme, statistics, self._shapes(scheme, statistics, layout)
        return known[2]

    def draw(self, scheme: Scheme) -> dict[str, Any] | None:
        """A scheme that may come, as shapes. Any thread may ask."""
        layout = self._driver.layout
        return None if layout is None else self._shapes(scheme, self._driver.statistics(), layout)

    def _shapes(self, scheme: Scheme, statistics: Statistics, layout: Layout) -> dict[str, Any]:
        streams = self._subject.streams
        of_sides = [dict.fromkeys(streams[place.stream] for place in layout.places if place.side == side) for side in SIDES]
        return shapes(scheme, statistics, layout, [listed(list(names), "and") for names in of_sides])

    def _known(self, now: float) -> Statistics:
        known = self._statistics
        if known is None or not 0 <= now - known[0] < STATISTICS_SECONDS:
            known = self._statistics = now, self._driver.statistics()
        return known[1]

    def _decisions(self) -> list[dict[str, Any]]:
        if self._scaler is None:
            return []
        ledger = self._scaler.ledger
        records = list(ledger)
        first = ledger.forgotten + max(0, len(records) - MOST_RECORDS)
        return [decision_record(number, record) for number, record in enumerate(records[-MOST_RECORDS:], start=first)]


def series(history: History) -> dict[str, list[Any]]:
    """The whole run, in at most MOST_POINTS points: per second, or the worst of each. O(samples)."""
    samples = history.samples
    size = max(1, -(-len(samples) // MOST_POINTS))
    found: dict[str, list[Any]] = {name: [] for name in ("at", "input", "output", "seconds", "fullest", "workers", "lag", "shed", "delay")}
    since: float | None = None
    for first in range(0, len(samples), size):
        part: Sample = samples[first]
        start = part.start if since is None else since
        for later in samples[first + 1 : first + size]:
            part = part.merged(later)
        since = part.end
        span = max(part.end - start, 1e-3)
        lags = [lag for lag in part.lag if lag is not None]
        row = (
            round(history.origin + part.end, 3),
            rounded(sum(part.input) / span),
            rounded(part.output / span),
            rounded(part.seconds),
            rounded(max(part.utilization.values(), default=0.0)),
            part.workers,
            rounded(max(lags)) if lags else None,
            part.shed,
            rounded(part.delay),
        )
        for values, value in zip(found.values(), row, strict=True):
            values.append(value)
    return found


def decision_record(number: int, record: Record) -> dict[str, Any]:
    """A record of the ledger in short. ``number``: counted from the first that there ever was."""
    decision, realised = record.decision, record.realised
    return {
        "number": number,
        "firstAt": record.first_at,
        "lastAt": record.last_at,
        "count": record.count,
        "kind": decision.kind.value,
        "mode": decision.mode.value,
        "rule": None if decision.rule is None else decision.rule.value,
        "reason": decision.reason.value,
        "sentence": decision.sentence,
        "generation": decision.generation,
        "workers": decision.workers,
        "target": decision.target,
        "tau": None if decision.inputs is None else rounded(decision.inputs.tau_max),
        "realised": None
        if realised is None
        else {
            "generation": realised.generation,
            "tau": rounded(realised.tau_max),
            "movedTuples": round(realised.moved_tuples),
            "pauseSeconds": rounded(realised.pause_seconds),
        },
    }


def _work(work: TaskWork | None) -> dict[str, Any]:
    """What a worker did in the last epoch."""
    if work is None:
        return {"busySeconds": 0.0, "output": 0, "candidates": 0}
    return {"busySeconds": rounded(sum(work.seconds.values())), "output": work.output, "candidates": work.candidates}
