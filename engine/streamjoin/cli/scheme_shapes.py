"""A scheme as shapes in the unit square, for the page: areas, the band of pairs that can match, and ranges of keys that are hot.

As in :mod:`streamjoin.cli.draw`: left keys run down, right ones across, to the scale of the tuples that have them. Of three and more
streams a side's keys are levels (:mod:`streamjoin.language.composite_key`), so that the key spaces lie along the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.api.areas import key_text, range_text
from streamjoin.api.axis import Axis
from streamjoin.api.key_spaces import is_empty
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import Encoding, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.statistics import Histogram, Statistics
from streamjoin.scheme.tiling import KeyRange, Scheme

MOST_BAND_ROWS = 160
"""Of the staircase; more rows than that are put together, so that it only becomes wider."""
MOST_TICKS = 40
PIECES = 48
"""Of the span of all keys, by which it is found where keys are dense."""
HOT = 2.0
"""A piece is hot if its density is this many times the mean."""
HOT_KEY = 0.03
"""And such a share of all tuples a single key."""
MOST_HOT = 5
"""Of a side."""
DIGITS = 5


def shapes(scheme: Scheme, statistics: Statistics, layout: Layout, names: Sequence[str]) -> dict[str, Any]:
    """See the module. ``names``: of the sides. O(areas + buckets)."""
    main = layout.main
    areas = [area for area in scheme.areas if not any(map(is_empty, area.keys))]
    axes = [Axis(statistics.sides[side], [area.keys[side] for area in areas], main.key(side), names[side]) for side in SIDES]
    return {
        "model": scheme.model,
        "tasks": scheme.tasks,
        "summary": scheme.summary,
        "predicate": main.text or str(main.kind),
        "sides": [_side(axis) for axis in axes],
        "areas": [
            {
                "task": area.task,
                "coverage": area.coverage,
                "holds": list(area.holds),
                "rows": _rounded(axes[LEFT].parts(area.keys[LEFT], area.units[LEFT])),
                "columns": _rounded(axes[RIGHT].parts(area.keys[RIGHT], area.units[RIGHT])),
                "keys": [range_text(area.keys[side], axes[side].key) if axes[side].key is not None else None for side in SIDES],
            }
            for area in areas
        ],
        "band": _band(statistics, main, *axes),
    }


def _side(axis: Axis) -> dict[str, Any]:
    places = axis.at(np.array(axis.cuts)).tolist() if axis.cuts and axis.key is not None else []
    ticks = [[round(place, DIGITS), key_text(bound, axis.key)] for place, bound in zip(places, axis.cuts, strict=False)]
    return {"name": axis.name, "tuples": round(axis.tuples), "ticks": ticks[:MOST_TICKS], "hot": hot_ranges(axis)}


def _band(statistics: Statistics, main: MainPredicate, rows: Axis, columns: Axis) -> list[list[float]]:
    """Rows of the staircase: where it begins and ends down, and across. Rows are put together between two cuts of the scheme alone, so that
    the band never leaves the areas."""
    matrix = Matrix.of(statistics, main, left_cuts=rows.cuts, right_cuts=columns.cuts)
    down = np.concatenate([[0.0], rows.at(matrix.row_bounds), [1.0]])
    across = np.concatenate([[0.0], columns.at(matrix.column_bounds), [1.0]])
    begin, end = across[matrix.first], across[matrix.last + 1]
    cuts = np.unique(np.concatenate([[0], np.flatnonzero(np.isin(matrix.row_bounds, rows.cuts)) + 1, [len(begin)]])).tolist()
    step = -(-len(begin) // MOST_BAND_ROWS)
    found = []
    for low, high in pairwise(cuts):
        for first in range(low, high, step):
            last = min(first + step, high)
            found.append([down[first], down[last], begin[first:last].min(), end[first:last].max()])
    return _rounded([row for row in found if row[1] > row[0]])


def hot_ranges(axis: Axis) -> list[dict[str, Any]]:
    """Where keys are dense: single keys with many tuples, and ranges with ``HOT`` times as many as if keys lay evenly. O(buckets)."""
    histogram = axis.histogram
    if histogram is None or axis.key is None or len(histogram.bounds) < 3:
        return []
    bounds, shares = histogram.bounds, histogram.counts / histogram.total
    found: list[tuple[float, KeyRange, str]] = []
    is_whole = bounds.dtype.kind == "i"
    for index in np.flatnonzero(shares[1:-1] >= HOT_KEY).tolist():
        low, high = bounds[index].item(), bounds[index + 1].item()
        if (is_whole and high == low + 1) or (not is_whole and high == np.nextafter(low, np.inf)):
            found.append((float(shares[index + 1]), KeyRange(low, high), f"only {key_text(low, axis.key)}"))
    for share, keys in _dense(histogram) if axis.key.encoding is not Encoding.HASH else ():
        is_one_key = any(keys.low <= one.low < keys.high and of_key >= 0.8 * share for of_key, one, _ in found)  # type: ignore[operator]
        if not is_one_key:
            found.append((share, keys, range_text(keys, axis.key)))
    hottest = sorted(found, key=lambda one: -one[0])[:MOST_HOT]
    return [{"share": round(share, DIGITS), "keys": text, "ends": _rounded([axis.ends(keys)])[0]} for share, keys, text in hottest]


def _dense(histogram: Histogram) -> Iterator[tuple[float, KeyRange]]:
    """Ranges with ``HOT`` times as many tuples as if keys lay evenly between the first and the last, with their shares."""
    low, high = histogram.bounds[0].item(), histogram.bounds[-1].item()
    if isinstance(low, int):
        edges = np.array([low + (high - low) * piece // PIECES for piece in range(PIECES + 1)], np.int64)
    else:
        edges = low + (high / PIECES - low / PIECES) * np.arange(PIECES + 1)
    below = histogram.below(edges) / histogram.total
    dense = np.diff(below) >= HOT / PIECES
    begins, ends = (np.flatnonzero(np.diff(np.concatenate([[False], dense, [False]]).astype(int)) == way) for way in (1, -1))
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        if edges[first] < edges[last]:
            yield float(below[last] - below[first]), KeyRange(edges[first].item(), edges[last].item())


def _rounded(rows: Any) -> list[list[float]]:
    return [[round(float(value), DIGITS) for value in row] for row in rows]
