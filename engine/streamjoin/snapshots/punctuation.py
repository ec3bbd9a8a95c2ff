"""Punctuations: records that are no tuples, and say by an identifier that a stream has come so far. Two of one identifier, of each stream
one, end a snapshot (Tucker et al.; ESJ, "Result materialization"). Pure; its state is a part of the commit.

A punctuation of a stream with partitions has come once it has come from each of them. Always holds: an identifier is reported as come of
all streams by one commit only, that by which the last of its punctuations was read; so all results of tuples that came before it, in the
order of each stream, have been found by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_PENDING = 1000
"""So many identifiers wait for their other punctuations; then the oldest is forgotten."""
WHOLE = -1
"""Stands for the partition of a stream that has none."""


@dataclass(frozen=True, slots=True)
class Came:
    """Which punctuations have been read, of one stream in one epoch."""

    ids: Mapping[int, Sequence[str]]
    """By partition, in their order."""
    partitions: frozenset[int]
    """All that the stream has; ``WHOLE`` where it is one."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Punctuations that wait for others of the same identifier."""

    came: Mapping[str, tuple[frozenset[int], ...]] = field(default_factory=dict)
    """By identifier, in the order in which they were first seen: from which partitions they have come, by stream."""

    def after(self, epoch: Sequence[Came]) -> tuple[Pending, tuple[str, ...]]:
        """With what an epoch has read, by stream, and the identifiers that are complete now, in the order in which they were first seen.
        O(identifiers)."""
        came = dict(self.came)
        for stream, of_stream in enumerate(epoch):
            for partition, ids in of_stream.ids.items():
                for identifier in ids:
                    before = came.get(identifier, (frozenset(),) * len(epoch))
                    came[identifier] = (*before[:stream], before[stream] | {partition}, *before[stream + 1 :])
        complete = [
            identifier
            for identifier, partitions in came.items()
            if all(read >= of_stream.partitions for read, of_stream in zip(partitions, epoch, strict=True))
        ]
        waiting = [(identifier, partitions) for identifier, partitions in came.items() if identifier not in complete]
        return Pending(dict(waiting[-MOST_PENDING:])), tuple(complete)

    def to_json(self) -> dict[str, Any]:
        return {identifier: [sorted(partitions) for partitions in streams] for identifier, streams in self.came.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Iterable[Iterable[int]]]) -> Pending:
        return cls({identifier: tuple(frozenset(partitions) for partitions in streams) for identifier, streams in value.items()})
