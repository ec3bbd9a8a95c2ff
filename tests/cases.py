"""How many of its many like cases a test runs: a share of them; with ``STREAMJOIN_CASES=all`` all (``make test-all``, each night).

The share is the same in every run. Where the cases are enumerated, it is spread evenly over them (:func:`some`). Where they are drawn at
random, by a seed each, it is the first of the seeds (:func:`how_many`); ``STREAMJOIN_CASES=1000`` asks for so many of these, and leaves
the others as they are.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")

_ASKED = os.environ.get("STREAMJOIN_CASES", "")
ALL = _ASKED == "all"

if not ALL and _ASKED and not (_ASKED.isdecimal() and int(_ASKED) > 0):
    raise ValueError(f'STREAMJOIN_CASES: "{_ASKED}" is neither "all" nor a number of cases; leave it out for a share of them')


def some(cases: Iterable[Case], *, of: int, since: int = 0) -> list[Case]:
    """Every ``of``-th of the cases, from number ``since``; or all of them.

    Tests that each run their own share of the same cases give different ``since``, so that together they meet more of them.
    """
    every = list(cases)
    return every if ALL else every[since % of :: of]


def in_turn(ways: Sequence[Case], test: str, number: int) -> Sequence[Case]:
    """One of the ways in which a case of a test can be run, the next one for the case of the next number; or all of them."""
    return ways if ALL else [ways[(zlib.crc32(test.encode()) + number) % len(ways)]]


def shared(every: int, *, of: int = 1, parts: int) -> list[range]:
    """The seeds of :func:`how_many`; all of them in parts, which may be run side by side."""
    return [range(part, every, parts) for part in range(parts)] if ALL else [range(how_many(every, of=of))]


def how_many(every: int, *, of: int = 1) -> int:
    """Of cases drawn by the seeds 0, 1, ...: one in ``of`` of ``every``, or ``every``, or what ``STREAMJOIN_CASES`` says."""
    return every if ALL else int(_ASKED) if _ASKED else max(1, every // of)
