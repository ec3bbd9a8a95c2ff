"""How many of its many like cases a test runs: a share of them; with ``STREAMJOIN_CASES=all`` all (``make test-all``, each night).

The share is the same in every run. Where the cases are enumerated, it is spread evenly over them (:func:`some`), or over a product such
that each value of each of its factors occurs (:func:`some_of_product`). Where they are drawn at random, by a seed each, it is the first of
the seeds (:func:`how_many`); ``STREAMJOIN_CASES=1000`` asks for so many of these, and leaves the others as they are.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

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


def some_of_product(*factors: Sequence[Any], of: int) -> list[tuple[Any, ...]]:
    """About one in ``of`` of the tuples of the product; or all of them.

    Taken along the diagonals: those whose numbers in their factors have a sum that ``of`` divides. ValueError: a value would never occur.
    """
    numbered = [list(enumerate(factor)) for factor in factors]
    chosen = [each for each in itertools.product(*numbered) if ALL or sum(number for number, _ in each) % of == 0]
    for place, factor in enumerate(numbered):
        if len({each[place][0] for each in chosen}) < len(factor):
            raise ValueError(f"one in {of} of {[len(each) for each in factors]} values would leave out a value; take more of them")
    return [tuple(value for _, value in each) for each in chosen]


def in_turn(ways: Sequence[Case], test: str, number: int) -> Sequence[Case]:
    """One of the ways in which a case of a test can be run, the next one for the case of the next number; or all of them."""
    return ways if ALL else [ways[(zlib.crc32(test.encode()) + number) % len(ways)]]


def how_many(every: int, *, of: int = 1) -> int:
    """Of cases drawn by the seeds 0, 1, ...: one in ``of`` of ``every``, or ``every``, or what ``STREAMJOIN_CASES`` says."""
    return every if ALL else int(_ASKED) if _ASKED else max(1, every // of)
