"""What is said of all pairs of two runs by the extremes of their times, against a look at each pair."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.dataplane.window_filter import window_filter
from streamjoin.kernel.joiner import Pairs
from streamjoin.kernel.run import AUX, KEY, TIME, UNIT, Run
from streamjoin.language.window import Window, WindowKind

STREAMS = ("a", "b", "c")


def run_of(rng: np.random.Generator, rows: int, *, is_partial: bool) -> Run:
    begin, length = rng.integers(0, 30), rng.integers(1, 20)
    times = rng.integers(begin, begin + length, rows)
    columns = {KEY: np.zeros(rows, np.int64), UNIT: np.zeros(rows, np.uint32), TIME: times}
    if is_partial:
        columns[AUX] = times + rng.integers(0, 30, rows)
    return Run.of(pa.RecordBatch.from_pydict(columns))


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_where_the_extremes_say_that_pairs_are_near_all_are(rows: int) -> None:
    near = window_filter(Window.of_each((5, 10, 40)), STREAMS)
    assert near is not None
    seen = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        streams = (("a", "b"), ("c",)) if seed % 2 else (("c",), ("a", "b"))
        runs = tuple(run_of(rng, rows, is_partial=len(each) > 1) for each in streams)
        left, right = (places.ravel().astype(np.int32) for places in np.indices((rows, rows)))
        pairs = Pairs({streams[0]: (runs[0].batch, left), streams[1]: (runs[1].batch, right)}, rows * rows)
        is_plain = near.is_plain(streams, (runs[0], runs[1]))
        assert not is_plain or len(near.holds(pairs)) == rows * rows, seed
        seen.add(is_plain)
    assert seen == ({False} if rows == 0 else {False, True})


def test_windows_of_rows_are_looked_at_pair_by_pair() -> None:
    near = window_filter(Window(WindowKind.ROWS, rows=3, each=(3, 3, 3)), STREAMS)
    assert near is not None
    run = run_of(np.random.default_rng(0), 2, is_partial=True)
    assert not near.is_plain((("a", "b"), ("c",)), (run, run))
