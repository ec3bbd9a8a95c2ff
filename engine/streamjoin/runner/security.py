"""Decides who may talk to the driver and the workers: callers that show the application's secret, over TLS if there are certificates.

Always holds: a stranger's call is refused before a byte of it is read as a message; secrets are compared in constant time, and appear in
no message, log or representation.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight

LOG_SECONDS = 60.0
"""Refusals are logged once in so many seconds, with their number."""
HEADER = "authorization"
_log = logging.getLogger("streamjoin.exchange")


@dataclass(frozen=True)
class Tls:
    """PEM files, as cert-manager names them in a Secret. Both ends of a connection have the same certificate."""

    certificate: Path
    """``tls.crt``"""
    key: Path
    """``tls.key``"""
    authority: Path
    """``ca.crt``"""
    name: str
    """A name that the certificate is for: addresses of pods are in no certificate."""

    @classmethod
    def of(cls, directory: Path, name: str) -> Tls:
        """The files of a mounted Secret. Raises FileNotFoundError naming the file that is missing."""
        files = [directory / file for file in ("tls.crt", "tls.key", "ca.crt")]
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"spec.security.tls.secretName: {file} is missing; the Secret needs tls.crt, tls.key and ca.crt")
        return cls(files[0], files[1], files[2], name)


@dataclass(frozen=True)
class Security:
    """What an application's processes share."""

    secret: bytes = field(repr=False)
    tls: Tls | None = None

    @classmethod
    def fresh(cls) -> Security:
        """New security, with a secret that nobody has seen."""
        return cls(secrets.token_hex(32).encode())

    @property
    def scheme(self) -> str:
        return "grpc" if self.tls is None else "grpc+tls"

    def server_context(self) -> ssl.SSLContext | None:
        """For those that take calls; None: without TLS."""
        if self.tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.tls.certificate, self.tls.key)
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """For those that call: only certificates of our authority, for our name, are taken. None: without TLS."""
        return None if self.tls is None else ssl.create_default_context(cafile=str(self.tls.authority))

    def client(self, address: str) -> flight.FlightClient:
        """A client of ``host:port``. It connects with its first call."""
        if self.tls is None:
            return flight.FlightClient(f"grpc://{address}")
        return flight.FlightClient(
            f"grpc+tls://{address}", tls_root_certs=self.tls.authority.read_bytes(), override_hostname=self.tls.name
        )

    def call(self) -> flight.FlightCallOptions:
        """The option that shows the secret, for each call."""
        return flight.FlightCallOptions(headers=[(HEADER.encode(), b"Bearer " + self.secret)])

    def server(self, gate: Gate) -> dict[str, Any]:
        """Arguments of a Flight server that lets in whom the gate does."""
        tls = self.tls
        certificates = [] if tls is None else [(tls.certificate.read_bytes(), tls.key.read_bytes())]
        return {"middleware": {"gate": gate}, "tls_certificates": certificates}


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not show the secret; counts and logs them."""

    def __init__(self, security: Security, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = b"Bearer " + security.secret
        self._clock = clock
        self._lock = threading.Lock()
        self.refused = 0
        """Calls, since the start."""
        self._told = 0
        self._told_at = float("-inf")

    def start_call(self, info: Any, headers: Any) -> None:
        """Called by Flight: raises FlightUnauthenticatedError to refuse a call."""
        shown = headers.get(HEADER) or [""]
        value = shown[0].encode() if isinstance(shown[0], str) else bytes(shown[0])
        if not hmac.compare_digest(value, self._expected):
            self.refuse()
            raise flight.FlightUnauthenticatedError("the application's secret was not shown")

    def refuse(self) -> None:
        """Count a caller that has not shown the secret."""
        with self._lock:
            self.refused += 1
            now = self._clock()
            if now - self._told_at >= LOG_SECONDS:
                _log.warning("refused %d calls that did not show the application's secret", self.refused - self._told)
                self._told, self._told_at = self.refused, now


def shut_down(server: flight.FlightServerBase, seconds: float = 2.0) -> None:
    """End a server. Flight waits for calls that go on, and ours last as long as the processes at their other ends: not for long, here."""
    thread = threading.Thread(target=server.shutdown, name="shutdown", daemon=True)
    thread.start()
    thread.join(seconds)
