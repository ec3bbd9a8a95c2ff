"""How far each file of a directory has been read, small in every commit however many files there are.

A position names snapshots (objects written once, under names that follow from their content) and holds the entries
that changed since. When these become many they go into a new snapshot, together with the younger snapshots that are
not much larger (as a log-structured merge tree does): an entry is written O(log files) times in all.

Always holds: a younger entry for a file stands in place of an older one. An entry is forgotten only when all snapshots
are merged and its file was missing from the directory at the last such merge too, so that one wrong listing makes
nothing be read again.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from streamjoin.io.base import Position, Snapshots, SourceError
from streamjoin.io.identity import Entry
from streamjoin.state.storage import Missing

DELTA_ENTRIES = 1000
"""The number of entries that go into a snapshot."""


@dataclass(frozen=True)
class SeenFiles:
    """The entries of one position."""

    snapshots: tuple[tuple[str, int], ...]
    """Name and number of entries, oldest first."""
    settled: Mapping[str, Entry]
    """The entries of all snapshots. Not to be changed: it is shared between plans."""
    delta: Mapping[str, Entry]

    def get(self, name: str) -> Entry:
        """The file's entry; 0 for one that has not been read from. O(1)."""
        if name in self.delta:
            return self.delta[name]
        return self.settled.get(name, 0)


class SeenStore:
    """Reads and writes positions. Remembers the snapshots decoded last, as a cache."""

    def __init__(self, snapshots: Snapshots, owner: str) -> None:
        """``owner``: makes the names of this store's snapshots differ from those of others with equal content."""
        self._snapshots = snapshots
        self._owner = owner
        self._cached: tuple[tuple[str, ...], dict[str, Entry]] = ((), {})

    def load(self, position: Position | None) -> SeenFiles:
        """O(delta), and O(files) where the snapshots are not those of the last call."""
        if not position:
            return SeenFiles((), {}, {})
        snapshots = tuple((name, count) for name, count in position["base"])
        names = tuple(name for name, _ in snapshots)
        if names != self._cached[0]:
            settled: dict[str, Entry] = {}
            for name in names:
                settled.update(self._read(name)["files"])
            self._cached = (names, settled)
        return SeenFiles(snapshots, self._cached[1], position["files"])

    def save(self, seen: SeenFiles, changed: Mapping[str, Entry], listed: Collection[str]) -> dict[str, Any]:
        """The position's part for ``seen`` after changes. ``listed``: the directory's files, to forget what is gone.

        O(delta); amortised O(log files) for each change where a snapshot is written.
        """
        delta = {**seen.delta, **changed}
        if len(delta) <= DELTA_ENTRIES:
            return {"base": [list(item) for item in seen.snapshots], "files": delta}
        kept = list(seen.snapshots)
        merged: dict[str, Entry] = {}
        size = len(delta)
        younger: list[str] = []
        while kept and kept[-1][1] <= 2 * size:
            name, count = kept.pop()
            younger.append(name)
            size += count
        missing: set[str] = set()
        for name in reversed(younger):
            content = self._read(name)
            merged.update(content["files"])
            missing.update(content["missing"])
        merged.update(delta)
        if not kept:
            absent = merged.keys() - set(listed)
            for name in absent & missing:
                del merged[name]
            missing = absent - missing
        content = {"files": merged, "missing": sorted(missing & merged.keys())}
        data = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), level=1)
        name = f"files-{hashlib.sha256(self._owner.encode() + data).hexdigest()[:32]}"
        self._snapshots.put(name, data)
        return {"base": [*(list(item) for item in kept), [name, len(merged)]], "files": {}}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(zlib.decompress(self._snapshots.get(name)))
        except (KeyError, Missing):
            raise SourceError(
                f"snapshot {name}: the checkpoint names it, but it is gone; restore the checkpoint, or start from an empty one"
            ) from None
        return content


def referenced(position: Position | None) -> frozenset[str]:
    """The snapshots that a position names."""
    return frozenset(name for name, _ in position["base"]) if position else frozenset()
