"""One sink of several: each join's results go where that join says, and one epoch's commit makes them all visible.

Always holds: what a writer stages says by ``Staged.join`` whose results it is, and is published by that join's sink alone. The only join
is not named there, so that it may be renamed under its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from streamjoin.io.base import Counting, Sink, Staged, Traffic, Writer


@dataclass(frozen=True)
class Sinks:
    """The sinks of all joins, by name, in the joins' order. Picklable."""

    by_join: Mapping[str, Sink]

    @property
    def gather_seconds(self) -> float:
        """The least of theirs."""
        return min(sink.gather_seconds for sink in self.by_join.values())

    @property
    def traffic(self) -> Traffic:
        """Of all together."""
        found = [sink.traffic for sink in self.by_join.values() if isinstance(sink, Counting)]
        return Traffic(*(sum(getattr(each, name) for each in found) for name in ("sent_records", "sent_bytes", "failures", "errors")))

    def writers(self, name: str, stem: str, *, small_bytes: int = 0) -> Writers:
        """Writers for one task of one epoch; parameters as of :meth:`streamjoin.io.base.Sink.writer`."""
        each = small_bytes // len(self.by_join)
        return Writers({join: sink.writer(self._name(join, name), stem, small_bytes=each) for join, sink in self.by_join.items()})

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """See :class:`streamjoin.io.base.Sink`."""
        return [
            replace(staged, join=_label(join, self.by_join))
            for join, sink in self.by_join.items()
            for staged in sink.gather(self._whose(small, join), self._name(join, name), stem)
        ]

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """See :class:`streamjoin.io.base.Sink`. Where one raises, the others have not all published, and are asked again."""
        for join, sink in self.by_join.items():
            sink.publish(self._whose(staged, join), again=again)

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """See :class:`streamjoin.io.base.Sink`."""
        return sum(sink.sweep(may_remove) for sink in self.by_join.values())

    def strangers(self, staged: Sequence[Staged]) -> set[str]:
        """Joins that are none of these, of which something is staged."""
        return {each.join for each in staged} - {"", *self.by_join}

    def _whose(self, staged: Sequence[Staged], join: str) -> list[Staged]:
        first = next(iter(self.by_join))
        return [each for each in staged if (each.join or first) == join]

    def _name(self, join: str, name: str) -> str:
        """Of what a join stages: several may stage in one place."""
        number = list(self.by_join).index(join)
        return f"{name}-{number}" if number else name


class Writers:
    """Takes one task's results of one epoch, of every join."""

    def __init__(self, by_join: Mapping[str, Writer]) -> None:
        self._by_join = by_join

    def write(self, join: str, batch: pa.RecordBatch) -> None:
        self._by_join[join].write(batch)

    def close(self) -> list[Staged]:
        """See :class:`streamjoin.io.base.Writer`."""
        return [replace(staged, join=_label(join, self._by_join)) for join, writer in self._by_join.items() for staged in writer.close()]

    def abort(self) -> None:
        """See :class:`streamjoin.io.base.Writer`."""
        for writer in self._by_join.values():
            writer.abort()


def _label(join: str, joins: Collection[str]) -> str:
    return join if len(joins) > 1 else ""
