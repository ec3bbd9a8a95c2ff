"""The control channel: messages between the driver and its workers, over one TCP connection to each, with TLS if there are certificates.

One thread serves all connections of an end (asyncio). So a driver of many workers does not wake a thread for each message, which is
what most of a message costs otherwise. Each end first proves that it has the application's secret (``runner.proof``). Then messages go both
ways, each after its length, with the codes of both (``runner.seal``).

Always holds: no byte of a stranger is taken for part of a message, nor is any that something between the ends has changed; who does not
prove itself within ``PROOF_SECONDS`` is cut off; and :meth:`Connection.say` never waits for the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from streamjoin.endpoint import parts_of
from streamjoin.runner import proof
from streamjoin.runner.seal import CODE_BYTES, codes_size
from streamjoin.runner.security import Gate, Security
from streamjoin.runner.serving import PROOF_SECONDS, Serving, listening

CLOSE_SECONDS = 2.0
"""What has been said when the driver closes has so long to be sent."""
PURPOSE = b"streamjoin/1\n"
_LENGTH = struct.Struct("<Q")


Heard = Callable[[bytes], None]
"""Takes each message of a connection, in the thread that serves it. What it raises ends the connection."""


class _Hub:
    """An end's connections. Takes what any thread says to theirs, which it wakes once for all that is said until that looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.open: set[Connection] = set()
        self._said: deque[tuple[Connection, bytes | None]] = deque()
        self._is_called = False

    def put(self, connection: Connection, message: bytes | None) -> None:
        self._said.append((connection, message))
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all connections with it
                self._loop.call_soon_threadsafe(self.empty)

    def empty(self) -> None:
        self._is_called = False  # first: what is put while this goes on calls again
        while self._said:
            connection, message = self._said.popleft()
            connection.write(message)


class Connection(asyncio.Protocol):
    """One end of a connection between the driver and a worker."""

    def __init__(self, hub: _Hub, security: Security, listen: Callable[[Connection], Heard], gate: Gate | None) -> None:
        """``listen`` is called once the other end has proved itself. ``gate``: the driver's, which counts strangers; None: this is the
        worker's end."""
        self._hub, self._listen, self._gate = hub, listen, gate
        self._transport: Any = None
        self._heard: Heard | None = None
        """Once the other end has proved itself."""
        self._proof = (proof.caller if gate is None else proof.called)(security.secret, PURPOSE)
        self._came = bytearray()
        """What has come and nobody has taken."""
        self._coming: int | None = None
        """The length of the message that comes, once that has come and its code was right."""
        self._deadline: asyncio.TimerHandle
        """For the proofs."""
        self._has_spoken = False
        """Whether anything has come."""
        self.failure: Exception | None = None
        """What kept a message from being taken."""
        loop = asyncio.get_running_loop()
        self.proved: asyncio.Future[bool] = loop.create_future()
        """Whether both ends have proved themselves; False: the connection is over without that."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Done once the connection is over."""

    def say(self, message: bytes) -> None:
        """Send a message; one after the other, and none once the connection is over. From any thread; returns at once."""
        self._hub.put(self, message)

    def close(self) -> None:
        """End the connection once all that was said is sent. From any thread; returns at once."""
        self._hub.put(self, None)

    def abort(self) -> None:
        """End the connection now. From its own thread."""
        self._transport.abort()

    def write(self, message: bytes | None) -> None:
        """As ``say``, or ``close`` for None. From its own thread."""
        if message is None:
            self._transport.close()
        elif not self._transport.is_closing():
            length = _LENGTH.pack(len(message))
            seal = self._proof.ours
            self._transport.write(b"".join((length, seal.codes(length), seal.codes(message), message)))

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio, as are the next two."""
        self._transport = transport
        self._hub.open.add(self)
        self._deadline = asyncio.get_running_loop().call_later(PROOF_SECONDS, self.abort)
        self._go_on_proving()

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._has_spoken = True
        try:
            while self._heard is None and not self._transport.is_closing() and len(self._came) >= self._proof.wanted:
                self._go_on_proving(self._take(self._proof.wanted))
            while self._heard is not None and not self._transport.is_closing() and (message := self._next_message()) is not None:
                self._heard(message)
        except Exception as error:
            self.failure = error
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._hub.open.discard(self)
        self._deadline.cancel()
        self.over.set_result(None)
        if self._heard is None:
            self.proved.set_result(False)
            if self._gate is not None and self._has_spoken:
                self._gate.refuse()

    def _go_on_proving(self, came: bytes | None = None) -> None:
        self._transport.write(self._proof.hear(came))
        if self._proof.proved is False:
            self.abort()
        elif self._proof.proved:
            self._deadline.cancel()
            self._heard = self._listen(self)
            self.proved.set_result(True)

    def _next_message(self) -> bytes | None:
        """The next message, once all of it has come."""
        if self._coming is None:
            if len(self._came) < _LENGTH.size + CODE_BYTES:
                return None
            length = self._take(_LENGTH.size)
            self._proof.theirs.check(self._take(CODE_BYTES), length)
            (self._coming,) = _LENGTH.unpack(length)
        if len(self._came) < codes_size(self._coming) + self._coming:
            return None
        codes, message = self._take(codes_size(self._coming)), self._take(self._coming)
        self._proof.theirs.check(codes, message)
        self._coming = None
        return message

    def _take(self, count: int) -> bytes:
        taken = bytes(self._came[:count])
        del self._came[:count]
        return taken


class ControlServer:
    """The driver's end: takes workers' calls, in a thread of its own."""

    def __init__(self, security: Security, gate: Gate, listen: Callable[[Connection], Heard], *, host: str, port: int = 0) -> None:
        """Serves at once. ``listen``: as of :class:`Connection`. ``port`` 0: any that is free. Raises OSError when it cannot be had."""
        sock = listening(host, (port,))
        self.port: int = sock.getsockname()[1]
        self._serving = Serving("control")
        hub = self._hub = _Hub(self._serving.loop)
        self._serving.begin(sock, lambda: Connection(hub, security, listen, gate), security.server_context())

    def close(self) -> None:
        """End all connections, once what was said has been sent or ``CLOSE_SECONDS`` are over."""
        self._serving.close(self._end)

    async def _end(self) -> None:
        self._hub.empty()
        for seconds, end in ((CLOSE_SECONDS, Connection.close), (None, Connection.abort)):
            ending = [connection.over for connection in self._hub.open]
            for connection in list(self._hub.open):
                end(connection)
            if ending:
                await asyncio.wait(ending, timeout=seconds)


async def call(address: str, security: Security, listen: Callable[[Connection], Heard]) -> Connection:
    """A worker's connection to the driver at ``host:port``. Raises OSError when that cannot be reached, or is another's."""
    loop = asyncio.get_running_loop()
    hub = _Hub(loop)
    host, port = parts_of(address)
    async with asyncio.timeout(PROOF_SECONDS):
        _, connection = await loop.create_connection(
            lambda: Connection(hub, security, listen, None),
            host,
            port,
            ssl=security.client_context(),
            server_hostname=None if security.tls is None else security.tls.name,
        )
        if not await connection.proved:
            raise ConnectionError(f"{address}: whoever answers did not prove that it has the application's secret")
    return connection
