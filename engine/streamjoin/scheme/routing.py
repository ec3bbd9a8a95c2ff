"""Routing (A-DSP, Alg. 3): which areas a tuple goes to.

A tuple with key k and unit u goes to every area whose key range contains k and whose unit range contains u; nothing else is consulted, so
a tuple routed twice goes to the same places. Keys come sorted, hence an area's keys are one slice, found by binary search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from streamjoin.language.predicate import Bound
from streamjoin.scheme.tiling import UNITS, KeyRange, Scheme, UnitRange

Selection = slice | np.ndarray
"""Rows of the routed batch: a slice, or ascending row numbers (int64)."""


class Routing(Protocol):
    """Says which areas one side's tuples go to."""

    by_units: bool
    """Whether it asks for units at all; where not, they may be anything."""

    def route(self, keys_sorted: np.ndarray, units: np.ndarray) -> Iterator[tuple[int, Selection]]: ...


class Router:
    """Routes one side's tuples of a scheme. Areas that share a row (or column) of a grid share its selection."""

    def __init__(self, scheme: Scheme, side: int) -> None:
        self._groups: dict[KeyRange, dict[UnitRange, list[int]]] = {}
        for index, area in enumerate(scheme.areas):
            self._groups.setdefault(area.keys[side], {}).setdefault(area.units[side], []).append(index)
        self._keys = list(self._groups)
        self.by_units = any(span.size < UNITS for spans in self._groups.values() for span in spans)

    def route(self, keys_sorted: np.ndarray, units: np.ndarray) -> Iterator[tuple[int, Selection]]:
        """Every area that receives tuples, with the rows that it receives, in the order of the keys.

        ``keys_sorted``: int64 or float64, ascending; ``units``: uint32, of the same length. Equal selections are the same object.
        O(areas * log tuples) and, for areas cut by units, O(tuples) a distinct unit range.
        """
        cuts = _cuts(self._keys, keys_sorted)
        for keys, (begin, end) in zip(self._keys, cuts, strict=True):
            if begin >= end:
                continue
            for span, areas in self._groups[keys].items():
                selection: Selection
                if span.size == UNITS:
                    selection = slice(begin, end)
                else:
                    selection = np.flatnonzero(span.contains(units[begin:end]))
                    if not len(selection):
                        continue
                    selection += begin
                for area in areas:
                    yield area, selection


class EntryRouter:
    """Routes a stream's tuples to the end of a chain, whatever their keys."""

    by_units = False

    def __init__(self, area: int) -> None:
        """``area``: of the worker at which the stream comes in."""
        self._area = area

    def route(self, keys_sorted: np.ndarray, units: np.ndarray) -> Iterator[tuple[int, Selection]]:
        """As :meth:`Router.route`. O(1)."""
        if len(keys_sorted):
            yield self._area, slice(0, len(keys_sorted))


def _cuts(ranges: list[KeyRange], keys_sorted: np.ndarray) -> list[tuple[int, int]]:
    """Per range, where its keys begin and end."""
    bounds: list[Bound] = [bound for keys in ranges for bound in (keys.low, keys.high) if bound is not None]
    places = iter(np.searchsorted(keys_sorted, _as_keys(bounds, keys_sorted.dtype)).tolist())
    total = len(keys_sorted)
    return [(0 if keys.low is None else next(places), total if keys.high is None else next(places)) for keys in ranges]


def _as_keys(bounds: list[Bound], dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "f":
        return np.array(bounds, dtype)
    # A float bound among integers (a scheme written by hand) means the next integer: comparing as floats would round keys above 2**53.
    return np.array([math.ceil(bound) for bound in bounds if bound is not None], dtype)
