"""A world with a seed: whole drivers whose storage, clock, workers and deaths are events, drawn one after another.

Each driver is a process of this world: a greenlet that runs the real driver, tasks and storage client, over a store in memory. Before and
after each request to the store one of these may happen, by the seed: the process dies there, for good and without another word; it is
held up, while others go on and start, and continues later as the older driver that it is by then; the request fails, with or without
effect. So what two, three and more drivers do to one checkpoint meets at every request, which whole programs would show one run in a
million. Nothing waits and no thread runs, so that a seed repeats its run to the last request.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

import greenlet
import pytest
from obstore.store import MemoryStore

from harness import Crash, Input, Remote, driver_for
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.epoch.ports import EpochFailed
from streamjoin.job import Job
from streamjoin.state.log import Superseded, read_latest
from streamjoin.state.storage import ObjectStorage, StorageError
from test_replan import Unreliable, next_plan

NUMBERS = itertools.count()
"""Of worlds: tasks keep what they have read by its name as long as their process lives, so that no two may have the same names."""
POOLS = ("controlplane.cloning", "state.store", "state.blocks", "results.parts", "results.reader", "io.staging")
"""Modules that hand requests to threads."""
MOST_DRIVERS = 20
"""After so many nothing happens to anyone, and one comes to the end."""
MOST_STEPS = 400


class AtOnce(Executor):
    """It has done what it is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def submit(self, do: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(do(*args, **options))
        except Exception as error:
            done.set_exception(error)
        return done


class World:
    """One run; see the module. ``happened`` counts what came between."""

    def __init__(self, seed: int, *, trouble: float) -> None:
        """``trouble``: the chance of each kind of event at a request."""
        self.rng = random.Random(seed)
        self._number = next(NUMBERS)
        self.root = Remote(f"s3://world-{self._number}")
        self.now = 1_800_000_000.0
        self.happened = Counter[str]()
        self.requests: list[str] = []
        """All that were made, in order, without what is unique in names."""
        self._trouble = trouble
        self._stores: dict[str, MemoryStore] = {}
        self._living: list[greenlet.greenlet] = []
        self._dead: list[greenlet.greenlet] = []
        """They stay where they died: what a process would have done next is not done."""
        self._running: greenlet.greenlet | None = None
        self._ended_by = ""

    def clock(self) -> float:
        return self.now

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Within this all storage is the world's."""
        real = ObjectStorage._attempts

        def attempts(storage: ObjectStorage, what: str, path: str, once: Callable[[], Any], **options: Any) -> Any:
            self._meets(f"{what} {path}", before=True)
            found = real(storage, what, path, once, **options)
            self._meets(f"{what} {path}", before=False)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ObjectStorage, "_attempts", attempts)
            patch.setattr(ObjectStorage, "_connected", lambda storage, repeats: self._store_at(storage.url))
            patch.setattr(uuid, "uuid4", self._id)
            patch.setattr("streamjoin.state.log.new_seed", self._seed)
            for module in POOLS:
                patch.setattr(f"streamjoin.{module}.ThreadPoolExecutor", AtOnce)
            try:
                yield
            finally:
                self._running = None
                for process in (*self._dead, *self._living):
                    with suppress(Crash):
                        process.throw(Crash("the world is over"))

    def run(self, job: Job, inputs: Sequence[Input | None], between: Callable[[Driver], None] = lambda driver: None) -> Driver:
        """Drivers come, go and meet until one has joined all input, and all that are older have ended. Returns another one, which found
        nothing to do. ``between`` is called when a driver has started, and after each of its steps that does not fail."""
        is_over = False
        while self._living or not is_over:
            if not self._living or (self._trouble and len(self._living) < 4 and self.rng.random() < 0.3):
                self.happened["drivers"] += 1
                assert self.happened["drivers"] < 2 * MOST_DRIVERS, f"no driver comes to the end: {self._ended_by}"
                self._trouble *= self.happened["drivers"] < MOST_DRIVERS
                self._living.append(greenlet.greenlet(lambda: self._process(job, inputs, between)))
            self._running = self._living[-1] if self.rng.random() < 0.5 else self.rng.choice(self._living)
            has_finished = self._running.switch()
            if self._running.dead:
                self._living.remove(self._running)
                is_over = is_over or has_finished
                self._trouble = 0.0 if is_over else self._trouble
        self._running = None
        driver = self._driver(job, inputs, random.Random(0), trouble=False)
        driver.start()
        between(driver)
        while driver.step(final=True) is not None:
            between(driver)
        return driver

    def _driver(self, job: Job, inputs: Sequence[Input | None], rng: random.Random, *, trouble: bool) -> Driver:
        storage = ObjectStorage(str(self.root / "state"))
        return driver_for(job, inputs, storage, Unreliable(rng, trouble), clock=self.clock, in_background=False)

    def _process(self, job: Job, inputs: Sequence[Input | None], between: Callable[[Driver], None]) -> bool:
        """A driver, as the program runs it: whether it has joined all input."""
        driver, rng = self._driver(job, inputs, self.rng, trouble=True), self.rng
        try:
            if rng.random() < 0.5:
                self._stand_by(driver)
            driver.start()
            for _ in range(MOST_STEPS):
                between(driver)
                if driver.scheme is not None and rng.random() < 0.2:
                    try:
                        self.happened["plans"] += driver.put_plan(next_plan(rng, driver))
                    except PlanRefused:
                        self.happened["refused plans"] += 1
                try:
                    if driver.step(final=True) is None:
                        driver.stop()
                        return True
                except EpochFailed:
                    self.happened["failed epochs"] += 1
            raise AssertionError("a driver never finished")
        except Superseded:
            self.happened["superseded"] += 1
        except StorageError as error:
            self.happened["ended by its storage"] += 1
            self._ended_by = str(error)
        return False

    def _stand_by(self, driver: Driver) -> None:
        """As a standby that takes the driver at work for gone, whether it is or not, a while after it has seen that in the log."""
        while True:
            latest = read_latest(ObjectStorage(str(self.root / "state")))
            greenlet.getcurrent().parent.switch(False)
            try:
                driver._log.claim_after(0 if latest is None else latest.incarnation)
            except Superseded:
                self.happened["outrun"] += 1
            else:
                return

    def _meets(self, request: str, *, before: bool) -> None:
        """What happens to the process that is at this request."""
        here, rng = self._running, self.rng
        if here is None or here is not greenlet.getcurrent():
            return
        self.now += rng.random()
        self.requests.append(re.sub(r"[0-9a-f]{8}", "*", request))
        trouble = self._trouble / (8 if request.startswith(("read", "list", "look")) else 1)
        drawn = rng.random() / trouble if trouble else 9.0
        if drawn < 0.25:
            self.happened["died"] += 1
            self._living.remove(here)
            self._dead.append(here)
            here.parent.switch(False)
        elif drawn < 1:
            self.happened["held up"] += 1
            self.now += rng.choice([0, 1, 60, 400])
            here.parent.switch(False)
        elif drawn < 1.5:
            self.happened["failed requests"] += 1
            raise StorageError(f"{request}: failed {'before' if before else 'after'} it took effect")
        elif not self._trouble and len(self._living) > 1 and rng.random() < 0.02:
            here.parent.switch(False)

    def _id(self) -> uuid.UUID:
        if self._running is not greenlet.getcurrent():  # a thread that another test has left takes nothing from the seed
            return uuid.UUID(bytes=os.urandom(16), version=4)
        return uuid.UUID(int=self.rng.getrandbits(128) ^ self._number << 96, version=4)

    def _seed(self) -> int:
        return 1 + self.rng.getrandbits(62)

    def _store_at(self, url: str) -> MemoryStore:
        return self._stores.setdefault(url, MemoryStore())
