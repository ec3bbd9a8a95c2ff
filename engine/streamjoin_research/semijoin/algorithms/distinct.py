"""The distinct keys of a window, at its own site and at the other one, and the message that keeps them alike (Alg. 9, section 3.2.2).

Both sites have one entry for each key that the window holds, in the same order: that of their coming. Dictionaries keep it, so the counts
in a message need no keys beside them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from streamjoin_research.semijoin.algorithms.messages import Changed
from streamjoin_research.semijoin.algorithms.window import StreamTuple


@dataclass
class _Entry:
    count: int = 1
    shipped: bool = False


class KeysOfWindow:
    """V2 at the window's own site: how many tuples each key has, and whether they were shipped."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    @property
    def keys(self) -> list[Hashable]:
        return list(self._entries)

    def mark_shipped(self, key: Hashable) -> None:
        """From now on, new tuples of this key are shipped as they come. A key that the window no longer holds is passed over."""
        if key in self._entries:
            self._entries[key].shipped = True

    def update(self, new: Iterable[StreamTuple], expired: Iterable[StreamTuple]) -> tuple[list[Hashable], list[int], list[StreamTuple]]:
        """v_J, v_C and s_F for tuples that came and tuples that left (Alg. 9, lines 2 to 21). O(keys)."""
        new_keys: list[Hashable] = []
        to_ship: list[StreamTuple] = []
        for tuple_ in new:
            entry = self._entries.get(tuple_.key)
            if entry is None:
                self._entries[tuple_.key] = _Entry()
                new_keys.append(tuple_.key)
                continue
            entry.count += 1
            if entry.shipped:
                to_ship.append(tuple_)
        for tuple_ in expired:
            self._entries[tuple_.key].count -= 1
        counts = [entry.count for entry in self._entries.values()]
        self._entries = {key: entry for key, entry in self._entries.items() if entry.count}
        return new_keys, counts, to_ship


@dataclass
class _Mixed:
    count: int = 0
    tuples: list[StreamTuple] | None = None
    """None: a partial tuple, of which only the key is here."""


class Mirror:
    """V2@N1 in SM-D1, and M2 in SM-S2: the same keys at the other site, some of them with their tuples."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Mixed] = {}

    def __contains__(self, key: Hashable) -> bool:
        """The window holds tuples of ``key``."""
        return key in self._entries

    @property
    def keys(self) -> list[Hashable]:
        return list(self._entries)

    def is_partial(self, key: Hashable) -> bool:
        """The window holds tuples of ``key``, which were not fetched."""
        return key in self._entries and self._entries[key].tuples is None

    def fetched(self, key: Hashable) -> Sequence[StreamTuple]:
        """All tuples of ``key`` that the window holds, oldest first, if they were fetched; else none."""
        return (self._entries[key].tuples if key in self._entries else None) or ()

    def apply(self, changed: Changed) -> None:
        """Alg. 9, lines 24 to 40. O(keys).

        In line 37 the number of tuples to remove from a partial entry means nothing, for it has none; where the key is new, it is negative.
        """
        for key in changed.new_keys:
            self._entries[key] = _Mixed()
        arrived: dict[Hashable, list[StreamTuple]] = {}
        for new in changed.tuples:
            arrived.setdefault(new.key, []).append(new)
        for (key, entry), count in zip(list(self._entries.items()), changed.counts, strict=True):
            if count == 0:
                del self._entries[key]
                continue
            if entry.tuples is not None:
                new_of_key = arrived.get(key, [])
                entry.tuples.extend(new_of_key)
                del entry.tuples[: entry.count + len(new_of_key) - count]
            entry.count = count

    def fill(self, tuples: Iterable[StreamTuple]) -> None:
        """Put full tuples in the place of partial ones (Alg. 4, line 7). ``tuples``: in order of time."""
        for fetched in tuples:
            entry = self._entries[fetched.key]
            if entry.tuples is None:
                entry.tuples = []
            entry.tuples.append(fetched)
