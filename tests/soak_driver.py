"""A driver process for ``soak_crashes``: runs a case on Spark, and does to itself and to its workers what the case has at its points.

    python soak_driver.py DIRECTORY

Ends with exit code 0 when the input has ended, else as ``streamjoin run`` would; or by SIGKILL, when that is what the next point says.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import soak
from shaken_storage import Shake, ShakenStorage, give_tickets
from soak import Case, Journal, Kind, Point
from soak_files import Coming, Files
from spark_path import have_workers_find_tests
from streamjoin.api.loop import Ended, Event, Loop, Retrying
from streamjoin.api.runners import spark_runner
from streamjoin.controlplane import planning
from streamjoin.controlplane.deployment import make_sources
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.runner.spark import SparkRunner, SparkSettings
from streamjoin.scheme.models import plan_for_tasks
from worker_processes import executors

EPOCH_SECONDS = 0.08
"""No epoch is planned sooner after the one before, as where input comes at a rate: faults are to find the join at work."""
MOST_PLANS = 20
SHAKES = {Kind.STORAGE_FAILS: Shake.BEFORE, Kind.STORAGE_FAILS_AFTER: Shake.AFTER, Kind.STORAGE_SLOW: Shake.SLOW}


class Faults:
    """What happens when. ``at`` is the driver's hook."""

    def __init__(self, root: Path, case: Case) -> None:
        self._root, self._journal, self.files = root, Journal(root), Files(case, root)
        self._disk = soak.disk_of(root)
        fired = {fault["point"] for fault in self._journal.read("fault")}
        self._points = [(number, point) for number, point in enumerate(case.points) if number not in fired]
        self.clock_offset = sum(fault.get("offset", 0.0) for fault in self._journal.read("fault"))
        self._planned_at = 0.0
        self._committed = -1
        self.driver: Driver
        self.runner: SparkRunner

    def clock(self) -> float:
        return time.time() + self.clock_offset

    def at(self, step: str) -> None:
        if step == "plan":
            time.sleep(max(0.0, self._planned_at + EPOCH_SECONDS - time.monotonic()))
            self._planned_at = time.monotonic()
        epoch = self.driver.checkpoint.epoch
        if step == "publish" and epoch > self._committed:
            self._committed = epoch
            self._journal.add("commit", epoch=epoch, generation=self.driver.checkpoint.plan.generation)
        if self._points and epoch + (step != "publish") >= self._points[0][1].epoch and step == self._points[0][1].step:
            number, point = self._points.pop(0)
            if point.delay_seconds:
                threading.Timer(point.delay_seconds, self._fire, (number, point)).start()
            else:
                self._fire(number, point)

    def _fire(self, number: int, point: Point) -> None:
        rng = random.Random(point.chance)
        try:
            match point.kind:
                case Kind.WORKER_KILLED | Kind.WORKER_STOPPED:
                    self._note(number)
                    stop = signal.SIGKILL if point.kind is Kind.WORKER_KILLED else signal.SIGSTOP
                    os.kill(rng.choice(sorted(self.runner.pool.pids.values())), stop)
                case Kind.EXECUTOR_KILLED:
                    self._note(number)
                    rng.choice(sorted(executors(), key=lambda process: process.pid)).kill()
                case Kind.DRIVER_KILLED:
                    self._note(number)
                    os.kill(os.getpid(), signal.SIGKILL)
                case Kind.POWER_LOST:
                    self._note(number)
                    self._disk.lose_power()
                case Kind.PLAN_PUT:
                    self._note(number, plan=self._put_plan(rng))
                case Kind.STORAGE_FAILS | Kind.STORAGE_FAILS_AFTER | Kind.STORAGE_SLOW:
                    self._note(number)
                    slow = rng.uniform(0.1, 1.0) if point.kind is Kind.STORAGE_SLOW else 0.0
                    give_tickets(self._root / "tickets", str(number), rng.randint(1, 4), SHAKES[point.kind], slow)
                case Kind.FILE_ROTATED:
                    stream = rng.choice(soak.ALL)
                    self._note(number, stream=stream)
                    self.files.rotate(stream)
                case Kind.FILE_REWRITTEN:
                    stream = rng.choice(soak.ALL)
                    self._note(number, stream=stream)
                    self.files.rewrite(stream, self.driver.checkpoint.epoch, rng)
                case Kind.STREAM_SILENT:  # whose files have been made so; silent for long it is by the clock
                    self._note(number, offset=2.0 * soak.IDLE_SECONDS)
                    self.clock_offset += 2.0 * soak.IDLE_SECONDS
                case Kind.CLOCK_SET:
                    offset = rng.choice([-1, 1]) * rng.uniform(1, 6) * 3600
                    self._note(number, offset=offset)
                    self.clock_offset += offset
        except Exception as error:  # who was to be hit has just gone, as a rule; nobody else hears of it in a timer's thread
            self._journal.add("missed", point=number, error=repr(error))

    def _note(self, number: int, **values: object) -> None:
        self._journal.add("fault", point=number, epoch=self.driver.checkpoint.epoch + 1, **values)

    def _put_plan(self, rng: random.Random) -> str:
        """Put a plan of another model or size; which."""
        driver, status = self.driver, self.driver.plan_status()
        assert driver.scheme is not None
        assert driver.layout is not None
        assert status is not None
        newest = status.generation if status.wanted is None else status.wanted.generation
        for _ in range(MOST_PLANS):
            model, workers = rng.choice(soak.MODELS), rng.randint(1, 4)
            found = driver.statistics()
            scheme, keep = map_tasks(driver.scheme, plan_for_tasks(model, found, driver.layout.main, workers), found)
            with contextlib.suppress(PlanRefused):  # the model has no scheme for so many
                if driver.put_plan(Plan(newest + 1, scheme, keep)):
                    return f"{model}, {scheme.tasks} tasks"
        raise AssertionError(f"{MOST_PLANS} plans were refused")


def main(root: Path) -> NoReturn:
    have_workers_find_tests()
    case, journal = Case.read(root), Journal(root)
    if case.in_files:
        planning.SMALL_BYTES = 0
    faults = Faults(root, case)
    ended: list[Ended] = []

    def tell(event: Event) -> None:
        if isinstance(event, Retrying):
            journal.add("retry", sentence=event.sentence)
        elif isinstance(event, Ended):
            ended.append(event)

    job = soak.job_of(root)
    storage = ShakenStorage(job.checkpoint, root / "tickets", soak.disk_of(root))
    sources = [Coming(source, name, faults.files) for name, source in zip(soak.ALL, make_sources(job, storage), strict=True)]
    runner = faults.runner = spark_runner(SparkSettings(root / "logs", master=case.master), tell)
    driver = faults.driver = Driver(job, storage, runner, sources=sources, clock=faults.clock, at=faults.at)
    Loop(driver, interval_seconds=0.0, stop=threading.Event(), tell=tell, log_directory=root / "logs", until_idle=True).run()
    failure = ended[0].failure
    if failure is not None:
        journal.add("ended", sentence=failure.sentence)
    sys.stdout.flush()
    os._exit(0 if failure is None else failure.code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
