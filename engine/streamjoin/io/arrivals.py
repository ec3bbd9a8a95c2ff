"""The times at which records came to their source: few numbers that stand for many records.

A source has stamps of its records: Kafka of each, files of each file. What travels from a split to the driver is a sample of them, each
stamp with the number of records that it stands for, so that it costs nothing that grows with the records.

Always holds: there are at most ``MOST`` stamps, ascending; where there were more, a stamp stands for later ones too, never for earlier
ones. So how long records have waited is not understated by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MOST = 256
SAMPLED = 32
"""The number of stamps that are looked at, among consecutive records that come together."""


class Stamps(NamedTuple):
    """Stamps of some of ``records`` consecutive records: of the first, and of each that is ``every`` after one of them. It is made of many
    fetches, and so does nothing."""

    millis: np.ndarray
    """int64: milliseconds since 1970; negative: the record has none, and those that it stands for are not counted."""
    every: int
    records: int


@dataclass(frozen=True, eq=False)
class Arrivals:
    """See the module."""

    at: np.ndarray
    """float64: seconds since 1970, ascending."""
    records: np.ndarray
    """int64: how many records each stands for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrivals) and np.array_equal(self.at, other.at) and np.array_equal(self.records, other.records)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def once(cls, at: float, records: int) -> Arrivals:
        """The arrivals of records that came together."""
        return cls(np.array([at]), np.array([records], dtype=np.int64))

    @classmethod
    def each(cls, stamps: Iterable[tuple[float, int]]) -> Arrivals | None:
        """The arrivals by stamps and how many records have each, in any order; None: there are no records."""
        found = [(at, records) for at, records in stamps if records > 0]
        if len(found) < 2:
            return cls.once(*found[0]) if found else None
        return _ascending(np.array([at for at, _ in found]), np.array([records for _, records in found], dtype=np.int64))

    @classmethod
    def sampled(cls, stamps: Iterable[Stamps | None]) -> Arrivals | None:
        """The arrivals of all records of these samples: each stamp stands for the records up to the next one. None: no record has one."""
        found = [sample for sample in stamps if sample is not None and len(sample.millis)]
        if not found:
            return None
        millis, sizes = np.concatenate([sample.millis for sample in found]), np.array([len(sample.millis) for sample in found])
        records = np.repeat(np.array([sample.every for sample in found], dtype=np.int64), sizes)
        records[np.cumsum(sizes) - 1] = [sample.records - sample.every * (len(sample.millis) - 1) for sample in found]
        known = millis >= 0
        return _ascending(millis[known] / 1000, records[known]) if known.any() else None

    @classmethod
    def together(cls, parts: Iterable[Arrivals | None]) -> Arrivals | None:
        """The arrivals of all these records as one."""
        found = [part for part in parts if part is not None]
        if len(found) < 2:
            return found[0] if found else None
        return _ascending(np.concatenate([part.at for part in found]), np.concatenate([part.records for part in found]))


def sample_step(records: int) -> int:
    """The distance between the records whose stamps are looked at, among so many consecutive records."""
    return max(1, -(-records // SAMPLED))


def _ascending(at: np.ndarray, records: np.ndarray) -> Arrivals:
    order = np.argsort(at, kind="stable")
    at, records = at[order], records[order]
    if len(at) > MOST:
        first = np.arange(MOST) * len(at) // MOST
        at, records = at[first], np.add.reduceat(records, first)
    return Arrivals(at, records)
