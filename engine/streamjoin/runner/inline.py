"""The inline runner: an epoch's tasks in this process, one after another, without a JVM.

Each task has a store of its own, as if it were a process of its own. An epoch that is submitted while another is in flight is routed at
once and joined when its result is asked for, in the same order as on Spark. Tests of the protocol use this runner, and so does ``streamjoin
run --runner inline``.
"""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from streamjoin.dataplane.handshake import Link, converse, is_handshake
from streamjoin.dataplane.join import Part, TaskPart, rounds_among_tasks
from streamjoin.dataplane.route import route
from streamjoin.epoch.ports import EpochFailed, too_large_of
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.io.base import SourceError
from streamjoin.io.telling import told
from streamjoin.kernel.run import warm
from streamjoin.state.store import RunStore

Kind = TypeVar("Kind", bound=TaskPart)


class InlineRunner:
    """See the module. Always holds: a task that fails leaves the stores as if it had not run."""

    def __init__(self) -> None:
        self._stores: dict[int, RunStore] = {}
        """By worker."""
        self._count = 0

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        warm()
        self._stores = {worker: RunStore() for worker in workers}
        self._count = len(workers)

    def request(self, count: int) -> None:
        warm()
        self._count = max(count, self._count)

    @property
    def ready(self) -> int:
        return self._count

    @property
    def absence(self) -> None:
        return None

    @property
    def waits_for(self) -> None:
        return None

    @property
    def moved_at(self) -> float:
        return float("-inf")

    @property
    def overlaps(self) -> bool:
        return True

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> InlineEpoch:
        return InlineEpoch(spec, workers, self._stores)

    @property
    def executors(self) -> dict[int, str]:
        return {}

    @property
    def leaving(self) -> dict[int, float]:
        return {}

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        self._stores = {worker: store for worker, store in self._stores.items() if worker in workers}
        self._count = len(workers)

    def lose(self, worker: int) -> None:
        """Forget what the worker held, as when its executor dies."""
        self._stores.pop(worker, None)

    def stop(self) -> None:
        self._stores.clear()


class InlineEpoch:
    """One epoch, routed. What routing raises, ``result`` does."""

    def __init__(self, spec: EpochSpec, workers: Sequence[int], stores: dict[int, RunStore]) -> None:
        self._spec, self._workers, self._stores = spec, workers, stores
        self._shuffled: defaultdict[int, list[Piece]] = defaultdict(list)
        self._failure: EpochFailed | None = None
        self.cpu_seconds: dict[int, float] = {}
        """By task, of a processor, until its new tuples were joined; not for what it then merged and wrote."""
        try:
            for index in range(len(spec.splits)):
                for piece in route(spec, index):
                    self._shuffled[piece.task].append(piece)
        except Exception as error:
            self._failure = self._failed(error)

    def result(self) -> list[TaskReport]:
        if self._failure is not None:
            raise self._failure
        try:
            with ExitStack() as begun:
                return self._joined(begun)
        except Exception as error:
            raise self._failed(error) from error

    def _joined(self, begun: ExitStack) -> list[TaskReport]:
        parts: Sequence[TaskPart]
        if is_handshake(self._spec):
            parts = links = self._begun(Link.begun, begun)
            converse(links)
        else:
            parts = self._in_rounds(self._begun(Part.begun, begun))
        reports = [part.finish().report() for part in parts]
        begun.pop_all()
        return reports

    def _begun(self, begin: Callable[[EpochSpec, int, Iterable[Piece], RunStore], Kind], begun: ExitStack) -> list[Kind]:
        parts: list[Kind] = []
        for task, worker in enumerate(self._workers):
            before = time.thread_time()
            parts.append(begin(self._spec, task, self._shuffled.pop(task, []), self._stores.setdefault(worker, RunStore())))
            begun.callback(parts[-1].abandon)
            self.cpu_seconds[task] = time.thread_time() - before
        return parts

    def _in_rounds(self, parts: list[Part]) -> list[Part]:
        for task, part in enumerate(parts):
            before = time.thread_time()
            self._deliver(parts, part.work())
            self.cpu_seconds[task] += time.thread_time() - before
        for number in range(rounds_among_tasks(self._spec) + 1):
            for part in parts:
                self._deliver(parts, part.close(number))
        return parts

    def _deliver(self, parts: list[Part], pieces: Iterator[Piece]) -> None:
        """Bring pieces to their tasks, and first of all what comes of each: so no more of them wait than there are rounds."""
        going_on = [pieces]
        while going_on:
            piece = next(going_on[-1], None)
            if piece is None:
                going_on.pop()
            else:
                going_on.append(parts[piece.task].take(piece))

    def cancel(self) -> None:
        self._shuffled.clear()

    def _failed(self, error: Exception) -> EpochFailed:
        message = f"epoch {self._spec.epoch}: {type(error).__name__}: {told(error)}"
        return EpochFailed(message, traceback.format_exc(), permanent=isinstance(error, SourceError), too_large=too_large_of(error))
