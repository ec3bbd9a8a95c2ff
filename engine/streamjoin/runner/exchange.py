"""The exchange: pieces of an epoch from every worker that routes to every worker that joins, over Arrow Flight.

An attempt has one *round* or several: first tuples, from the workers that route to the workers that join; then what the workers that join
send each other. One persistent stream of each round leads from a worker to each other worker; a piece's content travels on it as it lies in
memory, in the value of a one-row record batch, behind a small header. Each *sender* of a round ends it with a mark on each of its streams,
and a receiver, which was told who the senders are, has all pieces once it has all marks.

Always holds:

- Attempts are numbered, ascending; what comes for an attempt that is over here is dropped. So an attempt gets the pieces of no other.
- A receiver buffers without bound only the pieces of the attempt that it works on, which its join needs as a whole; of later ones at most
  ``AHEAD_BYTES``, then it stops reading that stream, and gRPC stops the sender. That ends no attempt: a sender goes through a round's
  attempts in order, so that all it has to send for the attempt worked on is on its way before anything of a later one.
- Nobody waits for ever. A stream that breaks fails the attempts that miss its mark at once; one that is silent (senders say something
  every ``BEAT_SECONDS``) after ``SILENT_BEATS`` of these; and an attempt that is abandoned wakes who waits for it.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from streamjoin.endpoint import endpoint
from streamjoin.epoch.spec import Piece
from streamjoin.runner.security import Gate, Security, shut_down

AHEAD_BYTES = 256 << 20
WAKE_BYTES = 1 << 20
"""Who waits for an attempt's pieces is woken once so much has come, or all: to wake a thread takes longer than to look at a small piece."""
BEAT_SECONDS = 2.0
SILENT_BEATS = 8
"""Counted by the receiver's own waits, so that a machine that slept has not heard nothing for hours."""

_SCHEMA = pa.schema([("data", pa.binary())])
_HEADER = struct.Struct("<Bqiibhii")
"""Kind, attempt, task, area, place, number, sender, part."""
_NOTHING = (0,) * 6
TUPLES = 0
"""The first round; in those after it all that join are senders."""
CONVERSATION = 1
"""The round in which the workers of a chain speak with each other."""
_PIECE, _MARK, _BEAT = range(3)


class ExchangeError(RuntimeError):
    """A worker cannot be reached, or went silent: the attempt is over, and the next one may succeed."""


class Abandoned(RuntimeError):  # noqa: N818
    """The driver has given the attempt up."""


class _Attempt:
    """What has come for one attempt. Guarded by the exchange's lock."""

    def __init__(self) -> None:
        self.pieces: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
        """By round and task."""
        self.nbytes = 0
        self.wake_bytes = WAKE_BYTES
        self.ended: defaultdict[int, set[str]] = defaultdict(set)
        """By round, addresses of senders whose mark has come."""
        self.expected: tuple[frozenset[str], ...] | None = None
        """By round, addresses of all senders; None until the driver has told."""
        self.failure: Exception | None = None

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
        self._heard: dict[str, float] = {}
        """The time at which something last came, by sender."""
        self._links: dict[tuple[int, str], _Link] = {}
        """By round and address."""
        self._closed = threading.Event()
        self.gate = Gate(security)
        self.moved = 0
        """Pieces sent and received: whoever watches sees by it that there is progress."""
        self._server = _serve(self, host, ports)
        self.address = endpoint(host, self._server.port)
        self._beats = threading.Thread(target=self._beat, name="beats", daemon=True)
        self._beats.start()

    def begin(self, attempt: int, senders: Sequence[str], joiners: Sequence[str] = (), rounds: int = 0) -> None:
        """Expect marks from ``senders`` in the first round, and from ``joiners`` in so many after it; our own address may be among them."""
        with self._changed:
            self._attempts.setdefault(attempt, _Attempt()).expected = (frozenset(senders), *[frozenset(joiners)] * rounds)
            self._changed.notify_all()

    def send(self, attempt: int, address: str, piece: Piece, round_number: int = TUPLES) -> None:
        """Bring a piece to the worker at this address; waits while that is behind. Raises ExchangeError, Abandoned."""
        self._require(attempt)
        self.moved += 1
        if address == self.address:
            self._take(attempt, round_number, piece)
        else:
            header = _HEADER.pack(_PIECE, attempt, piece.task, piece.area, piece.place, piece.number, piece.sender, piece.part)
            self._say(attempt, round_number, address, header, _binary(piece.data))

    def end(self, attempt: int, addresses: Sequence[str], round_number: int = TUPLES) -> None:
        """Tell these that they have had everything. Raises ExchangeError, Abandoned."""
        for address in addresses:
            self._require(attempt)
            if address == self.address:
                self._mark(attempt, round_number, address)
            else:
                self._say(attempt, round_number, address, _HEADER.pack(_MARK, attempt, *_NOTHING), None)

    def connect(self, addresses: Sequence[str], round_number: int = TUPLES) -> None:
        """Open streams to these, so that they hear of us before our first piece is ready. Raises ExchangeError."""
        for address in addresses:
            if address != self.address:
                self._link(round_number, address)

    def pieces(self, attempt: int, tasks: Sequence[int], round_number: int = TUPLES, *, each: bool = False) -> Iterator[Piece]:
        """These tasks' pieces of a round, until all senders have ended; those of one sender in the order in which it sent them to a task.
        They are given as they come, but ``WAKE_BYTES`` of them together unless ``each`` is waited for.

        Raises ExchangeError, Abandoned, and what ``fail`` was given.
        """
        silent: dict[str, int] = {}
        while True:
            with self._changed:
                found = self._of(attempt)
                found.wake_bytes = 0 if each else WAKE_BYTES
                came = [piece for task in tasks for piece in found.pieces.pop((round_number, task), ())]
                if not came:
                    if not found.missing(round_number) and found.expected is not None:
                        return
                    if not self._changed.wait(self._beat_seconds):
                        self._note_silence(found.missing(round_number), silent)
                    continue
                found.nbytes -= sum(piece.data.size for piece in came)
            yield from came

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
        return sender in self._heard

    def finish(self, attempt: int) -> None:
        """The attempt is over: what is there of it, or still comes, is dropped."""
        with self._changed:
            self._over = max(self._over, attempt)
            for number in [number for number in self._attempts if number <= self._over]:
                del self._attempts[number]
            self._changed.notify_all()

    def keep_links(self, addresses: Sequence[str]) -> None:
        """Close the streams to all others: workers that are gone."""
        with self._changed:
            closed = [self._links.pop(key) for key in list(self._links) if key[1] not in addresses]
        for link in closed:
            link.close()

    def close(self) -> None:
        self._closed.set()
        self.keep_links(())
        shut_down(self._server)

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

    def _note_silence(self, missing: frozenset[str], silent: dict[str, int]) -> None:
        """After a wait in which nothing changed."""
        recent = time.monotonic() - 2 * self._beat_seconds
        for sender in missing:
            heard = sender == self.address or self._heard.get(sender, 0.0) >= recent
            silent[sender] = 0 if heard else silent.get(sender, 0) + 1
            if silent[sender] >= SILENT_BEATS:
                raise ExchangeError(f"nothing came from the worker at {sender} for {SILENT_BEATS * self._beat_seconds:.0f} s")

    def _say(self, attempt: int, round_number: int, address: str, header: bytes, data: pa.RecordBatch | None) -> None:
        """On the stream to the address; on a new one if it has broken since the attempt before, as when another worker is there now."""
        link = self._link(round_number, address)
        is_first, link.attempt = link.attempt != attempt, attempt
        try:
            link.send(header, data)
        except ExchangeError:
            if not is_first:
                raise
            link = self._link(round_number, address)
            link.attempt = attempt
            link.send(header, data)

    def _link(self, round_number: int, address: str) -> _Link:
        with self._changed:
            link = self._links.get((round_number, address))
            if link is None or link.broken:
                link = self._links[round_number, address] = _Link(self._security, address, self.address, round_number)
        return link

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_seconds):
            with self._changed:
                links = list(self._links.values())
            for link in links:
                link.beat()

    def _take(self, attempt: int, round_number: int, piece: Piece) -> None:
        with self._changed:
            while True:
                if attempt <= self._over:
                    return
                found = self._attempts.setdefault(attempt, _Attempt())
                worked_on = min((number for number, one in self._attempts.items() if one.expected is not None), default=-1)
                if attempt == worked_on or found.nbytes + piece.data.size <= AHEAD_BYTES or self._closed.is_set():
                    break
                self._changed.wait()
            found.pieces[round_number, piece.task].append(piece)
            found.nbytes += piece.data.size
            if found.nbytes >= found.wake_bytes:
                self._changed.notify_all()

    def _mark(self, attempt: int, round_number: int, sender: str) -> None:
        with self._changed:
            if attempt > self._over:
                found = self._attempts.setdefault(attempt, _Attempt())
                found.ended[round_number].add(sender)
                if not found.missing(round_number):
                    self._changed.notify_all()

    def receive(self, sender: str, round_number: int, reader: Any) -> None:
        """Take what comes on a stream, until it ends. Called by the server, in a thread of the stream's own."""
        try:
            for chunk in _chunks(reader):
                kind, attempt, task, area, place, number, asking, part = _HEADER.unpack(chunk.app_metadata)
                self._heard[sender] = time.monotonic()
                if kind == _PIECE:
                    self.moved += 1
                    self._take(attempt, round_number, Piece(task, area, place, chunk.data.column(0)[0].as_buffer(), number, asking, part))
                elif kind == _MARK:
                    self._mark(attempt, round_number, sender)
        finally:
            with self._changed:
                self._heard.pop(sender, None)
                for found in self._attempts.values():
                    if sender in found.missing(round_number) and found.failure is None:
                        found.failure = ExchangeError(f"the worker at {sender} broke off before it had sent everything")
                self._changed.notify_all()


class _Link:
    """A persistent stream to another worker."""

    def __init__(self, security: Security, address: str, own: str, round_number: int) -> None:
        self._address = address
        self._lock = threading.Lock()
        self.broken = False
        self.attempt = -1
        """The last one that something was sent for; of the thread that sends."""
        try:
            self._client = security.client(address)
            descriptor = flight.FlightDescriptor.for_command(f"{round_number} {own}".encode())
            self._writer, _ = self._client.do_put(descriptor, _SCHEMA, security.call())
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._error(error) from error

    def send(self, header: bytes, data: pa.RecordBatch | None) -> None:
        with self._lock:
            try:
                if data is None:
                    self._writer.write_metadata(pa.py_buffer(header))
                else:
                    self._writer.write_with_metadata(data, pa.py_buffer(header))
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                self.broken = True
                raise self._error(error) from error

    def beat(self) -> None:
        if self._lock.acquire(blocking=False):  # otherwise something is being sent, which says as much
            try:
                self._writer.write_metadata(pa.py_buffer(_HEADER.pack(_BEAT, 0, *_NOTHING)))
            except (flight.FlightError, pa.ArrowException, OSError):
                self.broken = True
            finally:
                self._lock.release()

    def close(self) -> None:
        self.broken = True
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError), self._lock:
            self._writer.close()
            self._client.close()

    def _error(self, error: Exception) -> ExchangeError:
        reason = (str(error).splitlines() or [type(error).__name__])[0].split(". gRPC client")[0][:200]
        return ExchangeError(f"the worker at {self._address} cannot be reached: {reason}")


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, exchange: Exchange, location: str, options: dict[str, Any]) -> None:
        super().__init__(location, **options)
        self._exchange = exchange

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        round_number, _, sender = descriptor.command.decode().partition(" ")
        self._exchange.receive(sender, int(round_number) if round_number.isdecimal() else TUPLES, reader)


def _serve(exchange: Exchange, host: str, ports: Sequence[int]) -> _Server:
    security = exchange._security
    failure: Exception | None = None
    for port in ports:
        try:
            return _Server(exchange, f"{security.scheme}://{endpoint(host, port)}", security.server(exchange.gate))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            failure = error
    raise OSError(f"{host}: none of the ports {ports[0]} to {ports[-1]} can be served on: {failure}")


def _chunks(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return


def _binary(data: pa.Buffer) -> pa.RecordBatch:
    """A one-value batch around a buffer, without a copy."""
    offsets = pa.py_buffer(b"\0\0\0\0" + data.size.to_bytes(4, "little"))
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], schema=_SCHEMA)
