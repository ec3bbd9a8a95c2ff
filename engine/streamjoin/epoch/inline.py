"""The inline runner: an epoch's tasks in this process, one after another, without a JVM.

Each task has a store of its own, as if it were a process of its own. An epoch that is submitted while another is in flight is routed at
once and joined when its result is asked for, which is the order of things on Spark. This is what the protocol is tested on, and
``streamjoin run --runner inline``.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable

from streamjoin.epoch.driver import EpochFailed
from streamjoin.epoch.join import join
from streamjoin.epoch.route import route
from streamjoin.epoch.spec import EpochSpec, Piece, TaskReport
from streamjoin.io.base import SourceError
from streamjoin.kernel.run import warm
from streamjoin.state.store import RunStore


class InlineRunner:
    """See the module. Always holds: a task that fails leaves the stores as if it had not run."""

    def __init__(self) -> None:
        self._stores: defaultdict[int, RunStore] = defaultdict(RunStore)

    def start(self, tasks: int) -> None:
        warm()

    @property
    def overlaps(self) -> bool:
        return True

    def submit(self, spec: EpochSpec, tasks: int) -> InlineEpoch:
        return InlineEpoch(spec, tasks, lambda task: self._stores[task])

    def lose(self, task: int) -> None:
        """Forget what the task's worker held, as when its executor dies."""
        self._stores.pop(task, None)

    def stop(self) -> None:
        self._stores.clear()


class InlineEpoch:
    """One epoch, routed. What routing raises, ``result`` does."""

    def __init__(self, spec: EpochSpec, tasks: int, store: Callable[[int], RunStore]) -> None:
        self._spec, self._tasks, self._store = spec, tasks, store
        self._shuffled: defaultdict[int, list[Piece]] = defaultdict(list)
        self._failure: EpochFailed | None = None
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
            return [join(self._spec, task, self._shuffled.pop(task, []), self._store(task)) for task in range(self._tasks)]
        except Exception as error:
            raise self._failed(error) from error

    def cancel(self) -> None:
        self._shuffled.clear()

    def _failed(self, error: Exception) -> EpochFailed:
        message = f"epoch {self._spec.epoch}: {type(error).__name__}: {error}"
        return EpochFailed(message, traceback.format_exc(), permanent=isinstance(error, SourceError))
