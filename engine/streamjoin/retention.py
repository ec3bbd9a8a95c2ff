"""For how long a job's tuples are held, how many that makes, and when none of them can match any more.

Always holds: pure; a tuple that is let go can match nothing that is still to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from streamjoin.elastic.deployment import Expected, expected_tuples
from streamjoin.elastic.settings import LEAST_INTERVAL_SECONDS
from streamjoin.job import Job, JoinSource
from streamjoin.language.layout import PlacedGraph
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Ends, Window, WindowKind
from streamjoin.scheme.models import HANDSHAKE

Number = TypeVar("Number", int, float)


def expected_of_sides(job: Job) -> Expected:
    """What is expected to be held on each side of a scheme."""
    of_places = list(zip(job.places, expected_of_places(job), strict=True))
    left, right = ([tuples for place, tuples in of_places if place.side == side] for side in SIDES)
    return _sum_of(left), _sum_of(right)


def expected_of_places(job: Job) -> tuple[float | None, ...]:
    """What is expected to be held at each place: of a join over three and more streams by its own window, else by the widest."""
    rates = [stream.expected_rate for stream in job.streams]
    return _by_place(job, lambda placed: _expected_at(job, rates, placed.streams, held_for(job, placed)))


def window_seconds(job: Job) -> tuple[float, float] | None:
    """For how long a left, and a right, tuple is held, delays and some epochs included; None: of rows, or more streams."""
    if job.window.kind is WindowKind.ROWS or len(job.streams) != 2:
        return None
    left, right = _expected_at(job, (1.0, 1.0), SIDES, job.window)
    return left or 0.0, right or 0.0


def _expected_at(job: Job, rates: Sequence[float | None], streams: Sequence[int], window: Window) -> tuple[float | None, ...]:
    """Of these streams by this window."""
    return expected_tuples(
        [rates[stream] for stream in streams],
        window,
        delays_micros=[job.streams[stream].watermark_micros for stream in streams],
        epoch_micros=max(LEAST_INTERVAL_SECONDS * 1e6, job.interval_micros),
    )


def expired_before(job: Job, marks: Ends) -> Ends:
    """By place, the ``_time`` below which a held tuple can match nothing that is still to come (:meth:`Window.expired_before`)."""
    return _by_place(job, lambda placed: held_for(job, placed).expired_before(tuple(marks[stream] for stream in placed.streams)))


def _by_place(job: Job, of_streams: Callable[[PlacedGraph], Sequence[Number | None]]) -> tuple[Number | None, ...]:
    """What is said of each join's streams, by place. Joins that share a place say the same of it."""
    found: list[Number | None] = [None] * len(job.places)
    for placed in job.layouts[0].joins:
        by_stream = of_streams(placed)
        for number, place in zip(placed.places, placed.graph.places, strict=True):
            found[number] = by_stream[place.stream]
    return tuple(found)


def held_for(job: Job, placed: PlacedGraph) -> Window:
    """What a join's tuples are held for: of two streams the widest window of all such joins, as others may lie there too."""
    return job.joins[placed.join].window if placed.is_multiway else job.window


def _depth(job: Job, streams: Iterable[int]) -> int:
    """How many joins tuples of these streams have come through, at most."""
    sources = (job.streams[stream].source for stream in streams)
    return max(1 + _depth(job, job.joins[source.join].streams) if isinstance(source, JoinSource) else 0 for source in sources)


def to_end(job: Job, held: Iterable[int]) -> frozenset[int]:
    """Where tuples can match nothing any more, as nothing comes any more, of the places where some are ``held``: those of the joins
    that the fewest others come before. None, if no tuple comes alone, nor of inner joins of more than two streams; of a chain, all."""
    if job.model == HANDSHAKE:  # tuples that have yet to meet do so on their way out of the chain
        return frozenset(held)
    if not job.gives_unmatched:
        return frozenset()
    alone = max(_depth(job, join.streams) for join in job.joins if join.type.gives_unmatched)
    joins = job.layouts[0].joins
    together = {each.places for each in joins if not each.is_multiway or job.joins[each.join].type.gives_unmatched}
    holding = set(held)
    depths = {places: _depth(job, map(job.stream_of, places)) for places in together if holding & set(places)}
    least = min(depths.values(), default=alone + 1)
    if least > alone:
        return frozenset()
    return frozenset(place for places, depth in depths.items() if depth == least for place in places)


def _sum_of(tuples: Sequence[float | None]) -> float | None:
    known = [number for number in tuples if number is not None]
    return math.fsum(known) if len(known) == len(tuples) else None
