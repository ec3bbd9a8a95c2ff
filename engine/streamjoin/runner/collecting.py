"""Has Python's collector of cycles look seldom, and not at what was loaded: else it takes a third of what an epoch of 200 workers costs
their driver."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

NEW_OBJECTS = 10_000
"""After so many more Python looks for cycles among them. By itself it does after 700."""


def collect_seldom() -> None:
    """Have it look at new objects seldom, and never again at those that are there now: for a process, and its forks, that has loaded what
    it needs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(NEW_OBJECTS, gc.get_threshold()[0]))


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """The same for as long as this lasts, as when a process goes on to other things."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
