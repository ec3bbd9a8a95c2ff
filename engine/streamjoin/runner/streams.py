"""Streams of frames from worker to worker, each over a TCP connection of its own, with TLS if there are certificates.

A frame is a header, its code, and, after the codes of that, what it brings, as that lies in memory (``runner.seal``). A
:class:`Link` is the end of a stream that sends: frames leave in the thread that sends them, small ones several together. A :class:`Stream`
is the other end: one thread of a worker reads all streams that lead to it (asyncio), and wakes nobody for a frame that nobody waits for.

Always holds: no byte of a stranger is taken for part of a frame, nor is any that something between the ends has changed; frames are
given on in order, each once all of it is there; and whoever sends to an end that does not read is
asked every ``PATIENCE_SECONDS`` whether it wants to wait on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from streamjoin.endpoint import endpoint, parts_of
from streamjoin.runner import proof
from streamjoin.runner.seal import CODE_BYTES, Seal, codes_size
from streamjoin.runner.security import Gate, Security
from streamjoin.runner.serving import PROOF_SECONDS, Serving, listening

PURPOSE = b"streamjoin-exchange/1\n"
HEADER = struct.Struct("<QBHqiibhii")
"""Bytes that it brings, kind, round, attempt, task, area, place, number, sender, part."""
PIECE, MARK, BEAT, NAME = range(4)
"""Kinds. The first frame of a stream is a name: its channel, its first attempt, and the address of who sends."""
NOTHING = (0,) * 8
TOGETHER_BYTES = 1 << 16
"""Frames to one worker wait for others until they have so many bytes, or are flushed."""
READ_BYTES = 1 << 15
"""A larger frame is read straight to where it stays."""
MOST_TLS_BYTES = 1 << 24
"""OpenSSL takes less than 2 GiB at once."""
PATIENCE_SECONDS = 1.0
MOST_PARTS = 512
"""The system takes 1,024 at once."""
_log = logging.getLogger("streamjoin.exchange")

Header = tuple[int, ...]
"""The fields of ``HEADER``."""


class ExchangeError(RuntimeError):
    """A worker cannot be reached, or went silent: the attempt is over, and the next one may succeed."""


class Listener(Protocol):
    """Who takes frames, in the thread that reads them. What these raise ends the stream."""

    def opened(self, stream: Stream) -> None:
        """Whoever sends has proved itself and given its name."""

    def came(self, stream: Stream, header: Header, data: pa.Buffer) -> None:
        """A frame, all of it."""

    def ended(self, stream: Stream) -> None:
        """Nothing more will come."""


class Stream(asyncio.BufferedProtocol):
    """The end of a stream that leads here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, security: Security, gate: Gate, listener: Listener, connected: set[Stream]) -> None:
        """``connected``: it is among these as long as it is."""
        self._loop, self._gate, self._listener, self._connected = loop, gate, listener, connected
        self.channel, self.sender, self.since = -1, "", -1
        """What its name says, once it has come; ``since``: the first attempt of which anything comes here."""
        self.heard_at = 0.0
        """When something last came (``time.monotonic``)."""
        self._transport: Any = None
        self._proof = proof.called(security.secret, PURPOSE)
        self._deadline: asyncio.TimerHandle
        """For the proof."""
        self._read = bytearray(READ_BYTES)
        self._view = memoryview(self._read)
        self._filled = 0
        self._coming: Header | None = None
        """The header of the frame that comes, once that has come and its code was right."""
        self._large: tuple[Header, bytes, pa.Buffer, memoryview] | None = None
        """A frame that is read to where it stays: its header, the codes of what it brings, that place, and what is left of this."""

    def pause(self) -> None:
        """Read nothing more, until :meth:`resume`. From the thread that reads."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """From any thread; returns at once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """From the thread that reads."""
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio, as are the next three."""
        self._transport = transport
        self._connected.add(self)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._deadline = self._loop.call_later(PROOF_SECONDS, self.end)
        self._go_on_proving()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :] if self._large is None else self._large[3]

    def buffer_updated(self, count: int) -> None:
        self.heard_at = time.monotonic()
        try:
            if self._large is not None:
                header, codes, data, left = self._large
                if count < len(left):
                    self._large = header, codes, data, left[count:]
                    return
                self._large = None
                self._frame(header, codes, data)
            else:
                self._filled += count
                self._take()
        except Exception:
            _log.exception("a stream from a worker was ended, as what came could not be taken")
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        self._connected.discard(self)
        self._deadline.cancel()
        if self.sender:
            self._listener.ended(self)
        elif not self._proof.proved and self.heard_at > 0:
            self._gate.refuse()

    def _take(self) -> None:
        """What has come as far as it is whole; the rest stays, at the front."""
        at = 0
        while self._proof.proved is None and self._filled - at >= self._proof.wanted:
            begin, at = at, at + self._proof.wanted
            self._go_on_proving(bytes(self._view[begin:at]))
        while self._proof.proved and self._large is None:
            if self._coming is None:
                begin = at + HEADER.size
                if self._filled < begin + CODE_BYTES:
                    break
                self._proof.theirs.check(self._view[begin : begin + CODE_BYTES], self._view[at:begin])
                self._coming, at = HEADER.unpack_from(self._read, at), begin + CODE_BYTES
                if codes_size(self._coming[0]) > READ_BYTES:
                    raise ValueError(f"a frame of {self._coming[0]:,} bytes")
            begin = at + codes_size(self._coming[0])
            end = begin + self._coming[0]
            codes = bytes(self._view[at:begin])
            if end <= self._filled:
                self._frame(self._coming, codes, pa.py_buffer(bytes(self._view[begin:end])))
                at = end
            elif end - at > READ_BYTES and begin <= self._filled:
                data = pa.allocate_buffer(self._coming[0])
                left = memoryview(data).cast("B")
                came = self._filled - begin
                left[:came] = self._view[begin : self._filled]
                self._large, at = (self._coming, codes, data, left[came:]), self._filled
            else:
                break
            self._coming = None
        if at:
            self._filled -= at
            self._view[: self._filled] = self._view[at : at + self._filled]

    def _frame(self, header: Header, codes: bytes, data: pa.Buffer) -> None:
        self._proof.theirs.check(codes, memoryview(data).cast("B"))
        if self.sender:
            if header[1] != BEAT:
                self._listener.came(self, header, data)
            return
        if header[1] != NAME:
            raise ValueError("a stream began without a name")
        channel, since, self.sender = data.to_pybytes().decode().split(" ")
        self.channel, self.since = int(channel), int(since)
        self._listener.opened(self)

    def _go_on_proving(self, came: bytes | None = None) -> None:
        self._transport.write(self._proof.hear(came))
        if self._proof.proved is False:
            self.end()
        elif self._proof.proved:
            self._deadline.cancel()


class StreamServer:
    """Takes streams, in a thread of its own."""

    def __init__(self, security: Security, gate: Gate, listener: Listener, host: str, ports: Sequence[int]) -> None:
        """Serves at once, at the first of these ports that is free (0: any). Raises OSError when none is."""
        sock = listening(host, ports)
        self.address = endpoint(host, sock.getsockname()[1])
        self._streams: set[Stream] = set()
        self._serving = Serving("receiving")
        loop = self._serving.loop
        self._serving.begin(sock, lambda: Stream(loop, security, gate, listener, self._streams), security.server_context())

    def close(self) -> None:
        """End all streams."""
        self._serving.close(self._end)

    async def _end(self) -> None:
        for stream in list(self._streams):
            stream.end()


class Link:
    """The end of a stream that leads away. Safe for use by several threads."""

    def __init__(self, security: Security, address: str, channel: int, own: str, attempt: int) -> None:
        """Connects. ``own``: our address; ``attempt``: the first that anything is sent for. Raises ExchangeError."""
        self.address = address
        self.broken = False
        self.attempt = attempt
        """The last one that something was sent for; of the thread that sends."""
        self._lock = threading.Lock()
        self._waiting: list[bytes | memoryview] = []
        """Frames that wait for others, in parts."""
        self._waiting_bytes = 0
        try:
            self._socket, self._seal = _connected(security, address)
        except OSError as error:
            raise self._error(error) from error
        self._poll_in, self._poll_out = select.poll(), select.poll()
        self._poll_in.register(self._socket, select.POLLIN)
        self._poll_out.register(self._socket, select.POLLOUT)
        name = f"{channel} {attempt} {own}".encode()
        self.send(HEADER.pack(len(name), NAME, *NOTHING), pa.py_buffer(name), lambda: None)
        self.flush(lambda: None)

    def send(self, header: bytes, data: pa.Buffer | None, waits: Callable[[], object]) -> None:
        """Send a frame, with others or at the next :meth:`flush`. ``waits`` is called every so often while the other end does not read;
        what it raises breaks the stream off. Raises ExchangeError."""
        with self._lock:
            content = b"" if data is None or not data.size else memoryview(data).cast("B")
            self._append(header, content)
            if self._waiting_bytes >= TOGETHER_BYTES:
                self._send_waiting(waits)

    def flush(self, waits: Callable[[], object]) -> None:
        """Have all frames leave. Raises ExchangeError, and what ``waits`` does."""
        with self._lock:
            self._send_waiting(waits)

    def beat(self) -> None:
        """Say that we are here, unless that would wait for the other end, or something is being sent, which says as much."""
        if self._lock.acquire(blocking=False):
            try:
                if not self.broken and self._poll_out.poll(0):
                    self._append(HEADER.pack(0, BEAT, *NOTHING), b"")
                    self._send_waiting(lambda: None)
            except ExchangeError:
                pass  # whoever sends next finds it broken
            finally:
                self._lock.release()

    @property
    def is_over(self) -> bool:
        """Whether it is broken, as far as can be known without sending: the other end says nothing, so what comes is its end."""
        return self.broken or bool(self._poll_in.poll(0))

    def close(self) -> None:
        """Give the stream up; who sends on it meanwhile gets an ExchangeError."""
        self.broken = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own would take its state from under who sends
        with self._lock, contextlib.suppress(OSError):
            self._socket.close()

    def _append(self, header: bytes, content: bytes | memoryview) -> None:
        begin = b"".join((header, self._seal.codes(header), self._seal.codes(content)))
        self._waiting += [begin, content] if len(content) else [begin]
        self._waiting_bytes += len(begin) + len(content)

    def _send_waiting(self, waits: Callable[[], object]) -> None:
        parts, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            if self.broken:
                raise ConnectionError("its stream has broken")
            _send_all(self._socket, parts, waits)
        except BaseException as error:
            self.broken = True
            if isinstance(error, (OSError, ValueError)):
                raise self._error(error) from error
            raise

    def _error(self, error: Exception) -> ExchangeError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return ExchangeError(f"the worker at {self.address} cannot be reached: {reason.splitlines()[0][:200]}")


def _connected(security: Security, address: str) -> tuple[socket.socket, Seal]:
    """A connection whose two ends have proved themselves, and the seal of what is sent on it."""
    connection = socket.create_connection(parts_of(address), timeout=PROOF_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        context = security.client_context()
        if context is not None and security.tls is not None:
            connection = context.wrap_socket(connection, server_hostname=security.tls.name)
        own = proof.caller(security.secret, PURPOSE)
        connection.sendall(own.hear())
        while own.proved is None:
            connection.sendall(own.hear(_received(connection, own.wanted)))
        if not own.proved:
            raise ConnectionError("it did not prove that it has the application's secret")
        connection.settimeout(PATIENCE_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection, own.ours


def _received(connection: socket.socket, count: int) -> bytes:
    came = b""
    while len(came) < count:
        more = connection.recv(count - len(came))
        if not more:
            raise ConnectionError("it hung up, as it does where the application's secret was not shown")
        came += more
    return came


def _send_all(connection: socket.socket, parts: Sequence[bytes | memoryview], waits: Callable[[], object]) -> None:
    is_tls = isinstance(connection, ssl.SSLSocket)
    left = deque(memoryview(part) for part in (_joined(parts) if is_tls else parts))
    while left:
        try:
            sent = connection.send(left[0][:MOST_TLS_BYTES]) if is_tls else connection.sendmsg(list(islice(left, MOST_PARTS)))
        except TimeoutError:
            waits()
            continue
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if sent:
            left[0] = left[0][sent:]


def _joined(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """As few parts, as each costs encryption by itself; what is large stays as it lies in memory."""
    joined: list[bytes | memoryview] = []
    small = bytearray()
    for part in parts:
        if len(part) < TOGETHER_BYTES:
            small += part
        else:
            joined += [bytes(small), part]
            small = bytearray()
    return [part for part in (*joined, bytes(small)) if len(part)]
