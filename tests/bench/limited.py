"""A memory limit for one process, page cache included, by a control group: what a container's limit is.

A group is made within the one that this process is in, and removed again. That needs cgroup version 1's memory controller and the right to
write to it (root in a container often has both). With version 2, start the whole program in a scope of its own instead:
``systemd-run --user --scope -p MemoryMax=1G -p MemorySwapMax=0 ...``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROLLER = Path("/sys/fs/cgroup/memory")


class NoLimit(RuntimeError):  # noqa: N818 - an answer rather than an error
    """This machine gives no way to limit a process. One line, with the reason."""


class Group:
    """A control group with a limit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enter(self) -> None:
        """This process, and those that it starts, are limited from now on."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> int:
        """The most bytes that the group has had."""
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    @property
    def reclaims(self) -> int:
        """How often the limit was met and pages were taken back."""
        return int((self.path / "memory.failcnt").read_text())


@contextmanager
def limited(limit_bytes: int) -> Iterator[Group]:
    """A group for processes that end before this does. Raises NoLimit."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((path for _, controllers, path in (line.split(":", 2) for line in lines) if "memory" in controllers.split(",")), None)
    if own is None:
        raise NoLimit(f"there is no memory controller of cgroup version 1 at {CONTROLLER}")
    path = CONTROLLER / own.lstrip("/") / f"streamjoin-bench-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        raise NoLimit(f"{path} cannot be made: {error.strerror}") from error
    try:
        (path / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield Group(path)
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """A group can be removed once its last process is gone, which is a moment after its parent has heard of it."""
    deadline = time.monotonic() + 10
    while True:
        try:
            path.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
