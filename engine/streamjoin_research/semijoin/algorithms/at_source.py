"""The semijoin-based joins whose results arise at the source: SM-S1 (Alg. 3) and SM-S2 (Alg. 4), with the non-redundant semijoin (Alg. 7).

Of the window's tuples, those that have partners are shipped, each of them once. They stay at the source as long as in the window.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamjoin_research.semijoin.algorithms.distinct import KeysOfWindow, Mirror
from streamjoin_research.semijoin.algorithms.messages import Batch, Changed, Effect, Key, Keys, MatchingTuples, Message, Removed, Send
from streamjoin_research.semijoin.algorithms.site import Destination, Setting, Source
from streamjoin_research.semijoin.algorithms.window import Held, StreamTuple


class _ShippingDestination(Destination):
    """Remembers which of its tuples were shipped: the bit b of Algs. 7 and 8."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._shipped: set[int] = set()

    def _fetch(self, request: Keys) -> tuple[StreamTuple, ...]:
        """Alg. 7: the tuples of these keys that were never shipped, in order of time."""
        tuples = [held for key in request.keys for held in self.window.of_key(key) if held.number not in self._shipped]
        self._shipped.update(held.number for held in tuples)
        return tuple(sorted(tuples, key=lambda held: (held.time, held.number)))

    def _forget_shipped(self, expired: Iterable[StreamTuple]) -> int:
        """How many of the expired tuples had been shipped."""
        numbers = {gone.number for gone in expired} & self._shipped
        self._shipped -= numbers
        return len(numbers)

    def _answer(self, request: Keys, tuples: tuple[StreamTuple, ...]) -> list[Effect]:
        size = len(tuples) * self._setting.widths.destination_tuple
        due = request.due + self._setting.timing.shipment
        return [Send(MatchingTuples(point=request.point, due=due, bytes=size, tuples=tuples))]


class SourceOfSMS1(Source):
    """Alg. 3, N1: asks for the tuples of a batch's keys, and joins the batch when they have come."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.fetched = Held()
        """W2'@N1: in order of time, not of coming, for what came last may be older, and Alg. 8 removes the oldest."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        self._arrivals.forget(self._removable_point(time))
        if not batch.tuples:
            return []
        self._waiting[batch.point] = batch.tuples
        return [ask(self._setting, batch.point, batch.tuples, due=time + self._setting.timing.shipment)]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if isinstance(message, Removed):
            self._arrivals.add(message.arrivals)
            self.fetched.pop_oldest(message.count)
            return []
        if not isinstance(message, MatchingTuples):
            raise self._unexpected(message)
        self.fetched.insert(message.tuples)
        return [match for probing in self._waiting.pop(message.point) for match in self._matches(probing, self.fetched.of_key(probing.key))]


class DestinationOfSMS1(_ShippingDestination):
    """Alg. 3, N2, and Alg. 8.

    The paper's short cut for windows of tuples (section 3.3), to remove as many tuples at N1 as came at N2, is not taken: of those that
    leave the window, some were never shipped, and then tuples would go that are still in it.
    """

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        count = self._forget_shipped(self._update(batch, time))
        arrivals = self._new_arrivals(batch.tuples)
        if not (count or arrivals):
            return []
        widths, timing = self._setting.widths, self._setting.timing
        size = widths.count + len(arrivals) * widths.time
        return [Send(Removed(point=batch.point, due=batch.point + timing.removal, bytes=size, count=count, arrivals=arrivals))]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, Keys):
            raise self._unexpected(message)
        return self._answer(message, self._fetch(message))


class SourceOfSMS2(Source):
    """Alg. 4, N1: knows the window's keys, and has the tuples of those that were asked for once.

    The paper joins what it kept of a batch (Temp) with the tuples that come for it. Where an interval is shorter than the way there and
    back, the tuples that a batch lacks may have been asked for by the batch before, and come with its answer. So Temp is joined with all
    that is here of its keys when its own answer comes; messages keep their order, so by then all of it is here.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.mixed = Mirror()
        """M2."""
        self._unmatched: dict[int, list[StreamTuple]] = {}
        """Temp: the tuples of a batch whose partners are being fetched, by time point."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        self._arrivals.forget(self._removable_point(time))
        return self._probe_later(batch)

    def _wake(self, point: int, time: int) -> list[Effect]:
        effects: list[Effect] = []
        unmatched: list[StreamTuple] = []
        for probing in self._waiting.pop(point):
            if self.mixed.is_partial(probing.key):
                unmatched.append(probing)
            else:
                effects += self._matches(probing, self.mixed.fetched(probing.key))
        if unmatched:
            self._unmatched[point] = unmatched
            effects.append(ask(self._setting, point, unmatched, due=time + self._setting.timing.shipment))
        return effects

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if isinstance(message, Changed):
            self._arrivals.add(message.arrivals)
            self.mixed.apply(message)
            return []
        if not isinstance(message, MatchingTuples):
            raise self._unexpected(message)
        self.mixed.fill(message.tuples)
        unmatched = self._unmatched.pop(message.point)
        return [match for probing in unmatched for match in self._matches(probing, self.mixed.fetched(probing.key))]


class DestinationOfSMS2(_ShippingDestination):
    """Alg. 4, N2, and the first half of Alg. 9."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.keys = KeysOfWindow()
        """V2."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        expired = self._update(batch, time)
        self._forget_shipped(expired)
        if not (batch.tuples or expired):
            return []
        new_keys, counts, tuples = self.keys.update(batch.tuples, expired)
        self._shipped.update(new.number for new in tuples)
        return [Send(change(self._setting, batch.point, new_keys, counts, tuples, self._new_arrivals(batch.tuples)))]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, Keys):
            raise self._unexpected(message)
        for key in message.keys:
            self.keys.mark_shipped(key)
        return self._answer(message, self._fetch(message))


def ask(setting: Setting, point: int, tuples: Iterable[StreamTuple], due: int) -> Send:
    """Ship the distinct keys of ``tuples``."""
    keys: tuple[Key, ...] = tuple(dict.fromkeys(probing.key for probing in tuples))
    return Send(Keys(point=point, due=due, bytes=len(keys) * setting.widths.key, keys=keys))


def change(
    setting: Setting, point: int, new_keys: list[Key], counts: list[int], tuples: list[StreamTuple], arrivals: tuple[int, ...]
) -> Changed:
    """v_J, v_C and s_F as a message, which is due when the batch of its time point is joined with a copy."""
    widths = setting.widths
    size = len(new_keys) * widths.key + len(counts) * widths.count + len(tuples) * widths.destination_tuple + len(arrivals) * widths.time
    due = point + setting.timing.probe
    return Changed(
        point=point, due=due, bytes=size, new_keys=tuple(new_keys), counts=tuple(counts), tuples=tuple(tuples), arrivals=arrivals
    )
