"""A worker's process as the driver sees it, and the place that it is at; both are guarded by the pool's lock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from streamjoin.runner.control import Connection
from streamjoin.runner.messages import Hello, encode


class Process:
    """A worker's process that is connected."""

    def __init__(self, hello: Hello, connection: Connection) -> None:
        self.hello = hello
        self.shared: set[str] = set()
        """Identities of what it was sent."""
        self.silent = 0
        self.progress = 0
        self.gone = False
        """Whether it is gone: not asked and not heard any more."""
        self._connection = connection

    @property
    def address(self) -> str:
        return self.hello.address

    def tell(self, message: Any) -> None:
        """Returns at once."""
        self._connection.say(encode(message))

    def hang_up(self) -> None:
        """End the connection, once what it was told is sent."""
        self._connection.close()

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
