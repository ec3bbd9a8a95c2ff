"""Results that a sink refuses for good, as dead letters: each is a line of JSON with the join, the reason and the row.

Only when results are published, after their commit, does a server say what it refuses. So these letters are staged nowhere: each
publication that has some writes one object, whose name follows from what is published.

Always holds: that object is durable before the sink makes the publication visible, and whoever publishes again reads it first and leaves
its rows out. So each result is either in the sink or among the letters, once, whoever dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from streamjoin.state.storage import Missing, ObjectStorage


@dataclass
class Refused:
    """What the sink refuses of one publication: of each row, by its number within the publication, the letter."""

    name: str
    """Of the object."""
    letters: dict[int, dict[str, Any]] = field(default_factory=dict)
    is_kept: bool = True
    """Whether the object has these letters."""

    @property
    def reason(self) -> str:
        return next((str(letter["error"]) for letter in self.letters.values()), "")


class RefusedResults:
    """The letters of one join's sink, in the directory of dead letters. Pickles without what it has counted."""

    def __init__(self, folder: str, join: str) -> None:
        self._folder, self._join = folder, join
        self._count, self._reason = 0, ""

    def __reduce__(self) -> tuple[type[RefusedResults], tuple[str, str]]:
        return RefusedResults, (self._folder, self._join)

    def of(self, checkpoint: str, epoch: int, *, again: bool) -> Refused:
        """What is known to be refused of a publication: that of a checkpoint and an epoch. ``again``: it may have been published before, in
        whole or in part. Raises StorageError."""
        refused = Refused(f"results-{checkpoint}-{epoch:012d}-{quote(self._join, safe='')}.json")
        if again:
            try:
                lines = self._storage.get(refused.name).splitlines()
            except Missing:
                lines = []
            refused.letters = {letter["position"]: letter for letter in map(json.loads, lines)}
        return refused

    def add(self, refused: Refused, row: int, place: str, reason: str, raw: str) -> None:
        """One more row. ``place`` says where the result comes from, ``raw`` is the row."""
        refused.letters[row] = {"join": self._join, "split": place, "position": row, "error": reason, "raw": raw}
        refused.is_kept = False

    def keep(self, refused: Refused) -> None:
        """Have the letters durable, before the publication is visible. Raises StorageError."""
        if not refused.is_kept:
            lines = (json.dumps(letter, ensure_ascii=False) for _, letter in sorted(refused.letters.items()))
            self._storage.put(refused.name, "".join(f"{line}\n" for line in lines).encode())
            refused.is_kept = True

    def published(self, refused: Refused) -> None:
        """The publication is visible: its letters count."""
        self._count += len(refused.letters)
        self._reason = self._reason or refused.reason

    def take(self) -> tuple[int, str]:
        """How many letters publications have had since the last call, and why the first of them is one."""
        found = self._count, self._reason
        self._count, self._reason = 0, ""
        return found

    @cached_property
    def _storage(self) -> ObjectStorage:
        return ObjectStorage(self._folder)


@runtime_checkable
class Refusing(Protocol):
    """A sink whose server may refuse single results."""

    refused: RefusedResults | None
    """None: a result that is refused ends the run."""


def taken_of(sinks: Mapping[str, object]) -> dict[str, tuple[int, str]]:
    """What the sinks of these joins have refused since the last call, without those that have refused nothing."""
    refusing: Iterable[tuple[str, RefusedResults]] = (
        (join, sink.refused) for join, sink in sinks.items() if isinstance(sink, Refusing) and sink.refused is not None
    )
    taken = {join: refused.take() for join, refused in refusing}
    return {join: found for join, found in taken.items() if found[0]}
