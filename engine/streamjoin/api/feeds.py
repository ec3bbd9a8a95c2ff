"""What a run and the program beside it, in which Spark reads and writes for the join, say to each other: an order as one line of JSON, and
how the program ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before what has failed begins anew, a query or the whole program, by how often it has, one time soon after the other."""
IMPOSSIBLE = 3
"""The program's exit code where something can never be read or written as it stands in the manifest."""


@dataclass(frozen=True)
class Input:
    """What Spark reads."""

    format: str
    options: Mapping[str, str]
    """As the manifest has them."""
    columns: str | None = None
    """As Spark DDL. None: the format says what there is."""


@dataclass(frozen=True)
class Feed:
    """A stream, and where it is staged."""

    name: str
    field: str
    """The source's, in the manifest."""
    schema: str
    """As declared."""
    staging: str
    input: Input
    streaming: bool
    query: str | None
    views: Mapping[str, Input]


@dataclass(frozen=True)
class Output:
    """Results, and where they go."""

    name: str
    """The join's."""
    field: str
    """The sink's, in the manifest."""
    columns: Sequence[str]
    manifest: str
    """Its text."""
    state: str
    """The directory in which Spark keeps the state of the query."""
    format: str
    options: Mapping[str, str]
    streaming: bool


@dataclass(frozen=True)
class Order:
    """What the program is to do."""

    feeds: Sequence[Feed]
    outputs: Sequence[Output]
    conf: Mapping[str, str]
    available_now: bool
    """Read what is there now; write, whenever a further line comes, what is there then."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        value = json.loads(text)
        feeds = [
            Feed(**{**each, "input": Input(**each["input"]), "views": {name: Input(**view) for name, view in each["views"].items()}})
            for each in value["feeds"]
        ]
        return cls(feeds, [Output(**each) for each in value["outputs"]], value["conf"], value["available_now"])
