"""Which StreamJoins are to be reconciled, and when: a queue of names, each at most once, each worked on by one worker at a time.

A name that is put while it is worked on is done again afterwards, so nothing that happens meanwhile is missed. Failures are tried again
with growing pauses, or when the API server says.

A reconcile mostly waits for answers, and whoever accepts connections and never answers must not keep the others waiting. So a worker waits
for ``PATIENCE_SECONDS``, leaves what is not over then to itself, and goes on to the next; a name that took longer the last time is left to
itself at once, and at most ``MOST_SLOW`` such names are begun at a time.

Always holds: a name is in one of three places (waiting for its time, or being worked on, or unknown); what is put for a later time comes
earlier when it is put again for an earlier one; a reconcile ends within ``BUDGET_SECONDS``, whatever its calls take; where fewer names are
worked on than there are workers, everything that is due is taken up.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from streamjoin_operator.api import ApiError

Key = tuple[str, str]
"""Namespace and name."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before a failed reconcile is tried again: doubled each time."""
PATIENCE_SECONDS = 2.0
MOST_SLOW = 64
BUDGET_SECONDS = 240.0
"""For a whole reconcile: one that ends here is tried again, which is harmless between any two steps. Some thirty requests to an API server
that takes seconds for each fit."""
STUCK_SECONDS = 600.0
"""A reconcile that takes so long hangs: not even its budget has ended it."""

log = logging.getLogger(__name__)


class OverBudget(Exception):  # noqa: N818 - says what happened
    """A reconcile took longer than its budget."""


@dataclass
class _Waiting:
    due: float
    since: float
    """When it became wanted: the queue's age is counted from the later of this and ``due``."""


@dataclass
class Queue:
    """See the module. All in one event loop."""

    reconcile: Callable[[Key], Awaitable[float | None]]
    """Returns after how many seconds to come again, or None: when something happens."""
    clock: Callable[[], float] = time.monotonic
    finished: Callable[[Key, float, BaseException | None], None] = lambda key, seconds, error: None
    _waiting: dict[Key, _Waiting] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)
    _running: dict[Key, float] = field(default_factory=dict)
    _again: dict[Key, float] = field(default_factory=dict)
    _failures: dict[Key, int] = field(default_factory=dict)
    _slow: set[Key] = field(default_factory=set)
    """Names whose last reconcile, or the one that runs, took longer than a worker waits."""
    _held: list[tuple[float, Key]] = field(default_factory=list)
    """Of the heap: slow ones that are due, until fewer of their kind are worked on."""
    _workers: int = 1
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    heartbeat: float = 0.0
    """When the loop was last seen alive."""

    def put(self, key: Key, after: float = 0.0) -> None:
        """Have it reconciled, in ``after`` seconds at the latest."""
        due = self.clock() + after
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
            return
        waiting = self._waiting.get(key)
        if waiting is None or due < waiting.due:
            self._waiting[key] = _Waiting(due, self.clock())
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._waiting.pop(key, None)
        self._again.pop(key, None)
        self._failures.pop(key, None)
        self._slow.discard(key)

    @property
    def has_free_worker(self) -> bool:
        """Whether what is due could be taken up."""
        return len(self._running) < self._workers

    @property
    def depth(self) -> int:
        """How many are due."""
        now = self.clock()
        return sum(waiting.due <= now for waiting in self._waiting.values())

    @property
    def age(self) -> float:
        """For how many seconds the oldest has been due."""
        now = self.clock()
        return max((now - max(waiting.due, waiting.since) for waiting in self._waiting.values() if waiting.due <= now), default=0.0)

    @property
    def longest_running(self) -> float:
        """For how many seconds the oldest reconcile has been at work."""
        return max((self.clock() - since for since in self._running.values()), default=0.0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due or being worked on."""
        return not self._running and not self.depth

    def failing(self) -> int:
        """How many were not reconciled at the last attempt."""
        return len(self._failures)

    async def run(self, workers: int) -> None:
        """Until cancelled."""
        self._workers = workers
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            for _ in range(workers):
                group.create_task(self._work(group))

    async def _beat(self) -> None:
        while True:
            self.heartbeat = self.clock()
            await asyncio.sleep(1.0)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while True:
            key = await self._next()
            running = group.create_task(self._reconcile(key))
            if key not in self._slow:
                await asyncio.wait((running,), timeout=PATIENCE_SECONDS)
                if not running.done():
                    self._slow.add(key)

    async def _reconcile(self, key: Key) -> None:
        began = self.clock()
        error: BaseException | None = None
        after: float | None = None
        try:
            after = await self._within_budget(key)
            self._failures.pop(key, None)
        except asyncio.CancelledError:
            self._running.pop(key, None)
            raise
        except Exception as raised:  # whatever it is, this one is tried again and the others go on
            error, after = raised, self._pause(key, raised)
            self._tell(key, raised, after)
        self._running.pop(key, None)
        seconds = self.clock() - began
        if seconds <= PATIENCE_SECONDS:
            self._slow.discard(key)
        self._resume_held()
        self.finished(key, seconds, error)
        again = self._again.pop(key, None)
        if again is not None and error is None:  # an event is no reason to hurry what has just failed
            self.put(key, max(0.0, again - self.clock()))
        if after is not None:
            self.put(key, after)

    async def _within_budget(self, key: Key) -> float | None:
        try:
            async with asyncio.timeout(BUDGET_SECONDS) as budget:
                return await self.reconcile(key)
        except TimeoutError:
            if not budget.expired():
                raise
            raise OverBudget(f"it took longer than {BUDGET_SECONDS:.0f} s") from None

    def _resume_held(self) -> None:
        if self._held:
            for entry in self._held:
                heapq.heappush(self._heap, entry)
            self._held.clear()
            self._changed.set()

    async def _next(self) -> Key:
        while True:
            now = self.clock()
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                waiting = self._waiting.get(key)
                if waiting is None or waiting.due != due or key in self._running:
                    continue
                if key in self._slow and len(self._slow & self._running.keys()) >= MOST_SLOW:
                    self._held.append((due, key))
                    continue
                del self._waiting[key]
                self._running[key] = now
                return key
            self._changed.clear()
            pause = self._heap[0][0] - now if self._heap else 3600.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for of Python 3.11 may swallow a cancellation
                    await self._changed.wait()

    def _pause(self, key: Key, error: BaseException) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 16))
        if isinstance(error, ApiError):
            if error.status == 409 and failures == 1:
                return 0.1  # somebody else was quicker: look again
            if error.retry_after is not None:
                return max(error.retry_after, FIRST_PAUSE)
        return pause

    def _tell(self, key: Key, error: BaseException, after: float) -> None:
        extra = {"streamjoin": "/".join(key)}
        if isinstance(error, ApiError | OverBudget):
            log.warning("not reconciled, again in %.1f s: %s", after, error, extra=extra)
        else:
            log.error("not reconciled, again in %.1f s", after, exc_info=error, extra=extra)
