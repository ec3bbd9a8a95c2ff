"""What an executor's pod needs in memory, term by term, and whether it has it.

Each of its workers:

    held         capacity, or capacityTuples x bytes         runs that a worker holds when it is full; where neither is given, what is left
    merging      held / 4                                    merges write a new run before the old ones go
    arriving     min(epoch.maxTuples x bytes, held)          pieces of the epoch that is joined
    ahead        min(arriving, 256 MiB)                      pieces of the next one, which are sent meanwhile
    python       384 MiB                                     interpreter, Arrow, Numba and their code: daemon, host and worker
    page cache   64 MiB                                      blocks that are being written

And the executor, once for all of them:

    heap         256 MiB                                     of its JVM, through which no tuple passes
    jvm          192 MiB                                     the JVM's metaspace, code, threads, network buffers

Always holds: an accepted pod's terms add up to no more than its limit, so that a worker is not killed for memory below its capacity; what
the limit leaves over is page cache for mapped runs. Bytes per tuple follow from the schema, strings with an average length; whoever has
measured them (``streamjoin_worker_bytes / streamjoin_worker_tuples``) may give them instead. A running join's are not used: the size of its
pods, and so a restart, would hang on a measurement.

Measured with this heap (Linux, PSS): the JVM has 30 MiB of live objects and 100 MiB beside the heap, 263 MiB in all as an executor of
Spark on Kubernetes; the daemon 31 MiB, the host 90 and a worker that holds next to nothing 145, 266 in all. With 128 MiB of heap Spark does
not start.

Measured (``tests/bench/bench_memory.py --parts held``): held, merging and arriving together are 42 bytes a tuple for two columns of whole
numbers by this sum, and were 35 with the page cache in a pause between epochs and 54 without one; 112 with two strings among five columns,
and were 86 and 144. Half and more of that are mapped pages, which the system takes back where memory is short.

Known limits: the terms for JVM and Python are these and about a half more, for what other sources and sinks load.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.job import Job
from streamjoin.manifest.memory import AHEAD, HEAP, JVM, MERGING_SHARE, MIB, PAGE_CACHE, PYTHON
from streamjoin.scheme.capacity import Capacity


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The needs of the workers of an executor, in bytes; ``limit`` is what its pod gets."""

    workers: int
    """That it has room for. What follows, down to ``ahead``, is one worker's."""
    capacity: Capacity
    tuple_bytes: float
    is_measured: bool
    held: int
    merging: int
    arriving: int
    ahead: int
    limit: int

    @property
    def needed(self) -> int:
        return self.workers * (self.held + self.merging + self.arriving + self.ahead + PYTHON + PAGE_CACHE) + HEAP + JVM

    @property
    def fits(self) -> bool:
        return self.needed <= self.limit

    @property
    def heap_mib(self) -> int:
        """``spark.executor.memory``."""
        return HEAP // MIB

    @property
    def overhead_mib(self) -> int:
        """``spark.executor.memoryOverhead``: the rest of the pod's limit, for all that is not the JVM's heap."""
        return self.limit // MIB - self.heap_mib

    def arithmetic(self) -> str:
        """The sum in words, for events and status."""
        how = "measured" if self.is_measured else "by the schema"
        tuples = "" if self.capacity.in_bytes else f"{self.capacity.amount:,} tuples x {self.tuple_bytes:.0f} bytes ({how}) = "
        held = f"{_mib(self.held)} held" + (" (the capacity that follows from the memory)" if self.capacity.origin else "")
        each = (
            f"{tuples}{held} + {_mib(self.merging)} merging + {_mib(self.arriving)} arriving + {_mib(self.ahead)} ahead"
            f" + {_mib(PYTHON)} Python + {_mib(PAGE_CACHE)} page cache"
        )
        workers = each if self.workers == 1 else f"{self.workers} workers x ({each})"
        return f"{workers} + {_mib(HEAP)} heap + {_mib(JVM)} JVM = {_mib(self.needed)} of {_mib(self.limit)}"

    def refusal(self) -> str:
        """Field, value and remedy, when it does not fit."""
        fixed = PYTHON + PAGE_CACHE + (HEAP + JVM) / self.workers
        # As if as much arrived as is held, so that it fits whatever the smaller capacity leaves of the other terms.
        room = (self.limit / self.workers - fixed) / (1 + MERGING_SHARE + 1 + 1)
        fitting = max(0, int(room / MIB if self.capacity.in_bytes else room / self.tuple_bytes))
        is_given = not self.capacity.origin
        fewer = f", or lower {self.capacity.field} to {fitting:,}{'Mi' * self.capacity.in_bytes}" if fitting and is_given else ""
        given, least = self.limit // self.workers, -(-self.needed // self.workers)
        return f"spec.workers.resources.memory: {_mib(given)} must be at least {_mib(least)}: {self.arithmetic()}; raise it{fewer}"


def worker_memory(job: Job, measured_tuple_bytes: float | None = None) -> WorkerMemory:
    """The needs of an executor's workers in this job. ``measured_tuple_bytes``: of held tuples on average, where they were measured."""
    tuple_bytes = measured_tuple_bytes or max(stream.tuple_bytes for stream in job.streams)
    held = int(job.capacity.amount * (1 if job.capacity.in_bytes else tuple_bytes))
    arriving = min(int(job.max_tuples * tuple_bytes), held)
    return WorkerMemory(
        workers=job.workers_per_executor,
        capacity=job.capacity,
        tuple_bytes=tuple_bytes,
        is_measured=measured_tuple_bytes is not None,
        held=held,
        merging=int(held * MERGING_SHARE),
        arriving=arriving,
        ahead=min(arriving, AHEAD),
        limit=job.memory_bytes * job.workers_per_executor,
    )


def _mib(count: int) -> str:
    return f"{-(-count // MIB):,}Mi"
