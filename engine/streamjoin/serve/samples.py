"""Samples for the autoscaler, made of the commits of a driver in this process.

They say the same as those that the operator makes of metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamjoin.controlplane.planning import utilization
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Budget
from streamjoin.epoch.ports import EpochResult
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.state.checkpoint import Checkpoint

RATE_EPOCHS = 10
"""Over how many epochs the rates of a sample are taken, and what was shed: what is held now came with them, not with the last one alone."""
RATE_SECONDS = 30.0
"""Rates are taken over no longer, where epochs are long: by older ones nobody could look ahead. Over one epoch at least."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """What came with an epoch."""

    at: float
    """When it was committed."""
    tuples: tuple[int, ...]
    """By stream, those shed included."""
    watermark: int | None
    """After it, of the stream that is furthest behind, in microseconds; None: of no stream, or not of all."""


class Samples:
    """Of one run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._arrived: deque[_Arrived] = deque(maxlen=RATE_EPOCHS + 1)
        """With the last epochs."""
        self._shed: deque[int] = deque(maxlen=RATE_EPOCHS + 1)

    def take(self, checkpoint: Checkpoint, result: EpochResult | None, layout: Layout, budget: Budget | None, now: float) -> Sample:
        """After an epoch, whose checkpoint this is; None: there was nothing to do."""
        if result is None:
            taken_at, generation = now, checkpoint.plan.generation
            nothing = (0,) * len(self._job.streams)
            counts: Mapping[str, tuple[int, ...]] = {"accepted": nothing, "shed": nothing}
        else:
            taken_at, generation, counts = result.committed_at or now, result.generation, result.counts
        came = tuple(map(sum, zip(counts["accepted"], counts["shed"], strict=True)))
        self._arrived.append(_Arrived(taken_at, came, _least(checkpoint.input.watermarks)))
        self._shed.append(sum(counts["shed"]))
        held = [0] * len(layout.places)
        for block in checkpoint.state.blocks:
            held[block.place] += block.rows
        tau = utilization(self._job, checkpoint)
        return Sample(
            taken_at=taken_at,
            generation=generation,
            tau=tau,
            workers=len(tau),
            rates=self._rates(layout),
            pace=self._pace,
            held=layout.by_side(held),
            epoch_seconds=0.0 if result is None else result.duration,
            backlog_records=0 if result is None else result.readable_backlog,
            shed_fraction=self._shed_fraction,
            budget_seconds=None if budget is None else checkpoint.losses.budget_seconds(budget.share, budget.over_seconds, taken_at),
        )

    @property
    def _shed_fraction(self) -> float:
        """Of the tuples that came lately, those that were shed."""
        came = sum(sum(arrived.tuples) for arrived in self._arrived)
        return sum(self._shed) / came if came else 0.0

    @property
    def _of_late(self) -> list[_Arrived]:
        """Over which rates are taken: no tuples of the first one, from whose end they go."""
        last = self._arrived[-1].at
        of_late = [arrived for arrived in self._arrived if arrived.at >= last - RATE_SECONDS]
        return of_late if len(of_late) > 1 else list(self._arrived)[-2:]

    def _rates(self, layout: Layout) -> tuple[float | None, float | None]:
        """Tuples per second that come to each side, those shed included; None before the second epoch."""
        first, *others = self._of_late
        seconds = self._arrived[-1].at - first.at
        if seconds <= 0:
            return None, None
        came = [sum(of_stream) / seconds for of_stream in zip(*(arrived.tuples for arrived in others), strict=True)]
        return layout.by_side([came[place.stream] for place in layout.places])

    @property
    def _pace(self) -> float | None:
        """Seconds of event time that pass in a second; None where that is not known."""
        first, last = self._of_late[0], self._arrived[-1]
        if first.watermark is None or last.watermark is None or last.at <= first.at:
            return None
        return max(0, last.watermark - first.watermark) / 1e6 / (last.at - first.at)


def _least(watermarks: Sequence[int | None]) -> int | None:
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None
