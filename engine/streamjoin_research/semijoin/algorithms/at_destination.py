"""The semijoin-based joins whose results arise at the destination: SM-D1 (Alg. 5) and SM-D2 (Alg. 6).

Of a batch, only tuples whose key is in the window are shipped. SM-D1 knows the window's keys at the source; SM-D2 asks, for each batch.
"""

from __future__ import annotations

from streamjoin_research.semijoin.algorithms.at_source import ask, change
from streamjoin_research.semijoin.algorithms.distinct import KeysOfWindow, Mirror
from streamjoin_research.semijoin.algorithms.messages import Batch, Changed, Effect, FullTuples, Key, Keys, MatchingKeys, Message, Send
from streamjoin_research.semijoin.algorithms.simple import JoiningDestination
from streamjoin_research.semijoin.algorithms.site import Destination, Setting, Source
from streamjoin_research.semijoin.algorithms.window import StreamTuple


class SourceOfSMD1(Source):
    """Alg. 5, N1: ships the tuples of a batch whose key the window has."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.keys = Mirror()
        """V2@N1."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        return self._probe_later(batch)

    def _wake(self, point: int, time: int) -> list[Effect]:
        reduced = tuple(probing for probing in self._waiting.pop(point) if probing.key in self.keys)
        return _ship(self._setting, point, reduced, due=time + self._setting.timing.shipment)

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, Changed):
            raise self._unexpected(message)
        self.keys.apply(message)
        return []


class DestinationOfSMD1(JoiningDestination):
    """Alg. 5, N2."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.keys = KeysOfWindow()
        """V2."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        expired = self._update(batch, time)
        if not (batch.tuples or expired):
            return []
        new_keys, counts, _ = self.keys.update(batch.tuples, expired)
        return [Send(change(self._setting, batch.point, new_keys, counts, [], ()))]


class SourceOfSMD2(Source):
    """Alg. 6, N1: asks which of a batch's keys the window has, and ships the tuples of those."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        if not batch.tuples:
            return []
        self._waiting[batch.point] = batch.tuples
        return [ask(self._setting, batch.point, batch.tuples, due=time + self._setting.timing.shipment)]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, MatchingKeys):
            raise self._unexpected(message)
        keys = set(message.keys)
        reduced = tuple(probing for probing in self._waiting.pop(message.point) if probing.key in keys)
        return _ship(self._setting, message.point, reduced, due=message.due + self._setting.timing.shipment)


class DestinationOfSMD2(Destination):
    """Alg. 6, N2: keeps what it found for a batch's keys until the batch comes."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._found: dict[int, dict[Key, list[StreamTuple]]] = {}
        """Temp, by time point."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        self._update(batch, time)
        return []

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if isinstance(message, Keys):
            found = {key: list(tuples) for key in message.keys if (tuples := self.window.of_key(key))}
            if found:
                self._found[message.point] = found
            size = len(found) * self._setting.widths.key
            due = message.due + self._setting.timing.shipment
            return [Send(MatchingKeys(point=message.point, due=due, bytes=size, keys=tuple(found)))]
        if not isinstance(message, FullTuples):
            raise self._unexpected(message)
        found = self._found.pop(message.point)
        return [match for probing in message.tuples for match in self._matches(probing, found[probing.key])]


def _ship(setting: Setting, point: int, reduced: tuple[StreamTuple, ...], due: int) -> list[Effect]:
    if not reduced:
        return []
    size = len(reduced) * setting.widths.source_tuple
    return [Send(FullTuples(point=point, due=due, bytes=size, tuples=reduced))]
