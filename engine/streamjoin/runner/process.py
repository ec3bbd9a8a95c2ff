"""A worker's process as the driver sees it, and the place that it is at; both are guarded by the pool's lock."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from streamjoin.runner.messages import Hello, encode

DIRECT_BYTES = 32 << 10
"""Half of the window that gRPC gives a stream from the start."""


class Process:
    """A worker's process that is connected."""

    def __init__(self, hello: Hello, writer: Any) -> None:
        self.hello = hello
        self.shared: set[str] = set()
        """Identities of what it was sent."""
        self.silent = 0
        self.progress = 0
        self.gone = False
        """Whether it is gone: not asked and not heard any more."""
        self._writer: Any | None = writer
        self._lock = threading.Lock()
        self._unheard = 0
        """Bytes sent since it last said something."""
        self._queued = 0
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writing = threading.Thread(target=self._write_queued, name=f"to-{hello.place}", daemon=True)
        self._writing.start()

    @property
    def address(self) -> str:
        return self.hello.address

    def tell(self, message: Any) -> None:
        """Returns at once. What a connection's window has room for is written here, as a thread that must wake costs more than the writing;
        all else by one of the process's own, since a process that hangs does not read."""
        data = encode(message)
        with self._lock:
            if self._queued or self._unheard + len(data) > DIRECT_BYTES:
                self._queued += 1
                self._outbox.put(data)
            else:
                self._write(data)

    def heard(self) -> None:
        self.silent, self._unheard = 0, 0

    def close(self) -> None:
        """Tell nothing any more. NB: Flight frees the writer when the call that brought it returns, whoever may be writing."""
        self.gone = True
        self._outbox.put(None)
        self._writing.join()
        with self._lock:
            self._writer = None

    def _write_queued(self) -> None:
        while (data := self._outbox.get()) is not None:
            self._write(data)
            with self._lock:
                self._queued -= 1

    def _write(self, data: bytes) -> None:
        """Errors are left to who reads: the connection ends there too."""
        self._unheard += len(data)
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            if self._writer is not None:
                self._writer.write_metadata(pa.py_buffer(data))

    def __str__(self) -> str:
        return f"worker at place {self.hello.place} (process {self.hello.pid} on {self.hello.host})"


@dataclass
class Place:
    number: int
    process: Process | None = None
    deaths: int = 0
    """The number of its processes that died, as far as the reason is known."""
    reason: str | None = None
    """The reason of the last of these deaths."""
    absence: str | None = None
    """Why no process has come since the last one, or ever: what brings them has failed. None: nothing is known to be wrong."""
    is_replaced: bool = False
    """Whether its process was given up, which also ends what keeps the place."""
    is_unexplained: bool = False
    """Whether its process is gone, and nobody has told why."""
    empty_since: float = field(default_factory=time.monotonic)
    """Where it has no process."""

    def died(self, reason: str) -> None:
        self.deaths, self.reason, self.is_unexplained = self.deaths + 1, reason, False
