"""Queries over Arrow Flight: ``DoGet`` for one answer, or for a join's results as they are found, beside HTTP and with its limits.

A ticket is JSON: ``{"sql": ...}``, as ``POST /v1/query`` takes it, or ``{"join": ..., "select": ..., "where": ..., "after": ...}``, as
``GET /v1/queries/{join}`` does. Of what is followed each batch has the position to go on from in its ``app_metadata``; one without rows
says that up to there nothing is (more), or that nothing has come for a while. The stream ends when the join has ended, and with an error
otherwise.

Always holds: followers are those of HTTP, of whom there are so many at most and to whom the same events come; one that does not take what
it is sent is cut off, and its connection with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import flight, ipc

from streamjoin.bearer import Token
from streamjoin.endpoint import endpoint, listened
from streamjoin.query.continuous import Position
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.messages import Form
from streamjoin.serve.admission import Admission, Refused
from streamjoin.serve.followers import Follower, Over, Rows
from streamjoin.serve.messages import BodyError, FollowTicket, QueryWish, read_ticket
from streamjoin.serve.queries import QueryApi

METHOD, CALL = "Flight", "DoGet"
HEADER = "authorization"
CLOSE_SECONDS = 2.0
LOOK_SECONDS = 0.25
"""The time between two looks for followers that take too long."""
_UNAVAILABLE = (Why.BUSY, Why.STORAGE, Why.GONE)
"""Reasons for which a client may ask again."""


class FlightPort:
    """Answers from its construction to ``close``. Raises OSError where the address cannot be had."""

    def __init__(self, api: QueryApi, address: str = "127.0.0.1", port: int = 0, *, token: Token | None = None) -> None:
        """``port`` 0: any that is free."""
        address = listened(address)
        _require_free(address, port)
        self._patience = _Patience()
        gate = _Gate(Admission({CALL: (METHOD,)}, token), address)
        self._server = _Server(api, self._patience, f"grpc://{endpoint(address, port)}", gate)
        self._patience.port = self._server.port
        self.url = f"grpc://{endpoint(address, self._server.port)}"

    def close(self) -> None:
        self._patience.close()
        # Flight waits for calls that go on, and those of followers may last: not for long, here.
        thread = threading.Thread(target=self._server.shutdown, name="shutdown", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)

    def __enter__(self) -> FlightPort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _require_free(address: str, port: int) -> None:
    """Raises OSError where the port is another's: gRPC would share it."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except UnicodeError as error:
        raise OSError(0, "not an address") from error
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(where)
        tried.listen(1)


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets in whom HTTP would."""

    def __init__(self, admission: Admission, address: str) -> None:
        self._admission, self._address = admission, address

    def start_call(self, info: Any, headers: Any) -> None:
        """Called by Flight: raises an error to refuse a call."""
        shown = (headers.get(HEADER) or [None])[0]
        try:
            self._admission.admit(METHOD, CALL, shown, address=self._address, host="")
        except Refused as refused:
            kinds = {401: flight.FlightUnauthenticatedError, 403: flight.FlightUnauthorizedError}
            raise kinds.get(refused.answer.status, flight.FlightUnavailableError)(str(refused)) from None


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, api: QueryApi, patience: _Patience, location: str, gate: _Gate) -> None:
        super().__init__(location, middleware={"gate": gate})
        self._api, self._patience = api, patience

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Called by Flight for a ticket. Raises FlightError."""
        try:
            asked = read_ticket(ticket.ticket)
            if isinstance(asked, FollowTicket):
                return self._followed(asked, context)
            return self._answered(asked, context)
        except BodyError as error:
            self._api.metrics.failed(Why.WRONG)
            raise _refusal(QueryError(Why.WRONG, str(error))) from None
        except QueryError as error:
            raise _refusal(error) from None

    def _answered(self, wish: QueryWish, context: Any) -> flight.FlightDataStream:
        told = self._api.ask(wish, Form.ARROW, context.is_cancelled)
        facts = {
            "streamjoin.epoch": str(told.epoch),
            "streamjoin.committed-at": told.committed,
            "streamjoin.truncated": "true" if told.is_cut else "false",
        }
        reader = ipc.open_stream(pa.py_buffer(told.body))
        schema = reader.schema.with_metadata(facts)
        return flight.GeneratorStream(schema, (batch.replace_schema_metadata(facts) for batch in reader))

    def _followed(self, asked: FollowTicket, context: Any) -> flight.FlightDataStream:
        follower = self._api.follow(asked.query(asked.join), asked.after, Form.ARROW, context.is_cancelled)
        try:
            schema = ipc.read_schema(pa.py_buffer(follower.schema))
            return flight.GeneratorStream(schema, self._sent(follower, schema, context))
        except BaseException:
            follower.close()
            raise

    def _sent(self, follower: Follower, schema: pa.Schema, context: Any) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Batches, each with the position behind it. Raises FlightError but where the join has ended. Closes the follower."""
        peer, is_over = context.peer(), False
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        try:
            for event in follower.events(context.is_cancelled):
                batch = ipc.open_stream(pa.py_buffer(event.body)).read_next_batch() if isinstance(event, Rows) else nothing
                is_over = isinstance(event, Over)
                with self._patience.sending(follower, peer):
                    yield batch, str(follower.position).encode()
            if not is_over and not context.is_cancelled():
                text = f"the server is ending; go on with after={follower.position}"
                raise _refusal(QueryError(Why.BUSY, text), follower.position)
        except QueryError as error:
            if error.why is not Why.GONE:
                follower.failed(error)
            raise _refusal(error, follower.position) from None
        finally:
            follower.close()


def _refusal(error: QueryError, position: Position | None = None) -> flight.FlightError:
    """As Flight has it; what a machine reads is in ``extra_info``: Flight's own text has more than ours."""
    facts = {"reason": error.why.value, "error": str(error)} | ({} if position is None else {"after": str(position)})
    if error.why is Why.SLOW:
        kind = flight.FlightTimedOutError
    else:
        kind = flight.FlightUnavailableError if error.why in _UNAVAILABLE else flight.FlightServerError
    return kind(str(error), json.dumps(facts).encode())


@dataclass(frozen=True)
class _Sending:
    follower: Follower
    peer: str
    since: float


class _Patience:
    """Cuts off followers that do not take what they are sent.

    gRPC has no way to give up one call that waits for its client, so the connection is closed, with all calls on it.
    """

    def __init__(self) -> None:
        self.port = 0
        self._lock = threading.Lock()
        self._sending: dict[int, _Sending] = {}
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def sending(self, follower: Follower, peer: str) -> Iterator[None]:
        """While a client is to take an event."""
        key = id(follower)
        with self._lock:
            self._sending[key] = _Sending(follower, peer, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="flight patience", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._sending.pop(key, None)

    def close(self) -> None:
        """Cut all off that are being sent something."""
        self._is_closed.set()
        self._cut_off(lambda each: True)

    def _watch(self) -> None:
        while not self._is_closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            for each in self._cut_off(lambda each, now=now: now - each.since > each.follower.patience_seconds):  # type: ignore[misc]
                each.follower.cut_off()

    def _cut_off(self, is_due: Callable[[_Sending], bool]) -> list[_Sending]:
        with self._lock:
            due = {key: each for key, each in self._sending.items() if is_due(each)}
            for key in due:
                del self._sending[key]
        for each in due.values():
            _close_connection(self.port, each.peer)
        return list(due.values())


def _close_connection(port: int, peer: str) -> None:
    """Shut the connection between our port and a peer (``ipv4:127.0.0.1:40404``), as gRPC names it, down. O(open files)."""
    host, _, peer_port = unquote(peer).partition(":")[2].rpartition(":")
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError), _another(number) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                continue
            other = connection.getpeername()
            if other[1] == int(peer_port) and other[0].removeprefix("::ffff:") == host.strip("[]").removeprefix("::ffff:"):
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _another(number: int) -> Iterator[socket.socket]:
    """A second hold on an open file that is a socket. Raises OSError where it is none."""
    copy = os.dup(number)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        yield connection
