"""Gives freed memory back to the system: allocators keep what an epoch needed for the next one, up to twice what a worker holds.

To keep it is right while epochs follow each other, because new pages cost a quarter of an epoch's processor time. So memory goes back in
pauses.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

SELDOM_SECONDS = 10.0
"""The least time between two, while there is work now and then."""
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": f"{SELDOM_SECONDS * 1000:.0f}"}
"""The environment of processes that join: Arrow's allocator would return pages after 10 ms, and the next epoch would ask for them again."""


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
        trim = _trim()
        if trim is not None:
            trim(0)


@cache
def _trim() -> Any:
    """glibc's malloc_trim; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
