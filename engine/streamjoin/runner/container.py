"""What the processes of an executor's container tell each other by files: which workers are there, and that the container is to go.

A shell's few lines, the pod's readiness probe and its hook (``streamjoin_operator.executor_hooks``), read and write the same files: they
start no Python each time. In a directory that a variable of the environment names, each host has a file, ``<its process>.starting``, or
``.ready`` once the driver has answered its worker; who reads them passes over those of processes that are gone. ``leaving``, beside the
directory, has the second since 1970 at which the container will be gone.

Always holds: where the variable is not set, as on a laptop, there are no files, and nobody is told to go.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

DIRECTORY = "STREAMJOIN_WORKERS_DIRECTORY"


class Presence:
    """The file of this process, a host."""

    def __init__(self) -> None:
        named = os.environ.get(DIRECTORY)
        self._directory = Path(named) if named else None
        self._shown: Path | None = None

    def show(self, *, is_ready: bool) -> None:
        """Whether its worker is there. Raises OSError where the directory cannot be written."""
        if self._directory is None:
            return
        path = self._directory / f"{os.getpid()}.{'ready' if is_ready else 'starting'}"
        if self._shown is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif path != self._shown:
            self._shown.rename(path)
        self._shown = path

    def end(self) -> None:
        """The host ends."""
        if self._shown is not None:
            self._shown.unlink(missing_ok=True)


def seconds_left() -> float | None:
    """The seconds until the container is gone; None: it was not told to go."""
    named = os.environ.get(DIRECTORY)
    if named:
        with contextlib.suppress(OSError, ValueError):  # not there, or not yet written
            return float((Path(named).parent / "leaving").read_text()) - time.time()
    return None
