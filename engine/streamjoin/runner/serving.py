"""A thread that takes calls and serves all connections of them (asyncio)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

PROOF_SECONDS = 10.0
"""Who has not proved itself within this time is cut off."""


def listening(host: str, ports: Sequence[int]) -> socket.socket:
    """A socket that listens at the first of these ports that is free (0: any). Raises OSError when none is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
        except OSError as error:
            failure = error
    where = f"port {ports[0]} cannot" if len(ports) == 1 else f"none of the ports {ports[0]} to {ports[-1]} can"
    raise OSError(failure.errno, f"{host}: {where} be listened on: {failure.strerror}")


class Serving:
    """See the module."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._server: asyncio.Server | None = None

    def begin(self, listening: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None) -> None:
        """Take calls, with a protocol for each. ``context``: for TLS; None: without."""
        self._server = self.loop.run_until_complete(
            self.loop.create_server(protocol, sock=listening, ssl=context, ssl_handshake_timeout=None if context is None else PROOF_SECONDS)
        )
        self._thread.start()

    def close(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Take no calls any more, have the connections end, in the thread, and end that."""
        asyncio.run_coroutine_threadsafe(self._end(end), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._server is not None
        self._server.close()
        await end()
