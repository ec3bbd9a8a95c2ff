"""The exchange: pieces of an epoch from every worker that routes to every worker that joins.

An attempt has one *round* or several: first tuples, from the workers that route to the workers that join; then what the workers that join
send each other. Two persistent streams (``runner.streams``) lead from a worker to each other worker, one for each of these two *channels*,
as a later attempt's tuples may hold up the first. A piece's content travels as it lies in memory, behind a small header. Each *sender* of a
round ends it with a mark to each receiver, and a receiver, which was told who the senders are, has all pieces once it has all marks.

Always holds:

- Attempts are numbered, ascending; what comes for an attempt that is over here is dropped. So an attempt gets the pieces of no other.
- A receiver buffers without bound only the tuples of the attempt that it works on, which its join needs as a whole; of what tasks send each
  other ``SETTLE_BYTES`` in memory, and the rest in scratch files. So no two tasks wait for each other's room. Of later attempts it buffers
  at most ``AHEAD_BYTES`` and what one more frame or read brings, then it stops reading that stream, and TCP stops the sender. That ends no
  attempt: a sender goes through a channel's attempts in order, so that all it has to send for the attempt worked on has come before
  anything of a later one.
- Nobody waits for ever. A stream that breaks fails the attempts that miss its mark at once; one that is silent (senders say something
  every ``BEAT_SECONDS``) after ``SILENT_BEATS`` of these; and an attempt that is abandoned wakes who waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from streamjoin.epoch.spec import Piece
from streamjoin.runner.security import Gate, Security
from streamjoin.runner.streams import HEADER, MARK, NOTHING, PIECE, ExchangeError, Header, Link, Stream, StreamServer
from streamjoin.state.blocks import map_buffer

AHEAD_BYTES = 256 << 20
SETTLE_BYTES = 64 << 20
"""Where more has come of what tasks send each other, the rest waits on mapped pages of scratch files."""
TAKEN_AT_ONCE = 64
"""Pieces."""
WAKE_BYTES = 1 << 20
"""Who waits for an attempt's pieces is woken once so much has come, or all: to wake a thread takes longer than to look at a small piece."""
BEAT_SECONDS = 2.0
SILENT_BEATS = 8
"""Counted by the receiver's own waits, so that a machine that slept has not heard nothing for hours."""

TUPLES = 0
"""The first round; in those after it all that join are senders."""
CONVERSATION = 1
"""The round in which the workers of a chain speak with each other."""


class Abandoned(RuntimeError):  # noqa: N818
    """The driver has given the attempt up."""


class _Attempt:
    """What has come for one attempt. Guarded by the exchange's lock."""

    def __init__(self) -> None:
        self._pieces: defaultdict[tuple[int, int], deque[tuple[Piece, int]]] = defaultdict(deque)
        """By round and task, each with its bytes in memory."""
        self.nbytes = 0
        """Of those that are in memory."""
        self.wake_bytes = WAKE_BYTES
        self.ended: defaultdict[int, set[str]] = defaultdict(set)
        """By round, addresses of senders whose mark has come."""
        self.expected: tuple[frozenset[str], ...] | None = None
        """By round, addresses of all senders; None until the driver has told."""
        self.failure: Exception | None = None

    def add(self, piece: Piece) -> None:
        nbytes = piece.data.size
        if piece.round and self.nbytes > SETTLE_BYTES and nbytes >= WAKE_BYTES // 4:
            with contextlib.suppress(OSError):  # where the disk is full, it must be in memory
                piece, nbytes = replace(piece, data=map_buffer(piece.data)), 0
        self.nbytes += nbytes
        self._pieces[piece.round, piece.task].append((piece, nbytes))

    def waiting(self, tasks: Collection[int]) -> list[tuple[int, int]]:
        """Rounds and tasks, of these, that have pieces; the last round first."""
        return sorted((key for key, pieces in self._pieces.items() if pieces and key[1] in tasks), reverse=True)

    def taken(self, keys: Iterable[tuple[int, int]], most: int = TAKEN_AT_ONCE) -> list[Piece]:
        """The first pieces of these rounds and tasks, at most so many."""
        found: list[Piece] = []
        for key in keys:
            pieces = self._pieces[key]
            while pieces and len(found) < most:
                piece, nbytes = pieces.popleft()
                self.nbytes -= nbytes
                found.append(piece)
        return found

    def missing(self, round_number: int) -> frozenset[str]:
        """The senders of a round, as far as they are known, that have not ended it."""
        if self.expected is None or round_number >= len(self.expected):
            return frozenset()
        return self.expected[round_number] - self.ended[round_number]


class Exchange:
    """One worker's end: a server that others send to, and its streams to them. Safe for use by several threads."""

    def __init__(self, host: str, security: Security, *, ports: Sequence[int] = (0,), beat_seconds: float = BEAT_SECONDS) -> None:
        """Serves on the first free one of ``ports`` (0: any). Raises OSError when none is."""
        self._security = security
        self._beat_seconds = beat_seconds
        self._changed = threading.Condition()
        self._attempts: dict[int, _Attempt] = {}
        self._over = -1
        """The newest attempt that is over here."""
        self._streams: set[Stream] = set()
        """Those that lead here."""
        self._paused: list[tuple[int, Stream]] = []
        """Those that are not read for now, each with the attempt that it is ahead with."""
        self._links: dict[tuple[int, str], Link] = {}
        """By channel and address."""
        self._closed = threading.Event()
        self.gate = Gate()
        self.moved = 0
        """Pieces sent and received: whoever watches sees by it that there is progress."""
        self._server = StreamServer(security, self.gate, self, host, ports)
        self.address = self._server.address
        self._beats = threading.Thread(target=self._beat, name="beats", daemon=True)
        self._beats.start()

    def begin(self, attempt: int, senders: Sequence[str], joiners: Sequence[str] = (), rounds: int = 0) -> None:
        """Expect marks from ``senders`` in the first round, and from ``joiners`` in so many after it; our own address may be among them."""
        with self._changed:
            self._attempts.setdefault(attempt, _Attempt()).expected = (frozenset(senders), *[frozenset(joiners)] * rounds)
            self._go_on()

    def send(self, attempt: int, address: str, piece: Piece) -> None:
        """Bring a piece to the worker at this address, at the latest with the next :meth:`flush` or :meth:`end`.

        Waits while that is behind. Raises ExchangeError, Abandoned.
        """
        self._require(attempt)
        self.moved += 1
        if address == self.address:
            self._take_own(attempt, piece)
        else:
            fields = attempt, piece.task, piece.area, piece.place, piece.number, piece.sender, piece.part
            self._say(attempt, address, HEADER.pack(piece.data.size, PIECE, piece.round, *fields), piece.round, piece.data)

    def flush(self, attempt: int, addresses: Iterable[str], round_number: int = TUPLES) -> None:
        """Have all that was sent to these leave. Raises ExchangeError, Abandoned."""
        for address in addresses:
            with self._changed:
                link = self._links.get((_channel(round_number), address))
            if link is not None:
                link.flush(lambda: self._require(attempt))

    def end(self, attempt: int, addresses: Sequence[str], round_number: int = TUPLES) -> None:
        """Tell these that they have had everything. Raises ExchangeError, Abandoned."""
        for address in addresses:
            self._require(attempt)
            if address == self.address:
                self._mark(attempt, round_number, address)
            else:
                self._say(attempt, address, HEADER.pack(0, MARK, round_number, attempt, *NOTHING[2:]), round_number)
        self.flush(attempt, addresses, round_number)

    def connect(self, attempt: int, addresses: Sequence[str], round_number: int = TUPLES) -> None:
        """Open streams to these, so that they hear of us before our first piece is ready. Raises ExchangeError."""
        for address in addresses:
            if address != self.address:
                self._link(_channel(round_number), address, attempt)

    def pieces(
        self, attempt: int, tasks: Sequence[int], round_number: int = TUPLES, *, later: bool = False, each: bool = False
    ) -> Iterator[Piece]:
        """These tasks' pieces of a round, until all senders have ended; those of one sender in the order in which it sent them to a task.
        They are given as they come, but ``WAKE_BYTES`` of them together unless ``each`` is waited for. ``later``: pieces that have come of
        later rounds are given, too, and first.

        Raises ExchangeError, Abandoned, and what ``fail`` was given.
        """
        silent: dict[str, int] = {}
        while True:
            with self._changed:
                found = self._of(attempt)
                found.wake_bytes = 0 if each else WAKE_BYTES
                came = found.taken([key for key in found.waiting(tasks) if key[0] == round_number or (later and key[0] > round_number)])
                if not came:
                    if not found.missing(round_number) and found.expected is not None:
                        return
                    if not self._changed.wait(self._beat_seconds):
                        self._note_silence(found.missing(round_number), _channel(round_number), silent)
                    continue
                if self._paused:
                    self._go_on()
            yield from came

    def arrived(self, attempt: int, tasks: Collection[int], *, above: int) -> Piece | None:
        """A piece of these tasks that has come, of the last round of those after ``above``; None: there is none. Raises as ``pieces``."""
        with self._changed:
            found = self._of(attempt)
            return next(iter(found.taken([key for key in found.waiting(tasks) if key[0] > above][:1], most=1)), None)

    def fail(self, attempt: int, failure: Exception) -> None:
        """Have those who wait for the attempt's pieces get this."""
        with self._changed:
            if attempt > self._over:
                found = self._attempts.setdefault(attempt, _Attempt())
                found.failure = found.failure or failure
                self._changed.notify_all()

    def fail_all(self, failure: Exception) -> None:
        """As :meth:`fail`, for every attempt that has begun."""
        with self._changed:
            begun = list(self._attempts)
        for attempt in begun:
            self.fail(attempt, failure)

    def buffered(self, attempt: int) -> int:
        """Bytes of pieces that have come for the attempt and nobody has taken yet."""
        with self._changed:
            found = self._attempts.get(attempt)
            return 0 if found is None else found.nbytes

    def hears(self, sender: str) -> bool:
        """Whether a stream of this sender is open."""
        with self._changed:
            return any(stream.sender == sender for stream in self._streams)

    def finish(self, attempt: int) -> None:
        """The attempt is over: what is there of it, or still comes, is dropped."""
        with self._changed:
            self._over = max(self._over, attempt)
            for number in [number for number in self._attempts if number <= self._over]:
                del self._attempts[number]
            self._go_on()

    def keep_links(self, addresses: Sequence[str]) -> None:
        """Close the streams to all others: workers that are gone."""
        with self._changed:
            closed = [self._links.pop(key) for key in list(self._links) if key[1] not in addresses]
        for link in closed:
            link.close()

    def close(self) -> None:
        self._closed.set()
        self.keep_links(())
        with self._changed:
            self._changed.notify_all()
        self._server.close()

    def _require(self, attempt: int) -> None:
        with self._changed:
            self._of(attempt)

    def _of(self, attempt: int) -> _Attempt:
        found = self._attempts.get(attempt)
        if found is None:
            raise Abandoned(f"attempt {attempt} is over")
        if found.failure is not None:
            raise found.failure
        return found

    def _go_on(self) -> None:
        """What attempts there are has changed: have those look who wait, and read streams again that need not wait any more."""
        going = [stream for attempt, stream in self._paused if not self._is_ahead(attempt)]
        self._paused = [(attempt, stream) for attempt, stream in self._paused if stream not in going]
        for stream in going:
            stream.resume()
        self._changed.notify_all()

    def _is_ahead(self, attempt: int, nbytes: int = 0) -> bool:
        """Whether, with so many bytes more, there is too much of an attempt that is not the one worked on."""
        found = self._attempts.get(attempt)
        if found is None or found.nbytes + nbytes <= AHEAD_BYTES or attempt <= self._over or self._closed.is_set():
            return False
        worked_on = min((number for number, one in self._attempts.items() if one.expected is not None), default=-1)
        return attempt != worked_on

    def _note_silence(self, missing: frozenset[str], channel: int, silent: dict[str, int]) -> None:
        """After a wait in which nothing changed."""
        recent = time.monotonic() - 2 * self._beat_seconds
        heard = {stream.sender for stream in self._streams if stream.channel == channel and stream.heard_at >= recent}
        for sender in missing:
            silent[sender] = 0 if sender == self.address or sender in heard else silent.get(sender, 0) + 1
            if silent[sender] >= SILENT_BEATS:
                raise ExchangeError(f"nothing came from the worker at {sender} for {SILENT_BEATS * self._beat_seconds:.0f} s")

    def _say(self, attempt: int, address: str, header: bytes, round_number: int, data: pa.Buffer | None = None) -> None:
        self._link(_channel(round_number), address, attempt).send(header, data, lambda: self._require(attempt))

    def _link(self, channel: int, address: str, attempt: int) -> Link:
        """The stream to an address; a new one if it has broken since the attempt before, as when another worker is there now.

        Each channel's are opened and sent on by one thread.
        """
        with self._changed:
            former = self._links.get((channel, address))
        if former is not None and (former.attempt == attempt or not former.is_over):
            former.attempt = attempt
            return former
        try:
            link = Link(self._security, address, channel, self.address, attempt)
        finally:
            if former is not None:  # only now: as the next one is known there, its end fails no attempt of that
                former.close()
        with self._changed:
            self._links[channel, address] = link
        return link

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_seconds):
            with self._changed:
                links = list(self._links.values())
            for link in links:
                link.beat()

    def _take_own(self, attempt: int, piece: Piece) -> None:
        with self._changed:
            while self._is_ahead(attempt, piece.data.size):
                self._changed.wait()
            self._take(attempt, piece)

    def _take(self, attempt: int, piece: Piece) -> None:
        if attempt > self._over:
            found = self._attempts.setdefault(attempt, _Attempt())
            found.add(piece)
            if found.nbytes >= found.wake_bytes:
                self._changed.notify_all()

    def _mark(self, attempt: int, round_number: int, sender: str) -> None:
        with self._changed:
            if attempt > self._over:
                found = self._attempts.setdefault(attempt, _Attempt())
                found.ended[round_number].add(sender)
                if not found.missing(round_number):
                    self._changed.notify_all()

    def opened(self, stream: Stream) -> None:
        """Called by the thread that reads streams, as are the next two."""
        with self._changed:
            self._streams.add(stream)

    def came(self, stream: Stream, header: Header, data: pa.Buffer) -> None:
        _, kind, round_number, attempt, task, area, place, number, sender, part = header
        if kind == MARK:
            self._mark(attempt, round_number, stream.sender)
            return
        if kind != PIECE:
            raise ValueError(f"a frame of the kind {kind}")
        self.moved += 1
        piece = Piece(task, area, place, data, number, sender, part, round_number)
        with self._changed:
            self._take(attempt, piece)
            if self._is_ahead(attempt):
                stream.pause()
                self._paused.append((attempt, stream))

    def ended(self, stream: Stream) -> None:
        with self._changed:
            self._streams.discard(stream)
            self._paused = [(attempt, paused) for attempt, paused in self._paused if paused is not stream]
            newer = [one.since for one in self._streams if (one.channel, one.sender) == (stream.channel, stream.sender)]
            for attempt, found in self._attempts.items():
                rounds = [number for number in range(len(found.expected or ())) if _channel(number) == stream.channel]
                is_missed = any(stream.sender in found.missing(number) for number in rounds)
                if is_missed and found.failure is None and attempt < min(newer, default=attempt + 1):
                    found.failure = ExchangeError(f"the worker at {stream.sender} broke off before it had sent everything")
            self._changed.notify_all()


def _channel(round_number: int) -> int:
    return min(round_number, CONVERSATION)
