"""Indexes of runs: the order of a run's tuples by other keys than those it is sorted by, or in windows that begin at other times.

A join whose keys are not those that tuples lie by finds its pairs by such an index; the payload stays where it is, once for all joins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import Run, sort_order
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
        """``schema``: of the run's stream. By a key O(n log n), and 12 bytes a row."""
        if self.key is None:
            return Index(self.slide_micros, {"aux": None})
        keys, valid = encode_keys(run.batch, self.key, schema)
        rows = None if valid is None or valid.all() else np.flatnonzero(valid)
        found = sort_order(keys if rows is None else keys[rows])
        order = (found if rows is None else rows[found]).astype(np.int32)
        shown = {"key": keys[order], "unit": NO_UNITS, "rows": len(order), "order": order, "time": None, "aux": None}
        return Index(self.slide_micros, shown)


@dataclass(slots=True)
class Index:
    """An index of one run. It refers to nothing of the run's own memory, as a run may come to lie elsewhere."""

    _slide_micros: int | None
    _shown: dict[str, Any]
    """The fields of the run that are others, as the index shows it. Rows whose key is null are not shown; the bounds of times are still
    the run's, which hold those of the rows that are."""
    _has_times: bool = False

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self._shown.values() if isinstance(values, np.ndarray))

    def over(self, run: Run, *, times: bool) -> Run:
        """The run as this index, which is of its tuples, shows it. O(1).

        ``times``: with its times; else what needs them fails. They are made when they are first asked for: O(n), and 8 bytes a row each.
        """
        if times and not self._has_times and run.time is not None:
            order = self._shown.get("order")
            if order is not None:
                self._shown["time"] = run.time[order]
                self._shown["aux"] = None if run.aux is None else run.aux[order]
            if self._slide_micros is not None:
                time = self._shown.get("time", run.time)
                self._shown["aux"] = time // self._slide_micros * self._slide_micros
            self._has_times = True
        return replace(run, **self._shown)
