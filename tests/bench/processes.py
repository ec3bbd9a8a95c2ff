"""The processes of a running join: which there are, what memory and files each kind holds, and the processor time of all. Linux only.

PSS counts a page that several processes share in equal parts, so sums over processes are true. Of it, *mapped* is what files give
(libraries, and blocks in the page cache, which the system may take back), and *private* is all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

DRIVER, DRIVER_JVM, EXECUTORS, WORKERS = "driver", "driver JVM", "executor JVMs", "workers"
KINDS = (DRIVER, DRIVER_JVM, EXECUTORS, WORKERS)
"""An executor is a JVM and its workers, which are Python processes: in these the runs are held."""


@dataclass(frozen=True)
class Memory:
    """Bytes, and what else is told with them."""

    rss: int = 0
    private: int = 0
    mapped: int = 0
    files: int = 0
    """Open file descriptors."""

    @property
    def pss(self) -> int:
        return self.private + self.mapped

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.private + other.private, self.mapped + other.mapped, self.files + other.files)

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.rss - other.rss, self.private - other.private, self.mapped - other.mapped, self.files - other.files)


def processes() -> Iterator[tuple[str, psutil.Process]]:
    """This process, which drives, and its descendants, each with its kind."""
    own = psutil.Process()
    yield DRIVER, own
    for process in own.children(recursive=True):
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "streamjoin.runner.daemon" in command:
            yield WORKERS, process
        elif "ExecutorBackend" in command:
            yield EXECUTORS, process
        elif "java" in command:
            yield DRIVER_JVM, process


def memory() -> dict[str, Memory]:
    """What each kind holds now. Takes some milliseconds for each gigabyte."""
    found = dict.fromkeys(KINDS, Memory())
    for kind, process in processes():
        try:
            found[kind] += memory_of(process.pid) + Memory(files=process.num_fds())
        except (OSError, psutil.Error):
            continue  # it has ended
    return found


def memory_of(pid: int) -> Memory:
    """A process' memory. Raises OSError when it is gone."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    mapped = fields.get("Pss_File", 0)
    return Memory(fields["Rss"], fields["Pss"] - mapped, mapped)


def cpu_seconds() -> float:
    """Processor time that this process and its descendants have taken."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))
