"""Indexes of runs: the order of a run's tuples by other keys than those it is sorted by, or in windows that begin at other times.

A join whose keys are not those that tuples lie by finds its pairs by such an index; the payload stays where it is, once for all joins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import Indices, Run, bounds_of, sort_order
from streamjoin.language.predicate import KeyExpression
from streamjoin.language.schema import Schema

NO_UNITS = np.empty(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class Indexed:
    """What an index is by. Where both are None, a run is its own index."""

    key: KeyExpression | None
    """None: the key that runs are sorted by."""
    slide_micros: int | None
    """Windows begin at multiples of this, which is not what the run's ``_aux`` says; None: it is."""

    def of(self, run: Run, schema: Schema) -> Index:
        """``schema``: of the run's stream. O(n log n), and 20 bytes a row."""
        order: Indices | None = None
        key, time, aux = run.key, run.time, run.aux
        if self.key is not None:
            keys, valid = encode_keys(run.batch, self.key, schema)
            rows = None if valid is None or valid.all() else np.flatnonzero(valid)
            found = sort_order(keys if rows is None else keys[rows])
            order = (found if rows is None else rows[found]).astype(np.int32)
            key = keys[order]
            time, aux = (None if values is None else values[order] for values in (time, aux))
        if self.slide_micros is not None:
            assert time is not None
            aux = time // self.slide_micros * self.slide_micros
        shared = {id(array) for array in (run.key, run.time, run.aux)}
        nbytes = sum(array.nbytes for array in (key, time, aux, order) if array is not None and id(array) not in shared)
        return Index(key, time, aux, order, nbytes)


@dataclass(frozen=True, slots=True)
class Index:
    """An index of one run, without its tuples: a run may come to lie elsewhere."""

    key: NDArray[Any]
    time: NDArray[np.int64] | None
    aux: NDArray[np.int64] | None
    order: Indices | None
    """Rows of the run, by position in the index; rows whose key is null are in none. None: the same."""
    nbytes: int

    def over(self, run: Run) -> Run:
        """The run as it is seen by this index, which is of its tuples. O(rows) for the ranges of times."""
        (time_min, time_max), (aux_min, aux_max) = bounds_of(self.time), bounds_of(self.aux)
        return replace(
            run,
            key=self.key,
            unit=NO_UNITS,
            time=self.time,
            aux=self.aux,
            time_min=time_min,
            time_max=time_max,
            aux_min=aux_min,
            aux_max=aux_max,
            rows=len(self.key),
            order=self.order,
        )
