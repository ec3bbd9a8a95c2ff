"""Which StreamJoins are to be reconciled, and when: a queue of names, each at most once, each worked on by one worker at a time.

A name that is put while it is worked on is done again afterwards, so nothing that happens meanwhile is missed. Failures are tried again
with growing pauses, or when the API server says.

Always holds: a name is in one of three places (waiting for its time, or being worked on, or unknown); what is put for a later time comes
earlier when it is put again for an earlier one.
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
STUCK_SECONDS = 600.0
"""A reconcile that takes so long hangs: every wait in it has a deadline far below."""

log = logging.getLogger(__name__)


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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            for _ in range(workers):
                group.create_task(self._work())

    async def _beat(self) -> None:
        while True:
            self.heartbeat = self.clock()
            await asyncio.sleep(1.0)

    async def _work(self) -> None:
        while True:
            key = await self._next()
            began = self.clock()
            error: BaseException | None = None
            after: float | None = None
            try:
                after = await self.reconcile(key)
                self._failures.pop(key, None)
            except asyncio.CancelledError:
                self._running.pop(key, None)
                raise
            except Exception as raised:  # whatever it is, this one is tried again and the others go on
                error, after = raised, self._pause(key, raised)
                self._tell(key, raised, after)
            self._running.pop(key, None)
            self.finished(key, self.clock() - began, error)
            again = self._again.pop(key, None)
            if again is not None and error is None:  # an event is no reason to hurry what has just failed
                self.put(key, max(0.0, again - self.clock()))
            if after is not None:
                self.put(key, after)

    async def _next(self) -> Key:
        while True:
            now = self.clock()
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                waiting = self._waiting.get(key)
                if waiting is not None and waiting.due == due and key not in self._running:
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
        if isinstance(error, ApiError):
            log.warning("not reconciled, again in %.1f s: %s", after, error, extra=extra)
        else:
            log.error("not reconciled, again in %.1f s", after, exc_info=error, extra=extra)
