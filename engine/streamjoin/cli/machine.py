"""What this machine gives to local Spark: how much heap each executor gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20
FLOOR_MIB = 512
"""Below this an executor's JVM spends its time collecting garbage, or does not start at all."""
RESERVED_MIB = 1536
"""For the driver: its JVM's heap, and Python."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class ExecutorMemory:
    """``heap_mib`` for each executor's JVM, and a warning where the machine has less than the manifest asks for."""

    heap_mib: int
    warning: str | None


def machine_bytes() -> int:
    """The memory of the machine, or of the container that this runs in."""
    total = psutil.virtual_memory().total
    for path in CGROUP_LIMITS:
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        total = min(total, limit)
    return total


def executor_memory(worker_bytes: int, workers: int, machine: int) -> ExecutorMemory:
    """Half of a worker's memory, for the pieces that pass through its JVM; the other half is Python's, which holds the tuples.

    Never more than half of an even share of the machine, and never less than FLOOR_MIB.
    """
    share = max(0, machine // MIB - RESERVED_MIB) // workers
    asked = worker_bytes // MIB
    heap = max(FLOOR_MIB, min(asked, share) // 2)
    warning = None
    if asked > share:
        warning = (
            f"{workers} workers of {asked:,} MiB (spec.workers.resources.memory) are more than this machine's {machine // MIB:,} MiB; "
            f"each gets {heap:,} MiB of heap, so keep spec.workers.capacityTuples small or spec.workers.max low"
        )
    return ExecutorMemory(heap, warning)
