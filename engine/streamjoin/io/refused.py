"""Results that a sink refuses for good, as dead letters: each is a line of JSON with the join, the reason and the row.

Only when results are published, after their commit, does a server say what it refuses. So these letters are staged nowhere: each
publication that has some writes one object, whose name follows from what is published.

Always holds: that object is durable before the sink makes the publication visible, and whoever publishes again reads it first and leaves
its rows out. So each result is either in the sink or among the letters, once, whoever dies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

from streamjoin.io.base import Sink
from streamjoin.state.storage import Missing, ObjectStorage


@dataclass
class Refused:
    """What the sink refuses of one publication: of each row, by its number within the publication, the letter."""

    results: RefusedResults
    """Of the sink."""
    name: str
    """Of the object."""
    letters: dict[int, dict[str, Any]] = field(default_factory=dict)
    is_kept: bool = True
    """Whether the object has these letters."""

    def add(self, row: int, place: str, reason: str, raw: str) -> None:
        """One more row. ``place`` says where the result comes from, ``raw`` is the row."""
        self.letters[row] = {"join": self.results.join, "split": place, "position": row, "error": reason, "raw": raw}
        self.is_kept = False

    def keep(self) -> None:
        """Have the letters durable, before the publication is visible. Raises StorageError."""
        if not self.is_kept:
            lines = (json.dumps(letter, ensure_ascii=False) for _, letter in sorted(self.letters.items()))
            self.results.storage.put(self.name, "".join(f"{line}\n" for line in lines).encode())
            self.is_kept = True

    def published(self) -> None:
        """The publication is visible: its letters count."""
        reasons = (str(letter["error"]) for letter in self.letters.values())
        self.results.count += len(self.letters)
        self.results.reason = self.results.reason or next(reasons, "")


class RefusedResults:
    """The letters of one join's sink, in the directory of dead letters. Pickles without what it has counted."""

    def __init__(self, folder: str, join: str) -> None:
        self._folder, self.join = folder, join
        self.count, self.reason = 0, ""
        """How many letters publications have had since ``take``, and why the first of them is one."""

    def __reduce__(self) -> tuple[type[RefusedResults], tuple[str, str]]:
        return RefusedResults, (self._folder, self.join)

    def of(self, checkpoint: str, epoch: int, *, again: bool) -> Refused:
        """What is known to be refused of a publication: that of a checkpoint and an epoch. ``again``: it may have been published before, in
        whole or in part. Raises StorageError."""
        refused = Refused(self, f"results-{checkpoint}-{epoch:012d}-{quote(self.join, safe='')}.json")
        if again:
            with contextlib.suppress(Missing):
                lines = self.storage.get(refused.name).splitlines()
                refused.letters = {letter["position"]: letter for letter in map(json.loads, lines)}
        return refused

    def take(self) -> tuple[int, str]:
        """The count and the reason since the last call."""
        found = self.count, self.reason
        self.count, self.reason = 0, ""
        return found

    @cached_property
    def storage(self) -> ObjectStorage:
        return ObjectStorage(self._folder)


def taken_of(sinks: Mapping[str, Sink]) -> dict[str, tuple[int, str]]:
    """What the sinks of these joins have refused since the last call, without those that have refused nothing."""
    taken = {join: sink.refused.take() for join, sink in sinks.items() if sink.refused is not None}
    return {join: found for join, found in taken.items() if found[0]}
