"""The inline runner: the same task functions in this process, without a JVM. For tests, and for a first try.

Each task has a run store of its own, as it would on a worker of its own.
"""

from __future__ import annotations

import traceback
from collections import defaultdict

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

    def run(self, spec: EpochSpec, tasks: int) -> list[TaskReport]:
        try:
            shuffled: defaultdict[int, list[Piece]] = defaultdict(list)
            for index in range(len(spec.splits)):
                for piece in route(spec, index):
                    shuffled[piece.task].append(piece)
            return [join(spec, task, shuffled.pop(task, []), self._stores[task]) for task in range(tasks)]
        except Exception as error:
            raise EpochFailed(
                f"epoch {spec.epoch}: {type(error).__name__}: {error}", traceback.format_exc(), permanent=isinstance(error, SourceError)
            ) from error

    def lose(self, task: int) -> None:
        """Forget what the task's worker held, as when its executor dies."""
        self._stores.pop(task, None)

    def stop(self) -> None:
        self._stores.clear()
