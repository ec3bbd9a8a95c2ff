"""Decides who may talk to the driver and the workers: callers that show the application's secret, over TLS if there are certificates.

Always holds: a stranger's call is refused before a byte of it is read as a message; secrets are compared in constant time, and appear in
no message, log or representation.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LOG_SECONDS = 60.0
"""Refusals are logged once in so many seconds, with their number."""
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


class Gate:
    """Counts and logs those that do not show the secret."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.refused = 0
        """Calls, since the start."""
        self._told = 0
        self._told_at = float("-inf")

    def refuse(self) -> None:
        """Count a caller that has not shown the secret."""
        with self._lock:
            self.refused += 1
            now = self._clock()
            if now - self._told_at >= LOG_SECONDS:
                _log.warning("refused %d calls that did not show the application's secret", self.refused - self._told)
                self._told, self._told_at = self.refused, now
