"""What the twelve state machines share: a site's settings, its clockwork, and the check that messages come in time.

Whoever runs a machine gives it, in order of time: the batch of each multiple of the interval, empty ones too; each message when it has
come; and the moments it asked for. Of one moment: batches of streams first, then messages, then the moments asked for. Messages of one site
to the other come in the order in which they were sent.

Three delays keep results right (the paper's section 2.2):

1. *Delayed probe.* A copy of the other site's window is probed ``probe`` after the time point, when what had to be shipped for it has come.
2. *Delayed removal.* A tuple that no batch after time point t needs is removed later than ``removal`` after t.
3. *Limited match.* A tuple finds what was in the window when the tuple came, whatever is in it by now.

The paper has one delta for the first two. That loses results in SM-S2 and SM-D1: what they ship after the delayed probe reaches the other
site when it has removed what the batch needs. Here the probe waits for one shipment, and the removal for all that follow one another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from streamjoin_research.semijoin.algorithms.messages import Batch, Effect, Event, Late, Match, Message, Wake, WakeAt
from streamjoin_research.semijoin.algorithms.window import Arrivals, Held, StreamTuple, Window
from streamjoin_research.semijoin.names import Algorithm


@dataclass(frozen=True)
class Timing:
    """Microseconds after the time point of a batch."""

    start: int
    """When the source gets its batch: 0, or in a sequence of joins, when the join before has all its results."""
    shipment: int
    """The longest that a shipment takes."""
    probe: int
    """When the source probes a copy."""
    removal: int
    """When the window may lose what no later batch needs: the paper's delta. All results of the batch are there by then."""

    @staticmethod
    def of(algorithm: Algorithm, shipment: int, start: int = 0) -> Timing:
        """The least delays that give right results when no shipment takes longer than ``shipment``."""
        for name, value in (("shipment", shipment), ("start", start)):
            if value < 0:
                raise ValueError(f"{name}: {value} must be 0 or more microseconds")
        probe = max(start, shipment) if algorithm.probes_a_copy else start
        return Timing(start, shipment, probe, probe + algorithm.hops * shipment)


@dataclass(frozen=True)
class Widths:
    """Bytes on the network."""

    source_tuple: int
    destination_tuple: int
    key: int
    count: int = 4
    """Of a number of tuples: Alg. 8's k, and each number of Alg. 9's v_C."""
    time: int = 8
    """Of a tuple's time, which is shipped alone where a window is one of tuples."""

    def __post_init__(self) -> None:
        for name in ("source_tuple", "destination_tuple", "key", "count", "time"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} must be 0 or more bytes")


@dataclass(frozen=True)
class Setting:
    """One one-way join, as both of its sites know it."""

    interval: int
    """Microseconds between time points."""
    window: Window
    """Of the destination's stream."""
    timing: Timing
    widths: Widths

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval: {self.interval} must be at least 1 microsecond")


class Site(ABC):
    """A state machine: events in, effects out."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._arrivals = Arrivals()

    def handle(self, event: Event, time: int) -> list[Effect]:
        """What is to be done about ``event``, which happens at ``time``. The module's docstring says in which order events come."""
        if isinstance(event, Batch):
            return self._batch(event, time)
        if isinstance(event, Wake):
            return self._wake(event.point, time)
        late: list[Effect] = [Late(event, time)] if time > event.due else []
        return late + self._receive(event, time)

    @abstractmethod
    def _batch(self, batch: Batch, time: int) -> list[Effect]: ...

    def _wake(self, point: int, time: int) -> list[Effect]:
        raise AssertionError(f"{type(self).__name__} asks for no moments")

    @abstractmethod
    def _receive(self, message: Message, time: int) -> list[Effect]: ...

    def _unexpected(self, message: Message) -> AssertionError:
        return AssertionError(f"{type(self).__name__} is sent no {type(message).__name__}")

    def _removable_point(self, time: int) -> int:
        """The latest time point after which ``removal`` has passed: all batches up to it have their results."""
        interval = self._setting.interval
        return (time - self._setting.timing.removal - 1) // interval * interval

    def _new_arrivals(self, tuples: tuple[StreamTuple, ...]) -> tuple[int, ...]:
        """The times to ship to a site that holds a part of the window only."""
        return tuple(new.time for new in tuples) if self._setting.window.needs_arrivals else ()

    def _matches(self, probing: StreamTuple, of_key: Iterable[StreamTuple]) -> list[Effect]:
        """The results of a tuple with tuples of the same key (Constraint 3)."""
        admits = self._setting.window.admits
        return [Match(probing, held) for held in of_key if admits(probing, held, self._arrivals)]


class Source(Site):
    """A site whose stream's tuples look for partners, and which keeps each batch until it is joined or reduced."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._waiting: dict[int, tuple[StreamTuple, ...]] = {}

    def _probe_later(self, batch: Batch) -> list[Effect]:
        """Constraint 1."""
        if not batch.tuples:
            return []
        self._waiting[batch.point] = batch.tuples
        return [WakeAt(batch.point + self._setting.timing.probe, Wake(batch.point))]


class Destination(Site):
    """A site whose stream's window is searched, and which holds that window."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.window = Held()

    def _update(self, batch: Batch, time: int) -> list[StreamTuple]:
        """Insert the batch at once, and remove late (Constraint 2); returns what was removed."""
        self._arrivals.add(new.time for new in batch.tuples)
        self.window.insert(batch.tuples)
        point = self._removable_point(time)
        expired = self.window.expire(self._setting.window, point, self._arrivals)
        self._arrivals.forget(point)
        return expired
