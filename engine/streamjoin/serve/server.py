"""The port: ``/metrics`` for Prometheus and ``/healthz`` for whoever restarts processes.

Always holds: a client can only read, each in a thread of its own, and one that is slow or silent holds up neither the join nor the others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from streamjoin.serve.metrics import Metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

IDLE_SECONDS = 10.0
"""A client that says nothing for so long is cut off."""
POLL_SECONDS = 0.1
"""How soon the server notices that it is to close."""

INDEX = b"""\
/metrics    for Prometheus
/healthz    200 while the join is at work, 503 when it has ended
"""


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Standard error belongs to the run."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the base class, but without asking the name service for this machine's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is nobody's concern."""


class MetricsServer:
    """Answers from its construction to ``close``. Raises OSError where the address cannot be had."""

    def __init__(self, metrics: Metrics, address: str = "127.0.0.1", port: int = 0) -> None:
        """``port`` 0: any that is free."""
        try:
            family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except UnicodeError as error:
            raise OSError(0, "not an address") from error
        self._server = _Server(family, where)
        self._server.set_app(_application(metrics))
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_address[1]}"
        """Without a path."""
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _application(metrics: Metrics) -> Any:
    exposition = make_wsgi_app(metrics.registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            answered: Iterable[bytes] = exposition(environ, start)
            return answered
        if path == "/healthz":
            healthy, facts = metrics.health()
            return _plain(start, "200 OK" if healthy else "503 Service Unavailable", json.dumps(facts).encode() + b"\n", "application/json")
        return _plain(start, "200 OK", INDEX) if path == "/" else _plain(start, "404 Not Found", INDEX)

    return answer


def _plain(start: StartResponse, status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> list[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
