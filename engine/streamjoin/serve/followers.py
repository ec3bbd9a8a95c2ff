"""Followers of a join's results: each gets the rows of every stored snapshot, from the position that it names.

Rows are read from the storage, one step at a time; the next step begins when the client has taken the last one. So the join waits for no
client, whatever that does, and memory holds one step's rows for each.

Always holds: a follower's events have each row that it asks for once, in order, or it is told why they have not. There are at most as many
followers as allowed; those that do not take what they are sent count, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamjoin.query.continuous import Continuous, Position
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.feed import Feed
from streamjoin.query.messages import Form, Stepped
from streamjoin.query.pool import Pool
from streamjoin.serve.query_metrics import QueryMetrics
from streamjoin.state.storage import ObjectStorage

FEWER = 8
"""The factor by which fewer rows are read at once, if memory was short."""
FINISH_SECONDS = 5.0
"""How long followers may take, at the end, for what is stored by then."""


@dataclass(frozen=True)
class FollowLimits:
    """The limits of followers."""

    most: int = 32
    """The most followers at once."""
    piece_rows: int = 10_000
    """Of an event."""
    piece_bytes: int = 1 << 20
    """Of an event."""
    step_rows: int = 10_000
    """The most rows that are read at once; fewer, if they need too much memory."""
    buffer_bytes: int = 4 << 20
    """Rows that are in memory for a follower."""
    patience_seconds: float = 10.0
    """A follower that does not take an event within this time is cut off."""
    heartbeat_seconds: float = 15.0
    """The longest time without an event; then a heartbeat is sent."""
    look_seconds: float = 0.5
    """The time between two looks for new snapshots."""


@dataclass(frozen=True)
class Rows:
    """Rows of one snapshot, all or some of those that the query asks for."""

    position: Position
    rows: int
    body: bytes


@dataclass(frozen=True)
class Reached:
    """Up to here there is nothing more for the query."""

    position: Position


@dataclass(frozen=True)
class Beat:
    """Nothing has come."""


@dataclass(frozen=True)
class Over:
    """The join has ended, and this was all."""

    position: Position


Event = Rows | Reached | Beat | Over


class Followers:
    """See the module. Any thread may call it."""

    def __init__(self, pool: Pool, metrics: QueryMetrics, limits: FollowLimits | None = None) -> None:
        self.limits, self.metrics = limits or FollowLimits(), metrics
        self._pool = pool
        self._storage = ObjectStorage(pool.catalog.location)
        self._feeds: dict[str, Feed] = {}
        self.adopt()
        self._changed = threading.Condition()
        self._count = 0
        self.ends = self.is_over = False

    def adopt(self) -> None:
        """Take over which joins there are by the pool's catalog. Those who follow one that is gone are told so."""
        before, names = self._feeds, [each.join for each in self._pool.catalog.results]
        self._feeds = {name: before.get(name) or Feed(self._storage, name, look_seconds=self.limits.look_seconds) for name in names}

    def has(self, feed: Feed) -> bool:
        """Whether its join is still there."""
        return feed in self._feeds.values()

    def open(self, query: Continuous, after: Position | None, form: Form, is_gone: Callable[[], bool] = lambda: False) -> Follower:
        """Begin after a position, or with what comes from now on (None). Raises QueryError.

        The follower has a place until it is closed. O(snapshots).
        """
        feed = self._feeds.get(query.join)
        if feed is None:
            there = f"there are {', '.join(self._feeds)}" if self._feeds else "there is none: give joins[].output.snapshots"
            raise QueryError(Why.UNKNOWN, f"{query.join}: there is no such join whose results are kept as snapshots; {there}")
        self._enter()
        try:
            last, ended = feed.ends()
            begin = Position(last) if after is None else after
            if begin.snapshot > ended:  # one that is stored may be let go before a commit says so
                text = f"after: {begin} is not there yet, the last snapshot is {ended}; begin without after, if the state was made anew"
                raise QueryError(Why.WRONG, text)
            feed.look().require(begin, last)
            found = self.step(query, begin, begin.following - 1, form, is_gone, self.limits.step_rows)
        except BaseException:
            self.leave()
            raise
        return Follower(self, feed, query, begin, form, found.schema)

    def finish(self, *, is_over: bool, seconds: float = FINISH_SECONDS) -> None:
        """Let followers have what is stored, then end; wait for that, at most so long. ``is_over``: the join has ended for good."""
        with self._changed:
            self.ends, self.is_over = True, is_over
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._count == 0, seconds)

    def step(self, query: Continuous, after: Position, upto: int, form: Form, is_gone: Callable[[], bool], rows: int) -> Stepped:
        """As :meth:`streamjoin.query.pool.Pool.step`."""
        limits = self.limits
        found = self._pool.step(
            *(query, after, upto, form),
            most_rows=rows,
            piece_rows=limits.piece_rows,
            piece_bytes=limits.piece_bytes,
            most_bytes=limits.buffer_bytes,
            is_gone=is_gone,
        )
        self.metrics.read(found.read_bytes)
        return found

    def wait(self) -> None:
        """Until it is worth while to look again."""
        with self._changed:
            self._changed.wait_for(lambda: self.ends, self.limits.look_seconds)

    def leave(self) -> None:
        with self._changed:
            self._count -= 1
            self.metrics.followers(self._count)
            self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            if self.ends:
                raise QueryError(Why.BUSY, "the server is ending; ask again in a moment")
            if self._count >= self.limits.most:
                raise QueryError(Why.BUSY, f"{self._count} follow already, and no more may; ask again when one has ended")
            self._count += 1
            self.metrics.followers(self._count)


class Follower:
    """One client that follows a join's results. Used by one thread."""

    def __init__(self, owner: Followers, feed: Feed, query: Continuous, begin: Position, form: Form, schema: bytes) -> None:
        """``schema``: of its rows, as Arrow has it."""
        self.position = begin
        """All up to here was in its events."""
        self.schema = schema
        self._owner, self._feed, self._query, self._form = owner, feed, query, form
        self._is_closed = False
        self._step_rows = owner.limits.step_rows

    def events(self, is_gone: Callable[[], bool]) -> Iterator[Event]:
        """The events for the client, from the position that it begins with, as they come. Raises QueryError."""
        owner, limits = self._owner, self._owner.limits
        yield Reached(self.position)
        told_at = time.monotonic()
        while True:
            if not owner.has(self._feed):
                text = f"{self._query.join}: is not in the manifest any more; all results up to {self.position} were sent"
                raise QueryError(Why.UNKNOWN, text)
            ends = owner.ends  # first: what is stored by then is to be had
            listing = self._feed.look(time.monotonic() if ends else None)
            listing.require(self.position, -1)
            upto = listing.upto(self.position)
            if upto is not None:
                for event in self._step(upto, is_gone):
                    yield event
                    told_at = time.monotonic()
            elif ends:
                if owner.is_over:
                    yield Over(self.position)
                return
            elif listing.end is not None and self.position.following >= listing.end:
                yield Over(self.position)
                return
            elif is_gone():
                return
            elif time.monotonic() - told_at >= limits.heartbeat_seconds:
                yield Beat()
                told_at = time.monotonic()
            else:
                owner.wait()

    def _step(self, upto: int, is_gone: Callable[[], bool]) -> Iterator[Event]:
        try:
            found = self._owner.step(self._query, self.position, upto, self._form, is_gone, self._step_rows)
        except QueryError as error:
            if error.why is Why.LARGE and self._step_rows > 1:
                self._step_rows = max(1, self._step_rows // FEWER)
            elif error.why is Why.BUSY:
                self._owner.wait()
            else:
                raise
            return
        if found.schema != self.schema and self._form is Form.ARROW:
            text = f"{self._query.join}: its results have other columns now; ask anew, with after={self.position}"
            raise QueryError(Why.WRONG, text)
        for piece in found.pieces:
            self.position = piece.position
            self._owner.metrics.followed(piece.rows)
            yield Rows(piece.position, piece.rows, piece.body)
        if self.position != found.position:
            self.position = found.position
            yield Reached(found.position)

    @property
    def patience_seconds(self) -> float:
        """So long it may take for an event."""
        return self._owner.limits.patience_seconds

    def cut_off(self) -> str:
        """The client did not take an event in time. Returns the text to send it."""
        self._owner.metrics.cut_off()
        return f"an event was not taken within {self.patience_seconds:g} s, so that this ends here; go on with after={self.position}"

    def failed(self, error: QueryError) -> None:
        """The client's events have ended with this error."""
        self._owner.metrics.failed(error.why)

    def close(self) -> None:
        """Give up its place. A second time nothing happens."""
        if not self._is_closed:
            self._is_closed = True
            self._owner.leave()
