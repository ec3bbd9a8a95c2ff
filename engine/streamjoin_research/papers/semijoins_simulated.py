"""004, Tran and Lee: Fig. 7 in a simulated network, beside the same figure by formula (:mod:`streamjoin_research.papers.semijoins`).

The machines of :mod:`streamjoin_research.semijoin.algorithms` join streams of generated tuples. The time of a second is that of all its
shipments, laid end to end, each with its latency and by its bytes. Probing takes no time here, so nothing but shipments is compared. Keys
are drawn from 1 / f values, those of one stream among those of the other, as the paper assumes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from streamjoin_research.papers.rows import Check, Kind, Lines, Ours, Row, Values, figures, holds
from streamjoin_research.papers.semijoins import (
    ALL_FALL,
    ALL_RISE,
    CROSS,
    DESTINATION,
    DESTINATION_FLAT,
    EACH,
    FLAT,
    SEMIJOINS_LOSE,
    SHIPMENT_BOUND,
    SOURCE_RISES,
    WITH,
)
from streamjoin_research.semijoin.algorithms.site import Setting, Timing, Widths
from streamjoin_research.semijoin.algorithms.window import StreamTuple, TimeWindow
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.network import Link, run_one_way
from streamjoin_research.semijoin.statistics import Connection

MICROS = 1_000_000
POINTS = 5
MEASURED_SECONDS = 3
"""A multiple of every interval, once windows are full."""
HALF = 2
"""Where it is to be quick, tuples a second, keys, window and bandwidth are divided by this, so that times have the same shape."""


@dataclass(frozen=True)
class Stream:
    """One of the two; section 5.3.1's defaults."""

    rate: int = 300
    tuple_bytes: int = 1250
    distinct_keys: int = 10


@dataclass(frozen=True)
class Place:
    """One point of a figure."""

    second: Stream = Stream()
    window_ms: int = 3000
    """Of the second stream: its tuples are what the first one's find."""
    interval_ms: int = 100
    latency_ms: int = 25
    kbps: int = 1024


FIRST = Stream()
KEY_BYTES = 5


@cache
def shipped(second: Stream, window_ms: int, interval_ms: int, latency_ms: int, quick: bool) -> dict[str, list[int]]:
    """By algorithm, the bytes of each shipment of the measured seconds."""
    part = HALF if quick else 1
    chance = random.Random(5)  # noqa: S311 - nothing secret about it
    window = window_ms * 1000 // part
    begin = -(-window // MICROS) * MICROS + MICROS
    until = begin + MEASURED_SECONDS * MICROS
    streams = []
    for number, stream in enumerate((FIRST, second), 1):
        rate, keys = stream.rate // part, stream.distinct_keys // part
        count = rate * until // MICROS
        streams.append([StreamTuple(each * MICROS // rate, number, each, chance.randrange(keys)) for each in range(count)])
    found = {}
    for algorithm in Algorithm:
        widths = Widths(FIRST.tuple_bytes, second.tuple_bytes, KEY_BYTES)
        setting = Setting(interval_ms * 1000, TimeWindow(window), Timing.of(algorithm, SHIPMENT_BOUND), widths)
        run = run_one_way(algorithm, setting, streams[0], streams[1], Link(latency_ms * 1000), until)
        found[algorithm.value] = [shipment.message.bytes for shipment in run.shipments if begin <= shipment.sent < until]
    return found


def seconds(place: Place, quick: bool) -> dict[str, float]:
    """By algorithm, the time of a second's shipments."""
    network = Connection(place.latency_ms / 1000, place.kbps * 125 / (HALF if quick else 1))
    sizes = shipped(place.second, place.window_ms, place.interval_ms, place.latency_ms, quick)
    return {name: sum(map(network.seconds, of)) / MEASURED_SECONDS for name, of in sizes.items()}


def _curve(label: str, points: Sequence[float], at: Callable[[float], Place]) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        x = points[::2] if quick and len(points) == POINTS else points
        times = [seconds(at(value), quick) for value in x]
        lines = {name: [of_x[name] for of_x in times] for name in EACH}
        text = f"{label} {figures(x, 3)}: " + "; ".join(f"{name} {figures(line)}" for name, line in lines.items())
        return Ours(f"{text} s", {"x": list(x), **lines}, Lines(label, "seconds a second", x, lines))

    return ours


def _second(**changed: int) -> Place:
    return Place(second=replace(FIRST, **changed))


_SELECTIVITIES = _curve(
    "f of the second stream", [1 / 50, 1 / 20, 1 / 10, 1 / 8, 1 / 6, 1 / 4], lambda f: _second(distinct_keys=round(1 / f))
)


def _row(figure: str, part: str, parameters: str, says: str, ours: Callable[[bool], Ours], *rule: Check, why: str = "") -> Row:
    return Row(
        "004",
        figure,
        "5.3.1",
        f"{part}, simulated",
        Kind.SIMULATED,
        f"{WITH}; varied: {parameters}",
        says,
        ours,
        rule,
        ("research/semijoin/network.py", "research/semijoin/algorithms/site.py"),
        why=why,
        slow=True,
    )


def _at_most(values: Values, names: Sequence[str], first: int, last: int) -> bool:
    return all(0 < max(values[name][first:last]) <= FLAT * min(values[name][first:last]) for name in names)


NO_PROBES = "Shipments alone are timed: SP-S and SP-D ship the same whatever the window, and where f_1 = f_2, SM-S2 and SM-D1 nearly so."

ROWS = (
    _row(
        "7a",
        "tuple size",
        "the second stream's 250 to 2250 bytes",
        'the source group rises, the destination group stays "more or less constant"; the two cross',
        _curve("bytes", [250, 750, 1250, 1750, 2250], lambda size: _second(tuple_bytes=round(size))),
        SOURCE_RISES,
        DESTINATION_FLAT,
        CROSS,
    ),
    _row(
        "7b",
        "stream rate",
        "the second stream's 100 to 500/s",
        "as with the tuple size",
        _curve("tuples/s", [100, 200, 300, 400, 500], lambda rate: _second(rate=round(rate))),
        SOURCE_RISES,
        DESTINATION_FLAT,
        CROSS,
    ),
    _row(
        "7c",
        "selectivity factor, simple joins",
        "the second stream's f, 0.02 to 0.25",
        'the simple joins "stay unchanged", the semijoins "do change"',
        _SELECTIVITIES,
        holds(
            "SP-S and SP-D are the same for all f",
            lambda v: all(len({round(time, 9) for time in v[name]}) == 1 for name in ("SP-S", "SP-D")),
        ),
        holds("each semijoin is not", lambda v: all(max(v[name]) > 1.01 * min(v[name]) for name in EACH if name.startswith("SM"))),
    ),
    _row(
        "7c",
        "selectivity factor, source group",
        "the second stream's f, 0.02 to 0.25",
        'SM-S1 and SM-S2 "increase and then become nearly constant when f_2 is greater than 0.1"',
        _SELECTIVITIES,
        holds("SM-S1 and SM-S2 rise up to f = 0.1", lambda v: all(v[name][0] < v[name][1] < v[name][2] for name in ("SM-S1", "SM-S2"))),
        holds(f"from there on at most {FLAT} times", lambda v: _at_most(v, ("SM-S1", "SM-S2"), 2, 6)),
    ),
    _row(
        "7c",
        "selectivity factor, destination group",
        "the second stream's f, 0.02 to 0.25",
        "SM-D1 and SM-D2 are nearly constant and decrease once f_2 is greater than 0.1",
        _SELECTIVITIES,
        holds(f"up to f = 0.1 at most {FLAT} times", lambda v: _at_most(v, DESTINATION[1:], 0, 3)),
        holds("then they fall", lambda v: all(v[name][2] > v[name][3] > v[name][4] > v[name][5] for name in DESTINATION[1:])),
    ),
    _row(
        "7d",
        "window size",
        "the second stream's window, 1 to 5 s",
        '"the execution times increase for all algorithms"',
        _curve("window, s", [1, 2, 3, 4, 5], lambda value: Place(window_ms=round(1000 * value))),
        ALL_RISE,
        why=NO_PROBES,
    ),
    _row(
        "7e",
        "latency",
        "5 to 45 ms",
        '"the execution times increase for all algorithms"',
        _curve("latency, ms", [5, 15, 25, 35, 45], lambda value: Place(latency_ms=round(value))),
        ALL_RISE,
    ),
    _row(
        "7f",
        "bandwidth",
        "256 to 4096 kbps",
        'all decrease; semijoins "gradually lose their performance advantages"',
        _curve("kbps", [256, 512, 1024, 2048, 4096], lambda value: Place(kbps=round(value))),
        ALL_FALL,
        SEMIJOINS_LOSE,
    ),
    _row(
        "7g",
        "interval",
        "50 to 250 ms",
        '"the execution time decreases in all join algorithms"',
        _curve("interval, ms", [50, 100, 150, 200, 250], lambda value: Place(interval_ms=round(value))),
        ALL_FALL,
    ),
)
