"""Counts values that expressions could not make although all that they are made of is there: numbers beyond their type, texts that are none
of their type, divisions by zero. Such a value is NULL (Spark's, with ANSI mode off).

Each thread counts what it evaluates, until it takes its counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamjoin.language.render import render
from streamjoin.language.tree import Node

MOST_SHOWN = 60


class Fault(NamedTuple):
    """What was wrong with an expression."""

    rows: int
    example: str
    """One of the values that it was to be made of."""


class _Tally(threading.local):
    def __init__(self) -> None:
        self.found: dict[Node, Fault] = {}


_tally = _Tally()


def note(node: Node, rows: int, values: Iterable[object]) -> None:
    """So many rows of the node have no value, for instance with these values of its arguments."""
    before = _tally.found.get(node)
    texts = ", ".join(text if len(text := str(value)) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..." for value in values)
    _tally.found[node] = Fault(rows, texts) if before is None else Fault(before.rows + rows, before.example)


def taken() -> dict[str, Fault]:
    """What this thread has counted since it last took it, by the expression as SQL."""
    found, _tally.found = _tally.found, {}
    return {render(node): fault for node, fault in found.items()}


def together(found: Iterable[Mapping[str, Fault]]) -> dict[str, Fault]:
    """Several counts as one."""
    sums: dict[str, Fault] = {}
    for of_one in found:
        for text, fault in of_one.items():
            before = sums.get(text)
            sums[text] = fault if before is None else Fault(before.rows + fault.rows, before.example)
    return sums
