"""The memory of this machine, and how much each worker may hold if the manifest does not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil

from streamjoin.job import Job
from streamjoin.manifest.capacity import derived
from streamjoin.manifest.memory import room_of_process

MIB = 1 << 20
RESERVED_MIB = 1024
"""Memory for the driver: Python, and the JVM of Spark."""
SHARE = 2
"""A machine of one's own has other programs, too, and blocks in its page cache: a join whose manifest names no capacity is to fit into one
part of so many."""
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


def fitted(job: Job, machine: int) -> Job:
    """The job with what its workers may hold on this machine, of so many bytes, where its capacity follows from memory: the manifest's,
    if it names one, and no more than each worker's share of the machine."""
    if not job.capacity.origin:
        return job
    resources = job.manifest.spec.workers.resources
    share = max(0, machine // SHARE - RESERVED_MIB * MIB) // job.max_workers
    if "memory" in resources.model_fields_set and resources.memory.bytes <= share:
        memory = resources.memory.bytes
        whose = f"spec.workers.resources.memory ({memory // MIB:,} MiB)"
    else:
        memory = share
        whose = f"a worker's share of this machine's {machine // MIB:,} MiB ({memory // MIB:,} MiB for each of {job.max_workers})"
    arriving = job.max_tuples * max(stream.tuple_bytes for stream in job.streams)
    capacity = derived(room_of_process(memory), arriving, f"{whose} leaves beside Python and page cache")
    return replace(job, capacity=capacity)


def shortage(worker_bytes: int, workers: int, machine: int) -> str | None:
    """A warning where the machine has less memory than the manifest's workers ask for, and their capacity does not follow from it."""
    asked, share = worker_bytes // MIB, max(0, machine // MIB - RESERVED_MIB) // workers
    if asked <= share:
        return None
    return (
        f"{workers} workers of {asked:,} MiB (spec.workers.resources.memory) are more than this machine's {machine // MIB:,} MiB; "
        f"each has about {share:,} MiB, so keep spec.workers.capacity or capacityTuples small, or spec.workers.max low"
    )
