"""Whole runs of joins with everything that may come between: other plans, drivers that die, workers that lose what they hold, epochs
that fail. Results must be as if nothing of it had been."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness import Crash, Input, driver_for
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.epoch.ports import EpochFailed
from streamjoin.job import Job
from streamjoin.state.storage import ObjectStorage, Storage
from test_replan import Unreliable, next_plan

MOST_FAILURES = 30
"""In a row: so many are not by chance."""


def run_cases(cases: Iterable[int], root: Path, run_case: Callable[[int, Path, Counter[str]], None], counts: Counter[str]) -> None:
    """Run a case for each of these seeds, in a directory of its own. A failure says by which seed it is run alone."""
    for case in cases:
        own = root / str(case)
        own.mkdir()
        try:
            run_case(case, own, counts)
        except Exception as error:
            raise AssertionError(f"STREAMJOIN_SEED={case}") from error


def elastic(job: Job) -> Job:
    """The job on one to eight workers, of which it begins with as few as its first input needs."""
    return replace(job, min_workers=1, max_workers=8, streams=tuple(replace(stream, expected_rate=None) for stream in job.streams))


def run_with_faults(
    job: Job,
    inputs: Sequence[Input | None],
    root: Path,
    rng: random.Random,
    counts: Counter[str],
    *,
    faults: bool = True,
    storage: Callable[[str], Storage] = ObjectStorage,
    until: int | None = None,
    between: Callable[[Driver], None] = lambda driver: None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run the job to the end of its input, its state in ``root/state``; a driver that has died is followed by another.

    ``until``: or until this epoch is committed, when the driver stops in order.

    ``counts`` is told of what came between; without ``faults`` that is nothing but a driver who hears of the end late. ``storage`` is made
    of the directory. ``between`` is called when a driver has started, and after each of its steps that does not fail. Drivers take their
    time from ``clock``.
    """

    def at(step: str) -> None:
        if faults and rng.random() < 0.02:
            counts[f"died at {step}"] += 1
            raise Crash(step)

    runner, failures = Unreliable(rng, faults), 0
    for _ in range(200):
        driver = driver_for(job, inputs, storage(str(root / "state")), runner, at=at, clock=clock)
        try:
            driver.start()
            while True:
                between(driver)
                if faults and driver.scheme is not None and rng.random() < 0.3:
                    try:
                        counts["plans"] += driver.put_plan(next_plan(rng, driver))
                    except PlanRefused:
                        counts["refused"] += 1
                before = driver.checkpoint.plan.generation
                try:
                    final = rng.random() < 0.8  # now and then a driver does not know yet that the input has ended
                    result = driver.step(final=final)
                except EpochFailed as error:
                    counts["failed epochs"] += 1
                    failures += 1
                    if failures == MOST_FAILURES:
                        raise AssertionError(f"an epoch failed {failures} times in a row: {error}\n{error.detail}") from error
                    continue
                failures = 0
                counts["switches"] += before > 0 and driver.checkpoint.plan.generation != before
                if until is not None and driver.checkpoint.epoch >= until:
                    driver.stop()
                    return
                if result is None and final:
                    between(driver)
                    return
        except Crash:
            runner = Unreliable(rng, faults) if rng.random() < 0.5 else runner
    raise AssertionError("never finished")
