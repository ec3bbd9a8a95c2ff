"""Waits for what happens elsewhere: in another process, or over a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    what: str, found: Callable[[], Any], seconds: float = 60.0, *, every: float = 0.05, told: Callable[[], str] = lambda: ""
) -> Any:
    """What ``found`` returns as soon as that is true; ``told`` says more where it does not become so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds:.0f} s\n{told()}".rstrip())
