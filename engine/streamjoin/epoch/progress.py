"""Watches whether a running epoch moves: which step it is in, since when nothing of it has moved, and how long that may last.

A step moves when it begins; while the driver waits for its workers, whatever they send, receive or finish moves it too. So a large epoch
that goes on is never overdue. An epoch that waits for an answer that does not come is overdue, whoever owes the answer: a worker, an object
store, a broker. Between epochs nothing can be overdue, so a join without input never is.

Two parts act on the same deadline. The pool of workers gives up an attempt in which no worker moves, and the attempt is done again. The
watchdog (``cli.watchdog``) ends a process whose own thread does not come back, because nothing else can.

Any thread may ask; only the driver's thread reports.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

LEAST_SECONDS = 600.0
"""The deadline where none is given is no shorter: a worker that reads much state back, or joins much at once, shows nothing for minutes."""
TIMES_USUAL = 10.0
"""Nor is it shorter than so many times what the slowest of the last epochs took."""
RECENT_EPOCHS = 30
NOTICED = 0.2
"""The part of the deadline after which a join counts as stalled."""
WORKERS_GRACE_SECONDS = 120.0
"""The time within which the pool gives up an attempt that is overdue: its workers have a minute to answer, and some seconds to say why
they died."""
START_GRACE_SECONDS = 1200.0
"""Starting workers has deadlines of its own: a cluster may have to start machines first."""
WITH_WORKERS = ("tasks", "switch")
STARTING = "deploy"
MOST_NAMED = 3


class Answering(Protocol):
    """The part that carries an epoch's tasks out (:class:`streamjoin.epoch.ports.Runner`)."""

    @property
    def waits_for(self) -> tuple[str, ...] | None: ...

    @property
    def moved_at(self) -> float: ...


@dataclass(frozen=True)
class Activity:
    """The step that a running epoch is in, and since when it has not moved."""

    epoch: int
    step: str
    """The step, as the driver names it (``controlplane.driver``)."""
    seconds: float
    """The seconds since anything of it moved."""
    deadline_seconds: float
    waits_for: tuple[str, ...] = ()
    """Workers that have yet to answer."""
    grace_seconds: float = 0.0

    @property
    def still_seconds(self) -> float:
        """As ``seconds``, but 0 while workers are started: the plan API says what they wait for."""
        return 0.0 if self.step == STARTING else self.seconds

    @property
    def is_noticed(self) -> bool:
        """Whether it has stood still for so long that somebody should know."""
        return self.still_seconds > NOTICED * self.deadline_seconds

    @property
    def is_lost(self) -> bool:
        """Whether it is overdue, and who else might have given it up has not."""
        return self.seconds > self.deadline_seconds + self.grace_seconds

    @property
    def sentence(self) -> str:
        return stall_sentence(self.epoch, self.step, self.seconds, self.waits_for)


def stall_sentence(epoch: int, step: str, seconds: float, waits_for: Sequence[str]) -> str:
    """A sentence that says which step stands still, and which workers it waits for."""
    return f"epoch {epoch}: stalled in step {step}: nothing of it has moved for {seconds:.0f} s; it waits for {named(waits_for)}"


def named(waits_for: Sequence[str]) -> str:
    """The workers that an epoch waits for, in words; of many, the first ones. Without workers, the driver itself waits, and only the step
    is known."""
    if not waits_for:
        return "an answer to the driver itself, from storage or a broker"
    others = len(waits_for) - MOST_NAMED
    return ", ".join(waits_for[:MOST_NAMED]) + (f" and {others} more" if others > 0 else "")


class ProgressMonitor:
    """See the module."""

    def __init__(self, workers: Answering, deadline_seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``deadline_seconds``: the manifest's; None: derived from what epochs take."""
        self._workers = workers
        self._asked = deadline_seconds
        self._clock = clock
        self._at: tuple[int, str, float] | None = None
        self._seconds: deque[float] = deque(maxlen=RECENT_EPOCHS)
        self.stalls = 0
        """Attempts since the last commit that were given up because nothing moved."""
        self.total_stalls = 0
        self.last_stall: str | None = None
        """What the last of these was; None: none since the last commit."""

    @property
    def deadline_seconds(self) -> float:
        if self._asked is not None:
            return self._asked
        return max(LEAST_SECONDS, TIMES_USUAL * max(self._seconds.copy(), default=0.0))

    @property
    def activity(self) -> Activity | None:
        """None between epochs."""
        at = self._at
        if at is None:
            return None
        epoch, step, moved_at = at
        waits_for, grace = None, START_GRACE_SECONDS if step == STARTING else 0.0
        if step in WITH_WORKERS:
            waits_for = self._workers.waits_for
            if waits_for is not None:
                moved_at, grace = max(moved_at, self._workers.moved_at), WORKERS_GRACE_SECONDS
        return Activity(epoch, step, max(0.0, self._clock() - moved_at), self.deadline_seconds, waits_for or (), grace)

    def enter(self, epoch: int, step: str) -> None:
        """A step begins."""
        self._at = (epoch, step, self._clock())

    def leave(self) -> None:
        """The epoch is over, whatever became of it; or nothing was new."""
        self._at = None

    def committed(self, seconds: float) -> None:
        """An epoch was committed that took so long."""
        self._seconds.append(seconds)
        self.stalls, self.last_stall = 0, None

    def stalled(self, sentence: str) -> None:
        """An attempt was given up because nothing moved."""
        self.last_stall = sentence
        self.stalls += 1
        self.total_stalls += 1
