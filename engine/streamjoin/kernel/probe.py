"""Probes of one sorted run by another: the pairs of rows that main predicate and window admit, as index pairs in chunks.

Always holds: every admitted pair comes exactly once, whichever side is probed. A chunk has at most as many pairs as asked for: an
expansion stops and resumes inside one row's matches. Memory is one chunk and some 40 bytes for each of ``BLOCK`` rows.

Both runs are sorted by key, so each row of the smaller side admits a range of rows of the other, and both ends of the range only
move up. A block of rows at a time, the ranges are found and counted (``ranges``), then expanded with the window checked on the way
(``expansion``). Where there are few matches, they are found at once (``sweep``), and the window is checked afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from streamjoin.kernel.expansion import Coverage, between, coverage_of, expansion_of, keep_between
from streamjoin.kernel.ranges import Indices, blocks_of_ranges, interval_of
from streamjoin.kernel.run import Run
from streamjoin.kernel.sweep import Sweep, sweep_of
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window, WindowKind

Chunk = tuple[Indices, Indices]
"""Rows of the probing run, and those of the other."""


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
        chunk = np.empty(size, np.int32), np.empty(size, np.int32)
        left, right = chunk if probe_side == LEFT else chunk[::-1]
        for filled in self._filled(_Probe(probe, run, probe_side, coverage), chunk):
            yield left[:filled], right[:filled]

    def _filled(self, probe: _Probe, chunk: Chunk) -> Iterator[int]:
        """How many pairs the chunk has, each time that it has been filled anew: whole but for the last time."""
        interval = interval_of(self._main, probe.probing.key, probe.probed.key, probe.side)
        if probe.coverage is Coverage.ALL or self._window.kind is WindowKind.RANGE:
            sweep = sweep_of(probe.probing.key, probe.probed.key, interval)
            if sweep is not None:
                yield from self._swept(sweep, probe, chunk)
                return
        filled = 0
        for offset, first, last, pairs in blocks_of_ranges(self._main, probe.probing.key, probe.probed.key, probe.side, interval):
            self.seen += pairs
            if not pairs:
                continue
            rows = slice(offset, offset + len(first))
            kernel, arguments = expansion_of(self._window, probe.coverage, probe.probing, probe.probed, probe.side, rows)
            state = np.zeros(2, np.int64)
            while state[0] < len(first):
                filled = kernel(first, last, state, offset, filled, *chunk, *arguments)
                if filled == len(chunk[0]):
                    yield filled
                    filled = 0
        if filled:
            yield filled

    def _swept(self, sweep: Sweep, probe: _Probe, chunk: Chunk) -> Iterator[int]:
        is_checked, filled = probe.coverage is Coverage.SOME, 0
        inside = between(self._window, probe.probing, probe.probed, probe.side, slice(None)) if is_checked else ()
        while not sweep.is_over:
            found = sweep.fill(filled, *chunk)
            self.seen += found - filled
            filled = keep_between(*chunk, filled, found, *inside) if is_checked else found
            if filled == len(chunk[0]):
                yield filled
                filled = 0
        if filled:
            yield filled


class _Probe(NamedTuple):
    """Of one run by another."""

    probing: Run
    probed: Run
    side: int
    """Of the probing run."""
    coverage: Coverage
