"""How far a Kafka source has read: of one topic, or of several.

Of one topic, a position is ``{"topic": name, "id": id, "offsets": {partition: next}, "records": n, "skipped": m, "replaced": k}``: the
stream's offsets until there, how many were lost to retention on the way, and how often the topic was made anew. Older positions have no
``id``. Of topics by pattern it is ``{"pattern": text, "topics": {name: {"id": id, "offsets": {partition: next}, "numbers": {partition:
number}}}, "numbered": n, "records": ..., "skipped": ..., "replaced": ..., "deleted": k}``.

Always holds: each partition of each topic has a number of its own in the stream, by which watermarks and punctuations know it. Of one
topic it is the partition's own, of several the next that was free, and no number is given twice. So a position of one topic can be gone on
from as one of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from streamjoin.io.base import Position


@dataclass(frozen=True)
class Read:
    """How far a topic has been read. All is by partition."""

    identity: str | None = None
    """The topic's id; None where the brokers have told none."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """The next one of each."""
    numbers: Mapping[int, int] = field(default_factory=dict)
    """Its number in the stream."""

    def at(self, offsets: Mapping[int, int]) -> Read:
        """The same, with these next offsets, by the partitions' numbers in the stream; other partitions stay as they are."""
        return replace(self, offsets={part: offsets.get(self.numbers[part], offset) for part, offset in self.offsets.items()})

    def __str__(self) -> str:
        """For messages."""
        return ", ".join(f"{partition}: {offset}" for partition, offset in sorted(self.offsets.items())) or "nothing"


@dataclass(frozen=True)
class Reached:
    """A position."""

    topics: Mapping[str, Read] = field(default_factory=dict)
    """By name."""
    numbered: int = 0
    """The next number for a partition, of several topics."""
    records: int = 0
    skipped: int = 0
    replaced: int = 0
    deleted: int = 0
    pattern: str | None = None
    """That by which the topics were read last; None: one by its name."""

    def to_json(self, topic: str | None) -> Position:
        """``topic``: the only one, if it is not by pattern. O(partitions)."""
        counts = {"records": self.records, "skipped": self.skipped, "replaced": self.replaced}
        if topic is not None:
            read = self.topics[topic]
            return {"topic": topic, "id": read.identity, "offsets": _by_text(read.offsets), **counts}
        topics = {
            name: {"id": read.identity, "offsets": _by_text(read.offsets), "numbers": _by_text(read.numbers)}
            for name, read in sorted(self.topics.items())
        }
        return {"pattern": self.pattern, "topics": topics, "numbered": self.numbered, **counts, "deleted": self.deleted}

    @classmethod
    def from_json(cls, position: Position | None, topic: str | None) -> Reached:
        """``topic``: of a source of one. O(partitions)."""
        if not position:
            return cls()
        counts = {name: position.get(name, 0) for name in ("records", "skipped", "replaced", "deleted")}
        if "topics" in position:
            given = position["topics"].items()
            topics = {name: Read(read["id"], _by_number(read["offsets"]), _by_number(read["numbers"])) for name, read in given}
            return cls(topics, position["numbered"], **counts, pattern=position["pattern"])
        offsets = _by_number(position["offsets"])
        read = Read(position.get("id"), offsets, {partition: partition for partition in offsets})
        return cls({topic or position["topic"]: read}, max(offsets, default=-1) + 1, **counts)


def numbered(read: Read, partitions: Iterable[int], free: int) -> tuple[dict[int, int], int]:
    """The number of each partition; new partitions get the next numbers from ``free`` on. And the next free number after that."""
    new = [partition for partition in sorted(partitions) if partition not in read.numbers]
    return {**read.numbers, **{partition: free + index for index, partition in enumerate(new)}}, free + len(new)


def _by_text(values: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in sorted(values.items())}


def _by_number(values: Mapping[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in values.items()}
