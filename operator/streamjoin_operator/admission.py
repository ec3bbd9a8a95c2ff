"""The validating webhook: ``kubectl apply`` of a StreamJoin is refused where the operator would refuse it, its SQL included.

The API server asks before it stores a StreamJoin (``admission.k8s.io/v1``). It takes the StreamJoin where nobody answers (``failurePolicy:
Ignore`` in the chart), and the operator says in the status what is wrong with it.

Always holds: :func:`answer` is pure, and never refuses what it cannot judge. A StreamJoin is taken that is being deleted, whose spec does
not change, or that only suspends, resumes or pauses a join: whatever is stored can be stopped and deleted. The certificate is read again
when its file changes, so that it may be renewed.
"""

from __future__ import annotations

import json
import logging
import ssl
from pathlib import Path
from socket import socket
from typing import Any

from streamjoin.endpoint import EVERYWHERE, listened
from streamjoin_operator.derived import derive
from streamjoin_operator.drift import Object
from streamjoin_operator.listening import Handler, Listening, Server

PATH = "/validate"
DIRECTORY = Path("/etc/admission")
"""Where the chart mounts ``tls.crt`` and ``tls.key``."""
LARGEST_REVIEW = 8 << 20
"""Bytes: the object that is to be stored and the one that is stored, of at most 1.5 MiB each, with room to spare."""
HEEDED = ("suspend", "paused")
"""Fields that the operator takes from a spec that it refuses."""

log = logging.getLogger(__name__)


def answer(review: Object) -> Object:
    """The review with its response. Raises KeyError for what is no review."""
    request = review["request"]
    refusal = _refusal(request)
    response: Object = {"uid": request["uid"], "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"code": 422, "reason": "Invalid", "message": refusal}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def _refusal(request: Object) -> str | None:
    body, before = request.get("object"), request.get("oldObject")
    if not body or body["metadata"].get("deletionTimestamp") or (before and _judged(body) == _judged(before)):
        return None
    try:
        problem = derive(body).problem
    except Exception:
        log.exception("a StreamJoin cannot be judged, and is taken")
        return None
    return None if problem is None else problem[1]


def _judged(body: Object) -> Object:
    """The spec, less what the operator takes from any."""
    return {name: value for name, value in body.get("spec", {}).items() if name not in HEEDED}


class AdmissionServer(Listening):
    """Answers from its construction to ``close``. Raises OSError where the port cannot be had."""

    def __init__(self, port: int, directory: Path = DIRECTORY, address: str = EVERYWHERE) -> None:
        """``port`` 0: any that is free. ``directory``: of the certificate, which may come later."""

        class Answers(Handler):
            def do_POST(self) -> None:  # noqa: N802 - the base class looks for it
                length = int(self.headers.get("Content-Length") or 0)
                if self.path.partition("?")[0] != PATH or not 0 < length <= LARGEST_REVIEW:
                    self._say(404, {"error": f"POST a review to {PATH}"})
                    return
                try:
                    self._say(200, answer(json.loads(self.rfile.read(length))))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    self._say(400, {"error": f"no AdmissionReview: {type(error).__name__}"})

            def _say(self, code: int, value: Any) -> None:
                self.answer(code, "application/json", json.dumps(value).encode())

        server = _TlsServer(listened(address), port, Answers)
        server.certificate = _Certificate(directory)
        super().__init__(server, "admission")


class _Certificate:
    """``tls.crt`` and ``tls.key`` of a directory, as they are now."""

    def __init__(self, directory: Path) -> None:
        self._files = (directory / "tls.crt", directory / "tls.key")
        self._read: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """Raises OSError while there is none that can be used."""
        state = tuple(file.stat().st_mtime_ns for file in self._files)
        if self._read is None or self._read[0] != state:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._files)
            self._read = (state, context)
        return self._read[1]


class _TlsServer(Server):
    certificate: _Certificate

    def get_request(self) -> tuple[socket, Any]:
        """The handshake is left to the connection's own thread. An OSError here ends the connection alone."""
        connection, client = super().get_request()
        try:
            return self.certificate.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False), client
        except OSError as error:
            connection.close()
            log.warning("the webhook's certificate cannot be used: %s", error)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that trusts no such certificate, or goes away, is not worth a trace."""
        log.debug("a request to the webhook failed", exc_info=True)
