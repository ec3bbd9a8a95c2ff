"""HTTP servers of tests, in a thread of the test's own process."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Says nothing on stderr."""

    def answer(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error of the server's, and what it printed would be another test's, in the same process."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Served:
    """A server on a free port, from now until it is closed."""

    def __init__(self, handler: type[Handler], tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{'http' if tls is None else 'https'}://{self.address}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
