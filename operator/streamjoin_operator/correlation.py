"""What is told of one StreamJoin, bounded as client-go's event correlator does it.

The same event again is counted and not posted anew; of a kind and reason that comes with ever other messages the later ones are combined in
one; and all events about an object share a bucket: a burst, and then one in five minutes. What is dropped is counted in the next that is
posted.

Always holds: pure, and of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamjoin_operator.texts import cut

SIMILAR, SIMILAR_SECONDS = 10, 600.0
"""So many messages of one kind and reason are told one by one, until there was none for so long."""
COMBINED = "(combined from similar events): "
KEPT_SECONDS = 3600.0
"""The API server keeps an event for so long after it was last written, unless it is told otherwise."""

Key = tuple[str, ...]


@dataclass
class Bucket:
    """So many at once, and then one every so many seconds."""

    most: int
    seconds: float
    left: float = 0.0
    at: float = float("-inf")

    def take(self, now: float) -> bool:
        """Whether there is one, which is taken. ``now``: monotonic."""
        self.left, self.at = self._filled(now), now
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def wait(self, now: float) -> float:
        """After how many seconds there is one."""
        return max(0.0, 1 - self._filled(now)) * self.seconds

    def _filled(self, now: float) -> float:
        return min(float(self.most), self.left + (now - self.at) / self.seconds)


@dataclass
class Told:
    """One event as it was told last."""

    message: str
    first_at: float
    last_at: float
    count: int = 0
    name: str | None = None
    """Of the object; None: it was not posted."""


@dataclass
class Correlator:
    """Of one StreamJoin. Lost with the operator, as client-go's."""

    bucket: Bucket = field(default_factory=lambda: Bucket(25, 300.0))
    _told: dict[Key, Told] = field(default_factory=dict)
    _similar: dict[Key, tuple[float, set[str]]] = field(default_factory=dict)

    def event(self, uid: str, kind: str, reason: str, message: str, now: float, at: float) -> Told | None:
        """What is to be posted; None: nothing. ``now``: monotonic seconds; ``at``: seconds since 1970."""
        self._told = {key: told for key, told in self._told.items() if at - told.last_at <= KEPT_SECONDS}
        self._similar = {key: seen for key, seen in self._similar.items() if now - seen[0] <= SIMILAR_SECONDS}
        similar: Key = (uid, kind, reason)
        messages = self._similar.get(similar, (now, set()))[1]
        self._similar[similar] = (now, messages)
        if message in messages or len(messages) < SIMILAR:
            messages.add(message)
            key, message = (*similar, message), cut(message)
        else:
            key, message = similar, cut(COMBINED + message)
        told = self._told.setdefault(key, Told(message, at, at))
        told.message, told.last_at, told.count = message, at, told.count + 1
        return told if self.bucket.take(now) else None
