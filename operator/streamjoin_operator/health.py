"""The operator's port: ``/metrics``, ``/healthz`` (is it alive?) and ``/readyz`` (is it at work, or waiting for its turn?).

Served by threads of their own, so that a loop that hangs is told of rather than hanging too.

Always holds: ``/healthz`` fails when the loop has not run for ``BEAT_SECONDS``, when a reconcile hangs, when a watch is dead, or when what
is due is not taken up though a worker is free. It does not fail because the API server or drivers cannot be reached, or take connections
and never answer: a restart would not mend that.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamjoin.endpoint import EVERYWHERE, listened
from streamjoin_operator.queue import STUCK_SECONDS, Queue

BEAT_SECONDS = 30.0
"""The loop beats once a second."""
AGE_SECONDS = 300.0


class Health:
    """Says whether the operator is alive and at work."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.is_ready = False
        """Whether the watches are set up, or those of another operator are, which is active by its Lease."""
        self.state = "starting"
        """What ``/readyz`` says: "active", "standby: ... is active", or why it is not ready."""
        self.missed = 0
        """StreamJoins that were seen changed two audits in a row, and the watch has not shown."""

    def waits(self, other: str | None, problem: str) -> None:
        """Another operator is active, or it cannot be told (``problem``)."""
        self.is_ready, self.state = other is not None, problem or f"standby: {other} is active"

    def stuck(self) -> str | None:
        """Why the loop is stuck, or None."""
        queue = self._queue
        silent = queue.clock() - queue.heartbeat
        if queue.heartbeat and silent > BEAT_SECONDS:
            return f"the loop has not run for {silent:.0f} s"
        try:
            running, age = queue.longest_running, queue.age
        except RuntimeError:  # the loop changed the queue while it was read: it runs
            return None
        if running > STUCK_SECONDS:
            return f"a reconcile has run for {running:.0f} s"
        if self.missed:
            return f"the watch has not shown {self.missed} changes"
        # Where no worker is free, somebody out there is slow; that each reconcile ends is seen to above.
        return f"something has been due for {age:.0f} s" if age > AGE_SECONDS and queue.has_free_worker else None


class Server(ThreadingHTTPServer):
    """Takes IPv4 and IPv6, a thread for each connection."""

    daemon_threads = True

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Of IPv6, IPv4's calls are taken too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class HealthServer:
    """Answers from its construction to ``close``. Raises OSError where the port cannot be had."""

    def __init__(self, health: Health, registry: CollectorRegistry, port: int, address: str = EVERYWHERE) -> None:
        """``port`` 0: any that is free."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                    return
                stuck = health.stuck()
                if self.path == "/healthz":
                    self._answer(503 if stuck else 200, (stuck or "alive").encode())
                elif self.path == "/readyz":
                    ready = health.is_ready and not stuck
                    self._answer(200 if ready else 503, (stuck or health.state).encode())
                else:
                    self._answer(404, b"/metrics /healthz /readyz")

            def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Probes are not worth a line each."""

        self._server = Server(listened(address), port, Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
