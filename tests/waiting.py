"""Waits for what happens elsewhere: in another process or thread, or over a network. Nothing else in the tests looks at a clock."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 300.0
"""What a test waits for has failed after this: no machine is so busy. Also the timeout of processes, requests, threads and futures."""


def wait_for(what: str, found: Callable[[], Any], *, every: float = 0.05, told: Callable[[], str] = lambda: "") -> Any:
    """What ``found`` returns as soon as that is true; ``told`` says more where it does not become so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(in_vain(what, told))


async def wait_in_loop(what: str, found: Callable[[], Any], *, every: float = 0.05, told: Callable[[], str] = lambda: "") -> Any:
    """The same where the loop's other tasks are to go on; ``found`` may be a coroutine."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        value = found()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(every)
    raise AssertionError(in_vain(what, told))


class Sleepless:
    """Instead of a module's ``time``: who sleeps has slept at once, and nothing else takes any time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def in_vain(what: str, told: Callable[[], str]) -> str:
    return f"{what}: not within {PATIENCE_SECONDS:.0f} s\n{told()}".rstrip()
