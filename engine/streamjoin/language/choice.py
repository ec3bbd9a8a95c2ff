"""Chooses among the layouts of joins by samples of their streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, MainKind, MainPredicate

Array = NDArray[Any]

_PROBE_COST = 1.0
"""Of finding one candidate pair by its keys; the unit of the costs."""
_RESIDUAL_COST = 8.0
"""Of taking a candidate's columns and evaluating the residual on them."""


def choose(layouts: Sequence[Layout], keys: Sequence[Sequence[Array]]) -> Layout:
    """The layout that is expected to cost least, by samples of all streams; among equals the first.

    ``keys`` has for each layout and place the valid encoded keys of the sampled tuples (nothing for ALL). Joins of two streams cost the
    pairs that their main predicates admit, each dearer where a residual remains. A join of three and more costs what its edges together
    admit of all combinations; an edge that admits no pair of the samples is taken to admit less than one. The two are of different units:
    where joins of both kinds lie beside each other, every way of the one is among the layouts with every way of the other, so each is
    chosen as if it were alone. O(layouts x joins x n log n) for samples of n.
    """
    if len(layouts) == 1:
        return layouts[0]
    costs = []
    for layout, of_places in zip(layouts, keys, strict=True):
        samples = [[of_places[place] for place in placed.places] for placed in layout.joins]
        costs.append(sum(_cost(placed, own) for placed, own in zip(layout.joins, samples, strict=True)))
    return layouts[costs.index(min(costs))]


def _cost(placed: PlacedGraph, of_places: Sequence[Array]) -> float:
    if not placed.is_multiway:
        return _admitted(placed.between.main, *of_places) * (_PROBE_COST + (_RESIDUAL_COST if placed.has_residual else 0.0))
    return round(sum(map(math.log, shares(placed.graph, of_places))), 9)


def shares(graph: JoinGraph, of_places: Sequence[Array]) -> tuple[float, ...]:
    """By edge, which part of all pairs its main predicate admits, by the sampled keys of each place; above 0, as an edge that admits no
    pair of the samples is taken to admit half of one. O(edges x n log n)."""
    found = []
    for edge in graph.edges:
        left, right = (of_places[place] for place in edge.places)
        found.append(max(0.5, _admitted(edge.main, left, right)) / max(1, len(left) * len(right)))
    return tuple(found)


def _admitted(main: MainPredicate, left: Array, right: Array) -> int:
    """How many pairs of the sampled keys the main predicate admits (float bounds taken as closed)."""
    if main.kind is MainKind.ALL:
        return len(left) * len(right)
    ordered = np.sort(right)
    low, high = main.low, main.high
    if main.kind is MainKind.NOT_EQUAL:
        low = high = 0
    begins = 0 if low is None else np.searchsorted(ordered, _moved_by(left, low), "left")
    ends = len(right) if high is None else np.searchsorted(ordered, _moved_by(left, high), "right")
    inside = int(np.maximum(np.broadcast_to(ends - begins, left.shape), 0).sum())
    return len(left) * len(right) - inside if main.kind is MainKind.NOT_EQUAL else inside


def _moved_by(keys: Array, by: int | float) -> Array:
    """keys + by, held at the ends of int64 where it would leave them."""
    if keys.dtype.kind == "f":
        return keys + float(by)
    step = max(INT64_MIN, min(INT64_MAX, int(by)))
    moved = keys + np.int64(step)
    return np.where(moved < keys, INT64_MAX, moved) if step > 0 else np.where(moved > keys, INT64_MIN, moved)
