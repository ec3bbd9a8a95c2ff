"""Indexes of runs: the order of a run's tuples by other keys than those it is sorted by, or in windows that begin at other times.

A join whose keys are not those that tuples lie by finds its pairs by such an index; the payload stays where it is, once for all joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import Run, bounds_of, sort_order
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
        """``schema``: of the run's stream. By a key O(n log n), and 20 bytes a row, 8 more where there is ``_aux``; else O(n), and 8."""
        shown: dict[str, Any] = {}
        time, aux = run.time, run.aux
        if self.key is not None:
            keys, valid = encode_keys(run.batch, self.key, schema)
            rows = None if valid is None or valid.all() else np.flatnonzero(valid)
            found = sort_order(keys if rows is None else keys[rows])
            order = (found if rows is None else rows[found]).astype(np.int32)
            time, aux = (None if values is None else values[order] for values in (time, aux))
            low, high = bounds_of(time)
            shown |= {"key": keys[order], "unit": NO_UNITS, "rows": len(order), "order": order}
            shown |= {"time": time, "time_min": low, "time_max": high}
        if self.slide_micros is not None:
            assert time is not None
            aux = time // self.slide_micros * self.slide_micros
        if aux is not run.aux:
            low, high = bounds_of(aux)
            shown |= {"aux": aux, "aux_min": low, "aux_max": high}
        return Index(shown, sum(values.nbytes for values in shown.values() if isinstance(values, np.ndarray)))


@dataclass(frozen=True, slots=True)
class Index:
    """An index of one run. It refers to nothing of the run's own memory, as a run may come to lie elsewhere."""

    shown: Mapping[str, Any]
    """The fields of the run that are others, as the index shows it. Rows whose key is null are not shown."""
    nbytes: int

    def over(self, run: Run) -> Run:
        """The run as this index, which is of its tuples, shows it. O(1)."""
        return replace(run, **self.shown)
