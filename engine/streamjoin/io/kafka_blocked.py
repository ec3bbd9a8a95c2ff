"""Partitions whose records cannot be read, because a transaction is open: how many records, for how long, and what is said of it.

With read_committed a partition is read up to its last stable offset, where its oldest open transaction begins; the records behind it wait,
those of other producers too. Brokers end a transaction after its producer's transaction.timeout.ms, but one that *hangs* (KIP-664).

Always holds: the times are this process's own, and decide nothing: a driver that starts again counts from its first look.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.io.base import Blocked
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_topics import Extent

WARN_SECONDS = 60.0
"""From then on an open transaction is told of: anew whenever it has been open for twice as long."""


class BlockedPartitions:
    """Remembers since when each partition ends where it does."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._since: dict[tuple[str, int], tuple[int, float]] = {}
        """Of each blocked partition: where it can be read up to, and since when."""

    def look(self, extents: Mapping[tuple[str, int], Extent], now: float) -> dict[tuple[str, int], Blocked]:
        """Those that are blocked at ``now``, in seconds since 1970. O(partitions)."""
        since = {}
        for place, extent in extents.items():
            if extent.blocked:
                end, began = self._since.get(place, (extent.high, now))
                since[place] = (extent.high, min(began, now) if end == extent.high else now)
        self._since = since
        return {place: Blocked(extents[place].blocked, now - began) for place, (_, began) in since.items()}

    def warnings(self, found: Mapping[tuple[str, int], Blocked]) -> list[str]:
        """The same text for a while, so that it is not told with each epoch."""
        told = []
        for (topic, partition), blocked in sorted(found.items()):
            if blocked.seconds >= WARN_SECONDS:
                seconds = WARN_SECONDS
                while 2 * seconds <= blocked.seconds:
                    seconds *= 2
                end, _ = self._since[topic, partition]
                told.append(
                    f"{self._client.one(topic)}: a transaction has been open in partition {partition} at offset {end} for {seconds:g} s or"
                    " longer; the records behind it cannot be read, and hold the watermark back, until its producer or the brokers"
                    " (transaction.timeout.ms) end it. If it hangs, kafka-transactions.sh find-hanging shows it, and abort ends it"
                )
        return told
