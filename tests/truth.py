"""The same trace through the simulation and through a real join, in virtual time: whether what ``streamjoin simulate`` says is true.

The real one is the engine itself, its driver, its autoscaler and a runner, over streams in memory: an epoch is a step of the trace, and the
clock is moved on by a step after each, so that hours pass in seconds. Keys are spread evenly but for a hot part, as the trace says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness import SECOND, START, Input, driver_for, make_job
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.settings import Settings
from streamjoin.epoch.ports import EpochResult, Runner
from streamjoin.job import Job
from streamjoin.retention import window_seconds
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.observer import Steps
from streamjoin.serve.scaler import Scaler
from streamjoin.simulation.rivals import StreamJoin
from streamjoin.simulation.run import SimulatedJoin, simulate
from streamjoin.simulation.traffic import Traffic
from streamjoin.state.storage import ObjectStorage
from waiting import wait_for

STEP_SECONDS = 15.0
WINDOW_SECONDS = 600
KEYS = 1_000_000
HOT_PART = 1 / 16
"""Of the keys."""
BAND = 1_000
"""So narrow that the join is cut along the keys, and next to nothing is held twice."""
SHARE = 2 * BAND / KEYS
MOST_WORKERS = 8
START_SECONDS = 30.0
"""In which workers come."""
CAPACITY = 6_000


@dataclass
class Played:
    """What came of a trace. Lists have an entry for each step."""

    tau: list[float] = field(default_factory=list)
    """Of the fullest worker."""
    workers: list[int] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    """Tuples, each counted once."""
    shed: float = 0.0
    came: float = 0.0
    moved: float = 0.0
    changes: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def worker_hours(self) -> float:
        return sum(self.workers) * STEP_SECONDS / 3600


def job_of(root: Path, policy: str, *, least: int = 1, **scaling: Any) -> Job:
    """A band join of two streams, of ``least`` to MOST_WORKERS workers."""
    job = make_job(
        root,
        on=f"abs(l.k - r.k) <= {BAND}",
        types=("BIGINT", "BIGINT"),
        window={"within": f"{WINDOW_SECONDS}s"},
        watermark="0s",
        workers=least,
        capacity=CAPACITY,
        scaling={"policy": policy, "scaleUpAfter": "30s", "scaleDownAfter": "10m"} | scaling,
        shedding={"model": "linear"},
        epoch={"interval": f"{STEP_SECONDS:g}s"},
    )
    spec = job.manifest.spec
    manifest = job.manifest.model_copy(
        update={"spec": spec.model_copy(update={"workers": spec.workers.model_copy(update={"max": MOST_WORKERS})})}
    )
    # Nothing is expected of the streams, so that the join begins with one worker.
    streams = tuple(replace(stream, expected_rate=None) for stream in job.streams)
    return replace(job, max_workers=MOST_WORKERS, manifest=manifest, streams=streams)


def streams_of(traffic: Traffic, hot_share: float = 0.0, seed: int = 1) -> tuple[Input, Input]:
    """Two streams that come as the traffic says. ``hot_share``: of the tuples that are within HOT_PART of the keys, from ``hot`` on."""
    rng = np.random.default_rng(seed)
    made = []
    for rates in traffic.rates:
        batches, rid, owed = [], 0, 0.0
        for step in range(traffic.steps):
            owed += float(rates[step]) * traffic.step_seconds
            count = int(owed)
            owed -= count
            keys = rng.integers(0, KEYS, count)
            is_hot = rng.random(count) < hot_share
            begin = float(traffic.hot[step]) * (1 - HOT_PART) * KEYS
            keys[is_hot] = (begin + rng.random(int(is_hot.sum())) * HOT_PART * KEYS).astype(np.int64)
            at = START + round(step * traffic.step_seconds * SECOND) + (np.arange(count) * (traffic.step_seconds * SECOND / max(1, count)))
            batches.append(
                pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.arange(rid, rid + count)),
                        pa.array(keys),
                        pa.array(np.zeros(count, np.int32)),
                        pa.array(at.astype(np.int64), pa.timestamp("us", "UTC")),
                    ],
                    names=["rid", "k", "v", "at"],
                )
            )
            rid += count
        made.append(Input(batches, [1] * traffic.steps))
    return made[0], made[1]


def begins() -> float:
    """When a run begins, by the clock of its ledger."""
    return START / SECOND


class _Clock:
    def __init__(self) -> None:
        self.now = START / SECOND

    def __call__(self) -> float:
        return self.now


class Late:
    """A runner whose workers come so long after they were asked for, by the trace's clock, which stands still until they are there."""

    def __init__(self, inner: Any, clock: Callable[[], float], start_seconds: float) -> None:
        self._inner, self._clock, self._start_seconds = inner, clock, start_seconds
        self._asked_at, self._there, self._wanted = 0.0, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, workers: Any, least: int = 1) -> None:
        self._inner.start(workers)
        self._there = self._wanted = len(workers)

    def request(self, count: int) -> None:
        if count > self._wanted:
            self._asked_at, self._wanted = self._clock(), count
        self._inner.request(count)

    @property
    def ready(self) -> int:
        if self._there < self._wanted and self._clock() - self._asked_at >= self._start_seconds:
            wait_for(f"{self._wanted} workers", lambda: self._inner.ready >= self._wanted)
            self._there = self._wanted
        return self._there

    def release(self, workers: Any, places: int | None = None) -> None:
        self._inner.release(workers, places)
        self._there = self._wanted = len(workers)

    @property
    def overlaps(self) -> bool:
        """Each epoch is over before the next begins, as when a join keeps up."""
        return False


class _Quick:
    """A driver whose epochs take a tenth of a second of virtual time."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.start, self.stop, self.plan_status = driver.start, driver.stop, driver.plan_status

    @property
    def exhausted(self) -> bool:
        return bool(self._driver.exhausted)

    @property
    def idle_warnings(self) -> tuple[str, ...]:
        return tuple(self._driver.idle_warnings)

    def step(self, *, final: bool = False) -> EpochResult | None:
        result: EpochResult | None = self._driver.step(final=final)
        return None if result is None else replace(result, seconds={"tasks": 0.1}, backlog=(0,) * len(result.backlog))


def run(
    root: Path, job: Job, traffic: Traffic, *, start_seconds: float = START_SECONDS, hot_share: float = 0.0, runner: Runner | None = None
) -> Played:
    """The trace through the engine. ``runner``: another than the inline one."""
    clock = _Clock()
    storage = ObjectStorage(str(root / "state"))
    inputs = streams_of(traffic, hot_share)
    driver = driver_for(job, inputs, storage, Late(runner or InlineRunner(), clock, start_seconds), clock=clock)
    autoscaler = Scaler(job, driver, storage, clock=clock)
    elastic = Steps(_Quick(driver), [autoscaler])
    played = Played()
    elastic.start()
    generation = None
    for _ in range(traffic.steps):
        clock.now += traffic.step_seconds
        result = elastic.step(final=False)
        status = driver.plan_status()
        assert result is not None
        assert status is not None
        played.tau.append(max(result.utilization.values()))
        # Workers that were asked for cost from then on, as in the simulation.
        wanted = 0 if status.wanted is None else status.wanted.workers
        played.workers.append(max(status.workers, wanted))
        played.held.append(float(sum(block.rows for block in driver.checkpoint.state.blocks)))
        played.shed += sum(result.counts["shed"])
        played.came += sum(result.counts["input"])
        if generation is not None and result.generation != generation:
            played.changes += 1
            played.moved += 0 if status.switched is None else status.switched.moved_tuples
        generation = result.generation
    elastic.stop()
    played.ledger = autoscaler.ledger
    return played


class _Watched(StreamJoin):
    def __init__(self, join: SimulatedJoin, played: Played) -> None:
        super().__init__(join)
        self._played = played

    def step(self, now: float, sample: Any, forecast: Any) -> Any:
        self._played.held.append(sum(value or 0.0 for value in sample.held))
        return super().step(now, sample, forecast)


def simulated(job: Job, traffic: Traffic, *, start_seconds: float = START_SECONDS) -> Played:
    """The same through the simulation, with the window's span as the engine holds tuples."""
    assert window_seconds(job) is not None
    settings = Settings.of(job.manifest.spec, capacity_tuples=job.capacity_tuples, window_seconds=window_seconds(job))
    join = SimulatedJoin(settings=settings, window_seconds=window_seconds(job), share=SHARE, start_seconds=start_seconds, workers=1)
    played = Played()
    decider = _Watched(join, played)
    outcome = simulate(join, traffic, decider)
    played.tau, played.workers = outcome.tau.tolist(), outcome.workers.astype(int).tolist()
    played.shed, played.came, played.moved = outcome.shed_tuples, outcome.input_tuples, outcome.moved_tuples
    played.changes, played.ledger = outcome.rescales + outcome.replans, decider.ledger
    return played


def wave(hours: float, low: float, high: float) -> Traffic:
    """Both streams rise from ``low`` to ``high`` tuples per second and fall again, once."""
    steps = round(hours * 3600 / STEP_SECONDS)
    at = np.arange(steps) / steps
    rates = np.interp(at, [0, 0.15, 0.4, 0.6, 0.8, 1], [low, low, high, high, low, low])
    return Traffic(STEP_SECONDS, (rates, rates), np.ones(steps), np.zeros(steps))
