"""Ports that the operator serves by threads of their own, so that a loop that hangs is told of rather than hanging too."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self


class Handler(BaseHTTPRequestHandler):
    """A client that says nothing for ``timeout`` seconds is cut off."""

    timeout = 10.0

    def answer(self, code: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """``kind``: the body's media type."""
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Requests are not worth a line each."""


class Server(ThreadingHTTPServer):
    """Takes IPv4 and IPv6, a thread for each connection."""

    daemon_threads = True

    def __init__(self, address: str, port: int, handler: type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Of IPv6, IPv4's calls are taken too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class Listening:
    """Answers from its construction to ``close``."""

    def __init__(self, server: Server, name: str) -> None:
        """``name``: of the thread."""
        self._server = server
        self.port = server.server_address[1]
        self._thread = Thread(target=server.serve_forever, args=(0.2,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
