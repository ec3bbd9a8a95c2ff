"""Gives freed memory back to the system: allocators keep what an epoch needed for the next one, up to twice what a worker holds.

To keep it is right while epochs follow each other, because new pages cost a quarter of an epoch's processor time. So memory goes back in
pauses.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

SELDOM_SECONDS = 10.0
"""The least time between two, while there is work now and then."""
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": f"{SELDOM_SECONDS * 1000:.0f}"}
"""The environment of processes that join: Arrow's allocator would return pages after 10 ms, and the next epoch would ask for them again."""
MMAP_BYTES, TRIM_BYTES = 32 << 20, 256 << 20
"""Of glibc's malloc: from this size on an array is mapped and unmapped by itself (more cannot be set), and so much that is free at the end
of the heap goes back at once. By its own rules, 128 KiB and more: an array of NumPy's would have new pages each time."""
NEW_OBJECTS = 10_000
"""After so many more Python looks for cycles among them. By itself it does after 700, a fifth of what an epoch of 200 workers tells their
driver, and again and again at all that has been loaded."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_pages() -> None:
    """Have glibc's malloc keep what is freed, for this process and its forks, until it is given back (:class:`Allocators`).

    All threads allocate from one arena, because of others it does not give back the end.
    """
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        for option, value in ((_M_MMAP_THRESHOLD, MMAP_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES), (_M_ARENA_MAX, 1)):
            mallopt(option, value)


def collect_seldom() -> None:
    """Have Python's collector of cycles look at new objects seldom, and never again at those that are there now: for a process, and its
    forks, that has loaded what it needs."""
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


class Allocators:
    """The memory allocators of this process. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._given_back_at = time.monotonic()

    def give_back(self, *, seldom: bool = False) -> None:
        """Return what is free to the system; ``seldom``: unless that was done a moment ago. Some milliseconds."""
        now = time.monotonic()
        if seldom and now - self._given_back_at < SELDOM_SECONDS:
            return
        self._given_back_at = now
        import pyarrow as pa  # late: it reads ENVIRONMENT as it is loaded

        pa.default_memory_pool().release_unused()
        trim = _of_libc("malloc_trim")
        if trim is not None:
            trim(0)


@cache
def _of_libc(name: str) -> Any:
    """A function of glibc's; None with another C library that lacks it."""
    return getattr(ctypes.CDLL(None), name, None)
