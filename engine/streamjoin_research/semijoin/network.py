"""A network of sites, simulated event by event: latency, bandwidth, and links that keep the order of what is shipped on them.

The simulation gives the machines of :mod:`streamjoin_research.semijoin.algorithms` their events, in the order that they ask for, and writes
down all shipments, results and late messages. Computing takes no time. The same arguments give the same run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from streamjoin_research.semijoin.algorithms import one_way
from streamjoin_research.semijoin.algorithms.messages import Batch, Event, Late, Match, Message, Send, WakeAt
from streamjoin_research.semijoin.algorithms.site import Setting, Site
from streamjoin_research.semijoin.algorithms.window import StreamTuple
from streamjoin_research.semijoin.names import Algorithm


@dataclass(frozen=True)
class Link:
    """One direction between two sites. Shipments queue for it."""

    latency: int
    """Microseconds."""
    bytes_per_second: float = math.inf
    further_delay: Callable[[int], int] = lambda shipment: 0
    """Microseconds more for the n-th shipment, counted from 0. A later shipment does not overtake it."""

    def __post_init__(self) -> None:
        if self.latency < 0:
            raise ValueError(f"latency: {self.latency} must be 0 or more microseconds")
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second: {self.bytes_per_second} must be above 0")


@dataclass(frozen=True)
class Shipment:
    """A message that crossed a link. Times in microseconds."""

    sender: str
    receiver: str
    message: Message
    sent: int
    received: int


@dataclass(frozen=True)
class Found:
    """A result, and when it arose."""

    match: Match
    time: int


@dataclass
class _Line:
    """The state of a link."""

    link: Link
    free: int = 0
    last_received: int = 0
    shipments: int = 0

    def ship(self, size: int, time: int) -> int:
        """When ``size`` bytes that are sent at ``time`` are received."""
        self.free = max(self.free, time) + math.ceil(size * 1_000_000 / self.link.bytes_per_second)
        received = self.free + self.link.latency + self.link.further_delay(self.shipments)
        self.shipments += 1
        self.last_received = max(self.last_received, received)
        return self.last_received


@dataclass
class _Machine:
    site: Site
    place: str
    peer: int
    on_match: Callable[[Match, int], None]


_STREAMS, _MESSAGES, _WAKES, _RESULTS = range(4)


@dataclass
class Network:
    """Sites by name, and what happened among them."""

    link: Callable[[str, str], Link]
    """The link from one site to another; asked once for each pair."""
    shipments: list[Shipment] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    _lines: dict[tuple[str, str], _Line] = field(default_factory=dict)
    _machines: list[_Machine] = field(default_factory=list)
    _events: list[tuple[int, int, int, int, int, Event | Callable[[], Batch]]] = field(default_factory=list)
    _scheduled: int = 0

    def join(self, machines: tuple[Site, Site], source: str, destination: str, on_match: Callable[[Match, int], None]) -> tuple[int, int]:
        """Put both machines of a one-way join at sites; returns a handle of each, for :meth:`offer`. Within a site nothing is shipped."""
        first = len(self._machines)
        self._machines.append(_Machine(machines[0], source, first + 1, on_match))
        self._machines.append(_Machine(machines[1], destination, first, on_match))
        return first, first + 1

    def offer(self, machine: int, batch: Callable[[], Batch], time: int, *, step: int = 0) -> None:
        """Have a batch come at ``time``; ``batch`` is asked for it then.

        ``step``: how many joins its tuples have behind them. Batches of results come after all else of a moment.
        """
        self._schedule(time, _RESULTS if step else _STREAMS, step, machine, batch)

    def run(self) -> None:
        """Let everything happen. O(log events) for each event, beside what the machines do."""
        while self._events:
            time, _, _, _, index, event = heapq.heappop(self._events)
            machine = self._machines[index]
            for effect in machine.site.handle(event() if callable(event) else event, time):
                if isinstance(effect, Send):
                    self._ship(machine, effect.message, time)
                elif isinstance(effect, WakeAt):
                    self._schedule(effect.time, _WAKES, 0, index, effect.wake)
                elif isinstance(effect, Match):
                    machine.on_match(effect, time)
                else:
                    self.late.append(effect)

    def _ship(self, machine: _Machine, message: Message, time: int) -> None:
        sender, receiver = machine.place, self._machines[machine.peer].place
        received = time
        if sender != receiver:
            line = self._lines.setdefault((sender, receiver), _Line(self.link(sender, receiver)))
            received = line.ship(message.bytes, time)
            self.shipments.append(Shipment(sender, receiver, message, time, received))
        self._schedule(received, _MESSAGES, 0, machine.peer, message)

    def _schedule(self, time: int, kind: int, step: int, machine: int, event: Event | Callable[[], Batch]) -> None:
        heapq.heappush(self._events, (time, kind, step, self._scheduled, machine, event))
        self._scheduled += 1


@dataclass(frozen=True)
class Run:
    """A one-way join between sites "source" and "destination"."""

    found: Sequence[Found]
    shipments: Sequence[Shipment]
    late: Sequence[Late]

    def bytes_shipped(self) -> int:
        """Both ways."""
        return sum(shipment.message.bytes for shipment in self.shipments)


def batches(tuples: Iterable[StreamTuple], interval: int, until: int) -> list[Batch]:
    """A stream cut at the multiples of ``interval``: a batch for each of them up to the first that is at or after ``until``.

    ``tuples`` in order of time; all of them come before the last time point. The tuples of [t - interval, t) are the batch of t.
    """
    last = -(-until // interval) * interval
    of_point = {point: tuple(group) for point, group in groupby(tuples, key=lambda new: (new.time // interval + 1) * interval)}
    missed = [point for point in of_point if point > last]
    if missed:
        raise ValueError(f"until: {until} is before a tuple of the time point {missed[0]}: give that point or a later one")
    return [Batch(point, of_point.get(point, ())) for point in range(interval, last + 1, interval)]


def run_one_way(
    algorithm: Algorithm,
    setting: Setting,
    source: Iterable[StreamTuple],
    destination: Iterable[StreamTuple],
    link: Link,
    until: int,
    machines: tuple[Site, Site] | None = None,
) -> Run:
    """Join two finite streams one way, over two links like ``link``.

    ``until``: microseconds, after all tuples: time points go on until there. ``machines``: others than those of ``algorithm``.
    """
    found: list[Found] = []
    network = Network(lambda sender, receiver: link)
    handles = network.join(
        machines or one_way(algorithm, setting), "source", "destination", lambda match, time: found.append(Found(match, time))
    )
    for handle, stream, start in zip(handles, (source, destination), (setting.timing.start, 0), strict=True):
        for batch in batches(stream, setting.interval, until):
            network.offer(handle, partial(Batch, batch.point, batch.tuples), batch.point + start)
    network.run()
    return Run(found, network.shipments, network.late)
