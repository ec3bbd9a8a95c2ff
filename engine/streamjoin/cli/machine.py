"""What this machine has for workers."""

from __future__ import annotations

from pathlib import Path

import psutil

MIB = 1 << 20
RESERVED_MIB = 1024
"""For the driver: Python, and the JVM of Spark."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


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


def shortage(worker_bytes: int, workers: int, machine: int) -> str | None:
    """A warning where the machine has less memory than the manifest's workers ask for."""
    asked, share = worker_bytes // MIB, max(0, machine // MIB - RESERVED_MIB) // workers
    if asked <= share:
        return None
    return (
        f"{workers} workers of {asked:,} MiB (spec.workers.resources.memory) are more than this machine's {machine // MIB:,} MiB; "
        f"each has about {share:,} MiB, so keep spec.workers.capacityTuples small or spec.workers.max low"
    )
