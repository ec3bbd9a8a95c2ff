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

HANDSHAKE_TURNS = 4
"""Enough for both ends to have said all."""
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

    def written(self) -> tuple[tuple[int, int], ...]:
        """Another value once the files are others. Raises OSError."""
        found = [file.stat() for file in (self.certificate, self.key, self.authority)]
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)

    def context(self) -> ssl.SSLContext:
        """For those that take calls. A key with a password is refused, and nobody asked for it. Raises ssl.SSLError, OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key, password="")
        return context


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
        """For those that take calls, with the newest certificate that can be used; None: without TLS."""
        if self.tls is None:
            return None
        context = self.tls.context()
        context.sni_callback = _Renewed(self.tls, context).choose  # called for each handshake
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """For those that call: only certificates of our authority, as it is now, for our name, are taken. None: without TLS."""
        return None if self.tls is None else ssl.create_default_context(cafile=str(self.tls.authority))


class _Renewed:
    """The certificate that is shown to those who call. cert-manager renews it before it ends, and the kubelet puts it in its place."""

    def __init__(self, tls: Tls, context: ssl.SSLContext) -> None:
        self._tls, self._context, self._written = tls, context, tls.written()

    def choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """As ``SSLContext.sni_callback``. A certificate that nobody would take does not replace the one that is there."""
        try:
            written = self._tls.written()
            if written != self._written:
                problem = certificate_problem(self._tls)
                self._written = written
                if problem is None:
                    self._context = self._tls.context()
                    _log.info("the certificate was renewed")
                else:
                    _log.error("the certificate was replaced by one that cannot be used, and the old one goes on: %s", problem)
        except OSError as error:
            _log.error("the certificate cannot be read, and the old one goes on: %s", error)
        connection.context = self._context


def certificate_problem(tls: Tls) -> str | None:
    """Why processes with these files would not trust each other: found by a handshake with ourselves. None: they would."""
    try:
        server = tls.context()
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(tls.authority)
    except (ssl.SSLError, OSError, ValueError) as error:
        return f"tls.crt, tls.key and ca.crt cannot be used: {error}; each must be PEM, and the key tls.crt's own, without a password"
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=tls.name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(HANDSHAKE_TURNS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                remedy = f"it must be for the DNS name {tls.name}, issued by the authority of ca.crt, and not expired"
                return f"tls.crt is refused: {error.verify_message}; {remedy}"
            except ssl.SSLError as error:
                return f"tls.crt is refused: {error}"
    return None


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
