"""Probes of one sorted run by another: the pairs of rows that main predicate and window admit, as index pairs in chunks.

Always holds: every admitted pair comes exactly once, whichever side is probed. A chunk has at most as many pairs as asked for: an
expansion stops and resumes inside one row's matches. Memory is one chunk and some 40 bytes for each of ``BLOCK`` rows.

Both runs are sorted by key, so each row of the smaller side admits a range of rows of the other, and both ends of the range only
move up. A block of rows at a time, the ranges are found and counted (``ranges``), then expanded with the window checked on the way
(``expansion``). Where there are few matches, and the window covers them all, both are done at once (``sweep``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamjoin.kernel.expansion import Coverage, coverage_of, expansion_of
from streamjoin.kernel.ranges import Indices, blocks_of_ranges, interval_of
from streamjoin.kernel.run import Run
from streamjoin.kernel.sweep import sweep_of
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window


class Candidates:
    """The pairs of ``left`` x ``right`` that main predicate and window admit: iterate for chunks of (left rows, right rows).

    The arrays of a chunk are overwritten by the next. ``seen`` counts the pairs that the main predicate has admitted so far.
    """

    def __init__(self, main: MainPredicate, window: Window, left: Run, right: Run, chunk_pairs: int) -> None:
        self._main, self._window, self._chunk_pairs = main, window, chunk_pairs
        self._runs = left, right
        self.seen = 0

    def __iter__(self) -> Iterator[tuple[Indices, Indices]]:
        if not all(run.rows for run in self._runs):
            return
        coverage = coverage_of(self._window, *self._runs)
        if coverage is Coverage.NONE:
            return
        # Few rows probe many: ranges are longer, and there are fewer of them.
        probe_side = LEFT if self._runs[LEFT].rows <= self._runs[RIGHT].rows else RIGHT
        probe, run = self._runs[probe_side], self._runs[1 - probe_side]
        size = min(self._chunk_pairs, probe.rows * run.rows)
        chunk_probe, chunk_run = np.empty(size, np.int32), np.empty(size, np.int32)
        chunk = (chunk_probe, chunk_run) if probe_side == LEFT else (chunk_run, chunk_probe)
        interval = interval_of(self._main, probe.key, run.key, probe_side)
        sweep = sweep_of(probe.key, run.key, interval) if coverage is Coverage.ALL else None
        if sweep is not None:
            for filled in sweep.fill(chunk_probe, chunk_run):
                self.seen += filled
                yield chunk[0][:filled], chunk[1][:filled]
            return
        filled = 0
        for offset, first, last, pairs in blocks_of_ranges(self._main, probe.key, run.key, probe_side, interval):
            self.seen += pairs
            if not pairs:
                continue
            kernel, arguments = expansion_of(self._window, coverage, probe, run, probe_side, slice(offset, offset + len(first)))
            state = np.zeros(2, np.int64)
            while state[0] < len(first):
                filled = kernel(first, last, state, offset, filled, chunk_probe, chunk_run, *arguments)
                if filled == size:
                    yield chunk
                    filled = 0
        if filled:
            yield chunk[0][:filled], chunk[1][:filled]
