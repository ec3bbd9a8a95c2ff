"""Ports of 127.0.0.1 for programs that must be told theirs before they start.

Always holds: nobody else takes a port that was given away here. The system itself gives none below 32768, and no other process of tests
is given one that a process has, until that ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

FIRST, LAST = 20_000, 32_000

_held: list[IO[str]] = []
"""A file that is locked, for each port of this process."""


def free_ports(count: int) -> list[int]:
    """So many that nobody listens at."""
    folder = Path(tempfile.gettempdir()) / f"streamjoin-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(FIRST, LAST)  # tests seed the other one
        lock = (folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            lock.close()
        else:
            _held.append(lock)
            found.append(port)
    return found


def free_address() -> str:
    """Where nobody listens."""
    return f"127.0.0.1:{free_ports(1)[0]}"
