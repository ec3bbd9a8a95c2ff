"""The way from a real API server to Services, which nothing routes here: a proxy that it asks for every connection into the cluster.

kube-apiserver reaches webhooks by its egress selector (HTTP CONNECT over a Unix socket); each connection goes to one port of this machine.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any

import yaml


class ServiceProxy:
    """Answers from its construction to ``close``. ``port``: where connections lead; 0: nobody is there."""

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self.asked: list[str] = []
        """The addresses that were asked for."""
        # A Unix socket's path has at most some 100 characters.
        self._socket = Path("/tmp") / f"sj-egress-{id(self):x}-{threading.get_native_id()}.sock"
        self.configuration = directory / "egress.yaml"
        transport = {"uds": {"udsName": str(self._socket)}}
        selection = {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
        head = {"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration"}
        self.configuration.write_text(yaml.safe_dump({**head, "egressSelections": [selection]}))
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                proxy._relay(self)

        self._socket.unlink(missing_ok=True)
        self._server = socketserver.ThreadingUnixStreamServer(str(self._socket), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def _relay(self, handler: socketserver.StreamRequestHandler) -> None:
        line = handler.rfile.readline().decode()
        while handler.rfile.readline().strip():
            pass
        self.asked.append(line.split()[1])
        try:
            there = socket.create_connection(("localhost", self.port), 10)
        except OSError:
            handler.wfile.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            return
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with there:
            there.settimeout(None)
            back = threading.Thread(target=_copy, args=(there, handler.connection), daemon=True)
            back.start()
            _copy(handler.connection, there)
            back.join()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._socket.unlink(missing_ok=True)

    def __enter__(self) -> ServiceProxy:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
