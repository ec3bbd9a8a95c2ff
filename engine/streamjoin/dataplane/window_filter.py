"""Whether the members of a result are close enough by the join's window, checked as members are found (:mod:`streamjoin.language.window`).

A partial result carries what this takes of its members, and a held tuple has its own. Whoever asks for partners sends a part of it, by
which those are left out that are surely too far away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.joiner import Members, Pairs
from streamjoin.kernel.near import pairs_in_time, times_of_pairs
from streamjoin.kernel.run import AUX, TIME, Run
from streamjoin.language.predicate import INT64_MIN
from streamjoin.language.window import Window, WindowKind


class WindowFilter(Protocol):
    """Whether members of a result are close enough, and what of a partial one says so of members that are yet to come."""

    def is_checked(self, streams: tuple[Members, Members]) -> bool:
        """Whether the kernel's window does not say it all where these meet."""

    def holds(self, pairs: Pairs) -> NDArray[np.integer[Any]]:
        """The places of pairs of which that is so, ascending."""

    def is_plain(self, streams: tuple[Members, Members], runs: tuple[Run, Run]) -> bool:
        """Whether the extremes of two runs' times say of all of their pairs that it is so. O(1)."""

    def columns(self, members: Sequence[str]) -> list[str]:
        """The columns that partial results of these streams carry."""

    def carried(self, pairs: Pairs) -> list[NDArray[np.int64]]:
        """The same of these pairs, in the order of ``columns``."""

    def asked(self, stream: str) -> list[str]:
        """Those of the columns that go along when partial results ask for their partners among this stream's tuples."""

    def may_hold(self, pairs: Pairs, asked: Members) -> NDArray[np.integer[Any]]:
        """The places of pairs of which it is not said by these columns that ``holds`` is false, ascending. ``asked``: who asks."""

    def held(self, stream: str) -> list[str]:
        """The columns of this stream's held tuples that are read here."""


@dataclass(frozen=True)
class TimeFilter(WindowFilter):
    """The filter of windows of time."""

    spans: Mapping[str, int]
    slide: int = 0
    """Windows start at its multiples; 0: with every tuple."""

    def is_checked(self, streams: tuple[Members, Members]) -> bool:
        return bool(self.slide) or any(len(each) > 1 for each in streams)

    def holds(self, pairs: Pairs) -> NDArray[np.integer[Any]]:
        places = np.empty(pairs.count, np.int32)
        found: NDArray[np.int32] = places[: pairs_in_time(*self._sides(pairs, places))]
        return found

    def is_plain(self, streams: tuple[Members, Members], runs: tuple[Run, Run]) -> bool:
        newest, ends = [], []
        for members, run in zip(streams, runs, strict=True):
            end, span = (run.time_min, self.spans[members[0]]) if len(members) == 1 else (run.aux_min, 0)
            if run.time_max is None or end is None:
                return False
            newest.append(run.time_max)
            ends.append((end // self.slide * self.slide if self.slide and len(members) == 1 else end) + span)
        return max(newest) <= min(ends)

    def columns(self, members: Sequence[str]) -> list[str]:
        return [TIME, AUX]

    def asked(self, stream: str) -> list[str]:
        return [TIME, AUX]

    def may_hold(self, pairs: Pairs, asked: Members) -> NDArray[np.integer[Any]]:
        return self.holds(pairs)

    def held(self, stream: str) -> list[str]:
        return [TIME]

    def carried(self, pairs: Pairs) -> list[NDArray[np.int64]]:
        """The time of the newest member, and up to which time one may be."""
        newest, latest = np.empty(pairs.count, np.int64), np.empty(pairs.count, np.int64)
        times_of_pairs(*self._sides(pairs, newest, latest))
        return [newest, latest]

    def _sides(self, pairs: Pairs, *more: Any) -> Iterator[Any]:
        """Of each: times, what ends are reckoned from, by how much they are later, and rows. Then these."""
        for streams, (batch, rows) in pairs.sides.items():
            times = batch.column(TIME).to_numpy()
            if len(streams) > 1:
                yield from (times, batch.column(AUX).to_numpy(), 0, rows)
            elif self.slide:  # a held tuple's own column is by the slide of another window, where joins lie beside each other
                times = times[rows]
                yield from (times, times // self.slide * self.slide, self.spans[streams[0]], np.arange(len(rows), dtype=np.int32))
            else:
                yield from (times, times, self.spans[streams[0]], rows)
        yield from more


@dataclass(frozen=True)
class RowsFilter(WindowFilter):
    """The filter of windows of rows: no member lies before the position of its stream at which the window of any other member begins."""

    spans: Mapping[str, int]

    def is_checked(self, streams: tuple[Members, Members]) -> bool:
        return True

    def is_plain(self, streams: tuple[Members, Members], runs: tuple[Run, Run]) -> bool:
        return False

    def holds(self, pairs: Pairs) -> NDArray[np.integer[Any]]:
        first, second = pairs.sides.items()
        found = np.ones(pairs.count, bool)
        for (streams, (batch, rows)), (others, (other, of_other)) in ((first, second), (second, first)):
            for name in streams:
                found &= self._at(streams, batch, name)[rows] >= self._from(others, other, name)[of_other]
        return np.flatnonzero(found)

    def columns(self, members: Sequence[str]) -> list[str]:
        return [*(f"_at.{name}" for name in members), *(f"_from.{name}" for name in self.spans)]

    def asked(self, stream: str) -> list[str]:
        return [f"_from.{stream}"]

    def may_hold(self, pairs: Pairs, asked: Members) -> NDArray[np.integer[Any]]:
        """By the window of each member that is there, and not by that of the tuple that is held."""
        ((came,),) = (streams for streams in pairs.sides if streams != asked)
        (held, rows), (batch, of_asked) = pairs.sides[(came,)], pairs.sides[asked]
        inside = self._at((came,), held, came)[rows] >= self._from(asked, batch, came)[of_asked]
        return np.flatnonzero(inside)

    def held(self, stream: str) -> list[str]:
        return [TIME, *(before(name) for name in self.spans if name != stream)]

    def carried(self, pairs: Pairs) -> list[NDArray[np.int64]]:
        sides = list(pairs.sides.items())
        at = {name: self._at(streams, batch, name)[rows] for streams, (batch, rows) in sides for name in streams}
        begins = [np.maximum(*(self._from(streams, batch, name)[rows] for streams, (batch, rows) in sides)) for name in self.spans]
        return [*(at[name] for name in sorted(at)), *begins]

    def _at(self, streams: Members, batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = batch.column(TIME if len(streams) == 1 else f"_at.{name}").to_numpy()
        return found

    def _from(self, streams: Members, batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
        if len(streams) > 1:
            begins: NDArray[np.int64] = batch.column(f"_from.{name}").to_numpy()
        elif name == streams[0]:
            begins = np.full(batch.num_rows, INT64_MIN)
        else:
            begins = batch.column(before(name)).to_numpy() - self.spans[name]
        return begins


def before(stream: str) -> str:
    """The column of how many records of another stream arrived before a held tuple, in windows of rows."""
    return f"_before.{stream}"


def window_filter(window: Window, streams: Sequence[str]) -> WindowFilter | None:
    spans = dict(zip(streams, window.each, strict=True)) if window.each else {}
    if window.kind is WindowKind.UNBOUNDED:
        return None
    return RowsFilter(spans) if window.kind is WindowKind.ROWS else TimeFilter(spans, window.slide_micros)
