"""Sends a follower's events as server-sent events (WHATWG HTML, 9.2) to a client that may be slow, or gone.

Always holds: a client gets whole events, except for one that the end of the connection cuts short. An event's id is the position to go on
from when all up to its end was read.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from streamjoin.query.continuous import Position
from streamjoin.query.errors import QueryError, Why
from streamjoin.serve.followers import Beat, Event, Follower, Reached, Rows

CONTENT_TYPE = "text/event-stream"
LAST_SECONDS = 30.0
"""How long one that is cut off may take for what it was being sent, and for being told."""


class Outlet:
    """A client's connection, to be written to."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._unsent = b""

    def send(self, data: bytes, seconds: float) -> bool:
        """Send what was left of the last time, then this; whether all of it went within so long. Raises OSError: the client has gone."""
        until = time.monotonic() + seconds
        rest = memoryview(self._unsent + data)
        while rest:
            left = until - time.monotonic()
            if left <= 0:
                break
            self._client.settimeout(left)
            try:
                rest = rest[self._client.send(rest) :]
            except TimeoutError:
                break
        self._unsent = bytes(rest)
        return not rest


def stream(follower: Follower, outlet: Outlet, is_gone: Callable[[], bool], patience_seconds: float) -> None:
    """Send a follower's events until they end, it has gone, or it does not take them. Closes it."""
    try:
        try:
            for event in follower.events(is_gone):
                if not outlet.send(encoded(event), patience_seconds):
                    outlet.send(_message("behind", follower.position, error=follower.cut_off(), after=str(follower.position)), LAST_SECONDS)
                    return
        except QueryError as error:
            if error.why is not Why.GONE:
                follower.failed(error)
                outlet.send(_message("error", error=str(error), reason=error.why.value), patience_seconds)
    except OSError:
        return
    finally:
        follower.close()


def encoded(event: Event) -> bytes:
    """The event as it goes over the wire. Rows are JSON lines. O(bytes)."""
    if isinstance(event, Beat):
        return b":\n\n"
    if isinstance(event, Reached):  # without data a client only notes the id
        return b"id: %s\n\n" % str(event.position).encode()
    if isinstance(event, Rows):
        data = event.body.rstrip(b"\n").replace(b"\n", b"\ndata: ")
        return b"id: %s\ndata: %s\n\n" % (str(event.position).encode(), data)
    return _message("end", event.position, after=str(event.position))


def _message(kind: str, position: Position | None = None, **facts: str) -> bytes:
    at = "" if position is None else f"id: {position}\n"
    return f"event: {kind}\n{at}data: {json.dumps(facts)}\n\n".encode()
