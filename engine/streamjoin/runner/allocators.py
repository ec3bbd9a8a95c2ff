"""Memory that was freed goes back to the system: allocators keep what an epoch needed for the next one, up to twice what a worker holds.

That is right while epochs follow each other, as new pages cost a quarter of an epoch's processor time; so it is done in pauses.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

SELDOM_SECONDS = 10.0
"""So often at most while there is work now and then."""
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": f"{SELDOM_SECONDS * 1000:.0f}"}
"""For processes that join: Arrow's allocator would return pages after 10 ms, and an epoch's are asked for again by the next one."""


class Allocators:
    """This process's. Not safe for use by several threads."""

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
