"""Divides the splits of an epoch among the workers, which read them."""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin.io.base import Split

SMALL_RECORDS = 50_000
"""Up to this many records are read by one worker rather than by several: each sender costs every receiver a message."""
FAIR = 1.2
"""A worker keeps a partition as long as that does not give it more than so many times the mean."""


class Reading:
    """Remembers who read which partition last: it has the consumer still, and what that has fetched ahead."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], str] = {}
        """By side and partition."""

    def spread(self, splits: Sequence[tuple[int, Split]], workers: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Divide splits among the workers: the indexes of each worker's splits, in the order of the workers given. A worker without splits
        is left out.

        About as many records each, the largest splits first. O(splits x workers).
        """
        sizes = [max(1, split.records) for _, split in splits]
        count = max(1, min(len(workers), len(splits), -(-sum(sizes) // SMALL_RECORDS)))
        load = dict.fromkeys(workers[:count], 0)
        found: dict[str, list[int]] = {worker: [] for worker in load}
        most = FAIR * sum(sizes) / count
        for index in sorted(range(len(splits)), key=lambda index: -sizes[index]):
            side, split = splits[index]
            worker = None if split.partition is None else self._last.get((side, split.partition))
            if worker not in load or load[worker] + sizes[index] > most:
                worker = min(load, key=lambda one: load[one])
            if split.partition is not None:
                self._last[side, split.partition] = worker
            load[worker] += sizes[index]
            found[worker].append(index)
        return {worker: tuple(sorted(indexes)) for worker, indexes in found.items() if indexes}
