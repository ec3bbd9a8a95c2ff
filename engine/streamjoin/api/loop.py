"""The pace of a run: when the next epoch starts, when a failed one is tried again, and when it is over. Knows no terminal and no signals.

Epochs are taken from an iterator: the next one begins when it is asked for.

Always holds: whatever happens, also where nobody asks any more, the runner is stopped once and exactly one Ended is the last event told;
what an epoch had not committed by then is done again by the next run.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from streamjoin.api.failure import Failure, failure_of
from streamjoin.controlplane.next_checkpoint import REFUSED
from streamjoin.controlplane.replan import PlanStatus
from streamjoin.controlplane.standby import Phase
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.rules.sentences import worker_count
from streamjoin.epoch.ports import AllLost, EpochFailed, EpochResult
from streamjoin.io.deadletter import kind_of
from streamjoin.serve.observer import Observer, Steps

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before a failed epoch is tried again: once for each."""
DEATHS = 5
"""The number of further tries, without a pause, of an epoch whose worker has died."""
FIRST_ASK_SECONDS, MOST_ASK_SECONDS = 0.002, 0.05
"""Where the interval is shorter: how long after nothing was new the sources are asked again, twice as long each time."""
STALLS = 2
"""The number of tries, without a pause, of an epoch that was given up because nothing moved. Then the process ends, and the next one
begins with connections and threads of its own."""
MANY_LOST = 10_000
"""So many of a stream's first records have to be rejected or late, and no other, for a run to end that goes on otherwise."""


class Reason(StrEnum):
    """Why a run is over."""

    IDLE = "idle"
    TIME = "time"
    STOPPED = "stopped"
    FAILED = "failed"
    ELSEWHERE = "elsewhere"
    """The driver that this one stood by for has ended the join."""


@dataclass(frozen=True)
class Entering:
    """The driver begins a step of an epoch (see ``controlplane.driver``), by the wall clock."""

    step: str
    at: float


@dataclass(frozen=True)
class Standing:
    """The driver stands by for another, or takes over."""

    phase: Phase
    writer: str
    """Of the driver at work; empty: none is known."""
    workers: int | None
    """Of that one; None: it has not been heard."""
    ready: int
    """Workers here."""

    @property
    def sentence(self) -> str:
        who = f"the driver at work ({self.writer})"
        if self.phase is Phase.TAKING_OVER:
            return f"{who} is gone: taking over" if self.writer else "no other driver can be asked: this one starts"
        if self.phase is Phase.ENDED:
            return f"{who} has ended the join"
        if self.workers is None:
            return f"standby: {who} has not answered yet"
        return f"standby: {who} has {worker_count(self.workers)}; {worker_count(self.ready)} ready here"


@dataclass(frozen=True)
class Starting:
    """Workers are being started."""

    tasks: int


@dataclass(frozen=True)
class Started:
    tasks: int
    seconds: float


@dataclass(frozen=True)
class Done:
    """An epoch was committed and published; ``finished`` is the wall clock."""

    result: EpochResult
    finished: float
    plan: PlanStatus | None = None
    """The plan as it was after the epoch."""
    decision: Decision | None = None
    """The autoscaler's, where there is one."""


@dataclass(frozen=True)
class Waiting:
    """Nothing is to be done for now."""


@dataclass(frozen=True)
class Retrying:
    """An epoch failed and is tried again after a pause."""

    sentence: str
    attempt: int
    pause: float
    narrowed: bool = False
    """It takes less, to find the records that fail it."""


LOOK_SECONDS = 5.0
"""In a longer pause between epochs it is seen so often whether there is a reason not to wait."""
WARNING = "warning: "
"""How a notice begins that is one."""


@dataclass(frozen=True)
class Notice:
    """A line for who watches."""

    text: str


@dataclass(frozen=True)
class Asked:
    """Somebody asked the run to stop; the running epoch is finished first."""


@dataclass(frozen=True)
class Stopping:
    """The last epoch is over, workers are being stopped."""


@dataclass(frozen=True)
class Ended:
    reason: Reason
    failure: Failure | None = None
    abandoned: bool = False
    """The running epoch failed when the stop was asked for, and was not tried again."""


Event = Entering | Standing | Starting | Started | Done | Waiting | Retrying | Notice | Asked | Stopping | Ended


class Loop:
    """Epochs until told to stop, out of time, out of input, or failed. ``tell`` gets every event, in the thread that asks for them."""

    def __init__(
        self,
        driver: Driver,
        *,
        observers: Sequence[Observer] = (),
        interval_seconds: float,
        stop: threading.Event,
        tell: Callable[[Event], None],
        log_directory: Path,
        until_idle: bool = False,
        run_seconds: float | None = None,
        pauses: tuple[float, ...] = PAUSES,
        decision: Callable[[], Decision | None] = lambda: None,
        turn: Callable[[], Reason | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``observers``: of each step, before it is told. ``decision``: the autoscaler's last one. ``turn`` returns when the driver may
        start, or the reason why it need not any more."""
        self._driver, self._steps = driver, Steps(driver, observers)
        self._decision, self._turn = decision, turn
        self._interval = interval_seconds
        self._stop = stop
        self._tell = tell
        self._log_directory = log_directory
        self._until_idle = until_idle
        self._run_seconds = run_seconds
        self._pauses = pauses
        self._clock = clock
        self._warned: frozenset[str] = frozenset()

    def run(self) -> None:
        """All epochs."""
        for _ in self.epochs():
            pass

    def epochs(self) -> Generator[Done, None, None]:
        """Each epoch, once it is committed and published. Raises nothing: Ended says why there are no more. To be closed where it is left
        before its end."""
        ended = Ended(Reason.STOPPED)
        try:
            if not self._stop.is_set():
                reason = self._turn()
                if reason is None:
                    self._steps.start()
                    reason = yield from self._epochs()
                ended = Ended(reason)
        except Exception as error:
            if self._stop.is_set() and isinstance(error, EpochFailed):
                # Who asks all processes of a terminal or container to stop stops the workers too.
                ended = Ended(Reason.STOPPED, abandoned=True)
            else:
                failure = failure_of(error, traceback.format_exc(), self._log_directory)
                failure.__cause__ = error
                ended = Ended(Reason.FAILED, failure)
        finally:
            self._tell(Stopping())
            with contextlib.suppress(Exception):  # workers that are gone cannot be stopped; what matters is committed
                self._steps.stop()
            self._tell(ended)

    def _epochs(self) -> Generator[Done, None, Reason]:
        deadline: float | None = None
        idle = 0.0
        last: EpochResult | None = None
        while not self._stop.is_set():
            began = self._clock()
            done = self._attempts(final=False)
            if done is None and self._until_idle:
                done = self._attempts(final=True)
                if done is None and self._driver.exhausted:
                    self._tell_warnings()
                    if last is not None:
                        self._require_use(last, 2)  # one record alone may be wrong in a way of its own
                    return Reason.IDLE
            now = self._clock()
            if done is None:
                self._tell_warnings()
            else:
                self._warned = frozenset(done.result.warnings)
                yield done
                self._require_use(done.result, MANY_LOST)
                last = done.result
            if self._run_seconds is not None:
                # Counted from the end of the first step, for that one starts the workers.
                deadline = now + self._run_seconds if deadline is None else deadline
                if now >= deadline:
                    return Reason.TIME
            if done is not None and done.result.readable_backlog > 0:
                continue
            idle = min(max(FIRST_ASK_SECONDS, 2 * idle), MOST_ASK_SECONDS) if done is None else 0.0
            wait = max(idle, began + self._interval - self._clock())
            if deadline is not None:
                wait = min(wait, max(0.0, deadline - self._clock()))
            self._tell(Waiting())
            self._wait(wait)
        return Reason.STOPPED

    def _wait(self, seconds: float) -> None:
        """For so long, or until workers were told to go: their parts move between two epochs, before they do."""
        while not self._stop.wait(min(seconds, LOOK_SECONDS)) and seconds > LOOK_SECONDS and not self._driver.is_hurried:
            seconds -= LOOK_SECONDS

    @staticmethod
    def _require_use(result: EpochResult, least: int) -> None:
        """Raises AllLost where a stream has had so many records, in this epoch some, and all of them, ever, were rejected or late.

        So it does where there were as many results, and sinks have refused all of them.
        """
        totals = result.totals
        refused = totals.get(REFUSED, [0])[0]
        if result.refused and least <= refused == totals["output"][0]:
            raise AllLost(
                f"the sinks refused all of the first {refused:,} results. See why with streamjoin letters, mend what the sinks write to, or"
                " the manifest, and begin with a new checkpoint.location to have them published"
            )
        for stream, read in enumerate(totals["input"] if result.streams else ()):
            again = totals["replayed"][stream]
            records, rejected, late = read - again, totals["rejected"][stream] - again, totals["late"][stream]
            if records < least or rejected + late < records or not result.counts["input"][stream]:
                continue
            name, why = result.streams[stream], kind_of(result.rejections[stream])
            kinds = " and ".join(f"{kind} {count:,}" for kind, count in (("rejected", rejected), ("late", late)) if count)
            raise AllLost(
                f"{name}: {kinds} of its first {records:,} records, so that nothing was joined{f' ({why})' if why else ''}. See them with"
                " streamjoin letters, mend the manifest or the input, and have them read again with streamjoin letters --replay"
            )

    def _tell_warnings(self) -> None:
        """What sources that have nothing new warn of, once, where the last epoch's result has not said it."""
        for warning in self._driver.idle_warnings:
            if warning not in self._warned:
                self._tell(Notice(WARNING + warning))
        self._warned = frozenset(self._driver.idle_warnings)

    def _attempts(self, *, final: bool) -> Done | None:
        """One epoch, tried again with growing pauses. Raises what the last attempt raised."""
        pauses = iter(self._pauses)
        deaths = stalls = 0
        for attempt in itertools.count(1):
            try:
                result = self._steps.step(final=final)
            except EpochFailed as error:
                if error.is_narrowed and not self._stop.is_set():
                    self._tell(Retrying(str(error), attempt, 0.0, narrowed=True))
                    continue
                stalls += error.stalled
                deaths += error.worker_died and not error.stalled
                if error.stalled:
                    pause = 0.0 if stalls <= STALLS else None
                else:
                    pause = 0.0 if error.worker_died and deaths <= DEATHS else next(pauses, None)
                if error.permanent or pause is None or self._stop.is_set():
                    raise
                self._tell(Retrying(str(error), attempt, pause))
                self._stop.wait(pause)
                if self._stop.is_set():
                    raise
                continue
            if result is None:
                return None
            done = Done(result, time.time(), self._driver.plan_status(), self._decision())
            self._tell(done)
            return done
        raise AssertionError("the last attempt returns or raises")
