"""What a worker's memory goes to, and how many bytes of tuples it may hold where the manifest does not say.

The terms are those of the operator's sum (``streamjoin_operator.memory``, which says what each is and how it was measured).

Always holds: a worker that holds no more than :func:`held_within` allows fits its memory by the sum, and also where what it holds takes
``MOST_OF_HELD`` times its bytes, the most that was measured (docs/benchmarks.md, Memory): while epochs follow each other.
"""

from __future__ import annotations

MIB = 1 << 20
AHEAD = 256 * MIB
"""At most so much of a later epoch is taken by a worker (``streamjoin.runner.exchange.AHEAD_BYTES``)."""
HEAP = 256 * MIB
JVM = 192 * MIB
PYTHON = 384 * MIB
PAGE_CACHE = 64 * MIB
MERGING_SHARE = 0.25
MOST_OF_HELD = 2.2
LEAST = MIB
"""So much is held at least, whatever the memory is: what does not fit is told by who knows what there is."""
RESIZED = "resources.json"
"""The file beside a driver's manifest that is there where executors were resized: ``spec.workers.resources`` as all of them have it."""


def room_of_pod(memory_bytes: int, workers: int) -> float:
    """What a worker's memory has for tuples, of ``workers`` that share an executor; below 0 where it has none."""
    return memory_bytes - PYTHON - PAGE_CACHE - (HEAP + JVM) / workers


def room_of_process(memory_bytes: int) -> float:
    """The same of a worker whose JVM is not its own, as on a laptop."""
    return memory_bytes - PYTHON - PAGE_CACHE


def held_within(room: float, arriving: float) -> int:
    """How many bytes of tuples a worker may hold, in whole MiB, with ``room`` for all tuples, of which ``arriving`` bytes may come with an
    epoch. O(1).

    The largest h with h + h / 4 + min(arriving, h) + min(arriving, h, AHEAD) <= room. The left side is the least of five sums, as each
    minimum is one of its arguments; so h is the largest that one of them allows.
    """
    each = 1 + MERGING_SHARE
    by_sum = max(
        room / (each + 2),
        (room - AHEAD) / (each + 1),
        (room - arriving) / (each + 1),
        (room - 2 * arriving) / each,
        (room - arriving - AHEAD) / each,
    )
    return max(LEAST, int(min(by_sum, round(room / MOST_OF_HELD))) // MIB * MIB)
