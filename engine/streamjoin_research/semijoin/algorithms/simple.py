"""The simple joins, which ship full tuples only: SP-S (Alg. 1) and SP-D (Alg. 2), section 3.1.1."""

from __future__ import annotations

from streamjoin_research.semijoin.algorithms.messages import Batch, Effect, FullTuples, Message, Send
from streamjoin_research.semijoin.algorithms.site import Destination, Setting, Site, Source
from streamjoin_research.semijoin.algorithms.window import Held


class SourceOfSPS(Source):
    """Alg. 1, N1: holds the other stream's window and probes it with each batch, late enough for the window to be complete."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.copy = Held()
        """W2@N1."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        point = self._removable_point(time)
        self.copy.expire(self._setting.window, point, self._arrivals)
        self._arrivals.forget(point)
        return self._probe_later(batch)

    def _wake(self, point: int, time: int) -> list[Effect]:
        return [match for probing in self._waiting.pop(point) for match in self._matches(probing, self.copy.of_key(probing.key))]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, FullTuples):
            raise self._unexpected(message)
        self._arrivals.add(new.time for new in message.tuples)
        self.copy.insert(message.tuples)
        return []


class DestinationOfSPS(Site):
    """Alg. 1, N2: ships each batch; holds nothing."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        if not batch.tuples:
            return []
        size = len(batch.tuples) * self._setting.widths.destination_tuple
        due = batch.point + self._setting.timing.probe
        return [Send(FullTuples(point=batch.point, due=due, bytes=size, tuples=batch.tuples))]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        raise self._unexpected(message)


class SourceOfSPD(Site):
    """Alg. 2, N1: ships each batch; holds nothing."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        if not batch.tuples:
            return []
        size = len(batch.tuples) * self._setting.widths.source_tuple
        due = time + self._setting.timing.shipment
        return [Send(FullTuples(point=batch.point, due=due, bytes=size, tuples=batch.tuples))]

    def _receive(self, message: Message, time: int) -> list[Effect]:
        raise self._unexpected(message)


class JoiningDestination(Destination):
    """N2 of Alg. 2, and of Alg. 5 where batches come reduced: joins what is shipped with its window."""

    def _batch(self, batch: Batch, time: int) -> list[Effect]:
        self._update(batch, time)
        return []

    def _receive(self, message: Message, time: int) -> list[Effect]:
        if not isinstance(message, FullTuples):
            raise self._unexpected(message)
        return [match for probing in message.tuples for match in self._matches(probing, self.window.of_key(probing.key))]
