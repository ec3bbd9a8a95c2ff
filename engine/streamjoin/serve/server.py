"""The port: ``/metrics`` for Prometheus, ``/healthz`` for whoever restarts processes, the plan API and queries under ``/v1``.

Always holds: each client is answered in a thread of its own, and one that is slow or silent holds up neither the join nor the others: it is
cut off ``IDLE_SECONDS`` after it last said something, and in any case ``LONGEST_SECONDS`` after it came; a client that is sent a stream
(``admission.Stream``) stays as long as that goes on, which sees to slow ones itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import select
import socket
import time
from collections.abc import Iterable
from http.client import responses
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from streamjoin import pages
from streamjoin.endpoint import endpoint, listened
from streamjoin.serve.admission import OPEN_METHODS, Answer, Content, Refused, Request, Stream
from streamjoin.serve.api import MOST_BODY_BYTES, PlanApi
from streamjoin.serve.event_stream import Outlet
from streamjoin.serve.messages import ErrorAnswer
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.queries import QueryApi
from streamjoin.serve.query_metrics import QueryPage
from streamjoin.serve.standbys import PATH as STANDBY
from streamjoin.serve.standbys import STANDS_BY, Standbys

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

IDLE_SECONDS = 10.0
"""A client that says nothing for so long is cut off."""
LONGEST_SECONDS = 60.0
"""How long a client may take for everything."""
LINGER_SECONDS = 1.0
"""How long what a client still sends is read away after its answer: a connection closed before loses the answer."""
POLL_SECONDS = 0.1
"""How soon the server notices that it is to close, or that a client's time is over."""

CONNECTION = "streamjoin.connection"
"""The client's socket, in a request's environment."""
STAY = "streamjoin.stay"
"""Likewise, what lets the client stay for longer than ``LONGEST_SECONDS``."""

INDEX = b"""\
/                 a page that shows the join, for a browser
/metrics          for Prometheus
/healthz          200 while the join is at work, or stands by; 503 when it has ended
/readyz           the same, but 503 while it stands by
/standby          for a standby: whether this driver is alive
/v1/plan          GET: the plan; PUT: another one
/v1/plan/preview  POST: what another one would do
/v1/scaling       GET: whether the run scales itself; PUT: pause that
/v1/statistics    what plans are made from
/v1/health        the health, with the plan
/v1/savepoints    epochs that are kept; /v1/savepoints/NAME  PUT: keep the last one, DELETE
/v1/live          all that the page shows; with Accept: text/event-stream, as it changes
/v1/decisions     what the autoscaler has decided, and why
/v1/query         POST: SQL over what the join holds
/v1/queries/JOIN  GET: a join's results as they are found, as server-sent events
"""
QUERY_INDEX = b"""\
/metrics          for Prometheus
/healthz          200
/v1/query         POST: SQL over what the join holds
/v1/queries/JOIN  GET: a join's results as they are found, as server-sent events
"""


BODY_TYPES = ("", "application/json", "application/x-www-form-urlencoded")
"""What JSON may be called: curl calls whatever it sends a form, and others say nothing of it."""


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Standard error belongs to the run."""

    def get_stderr(self) -> Any:
        return io.StringIO()

    def get_environ(self) -> Any:
        server = cast(_Server, self.server)
        kind = self.headers.get("content-type", "")  # which is text/plain to the base class where it is missing
        return {**super().get_environ(), "CONTENT_TYPE": kind, CONNECTION: self.connection, STAY: lambda: server.let_stay(self.connection)}


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        self._clients: dict[socket.socket, float] = {}
        """When each came; infinity: it may stay."""
        self._lock = Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the base class, but without asking the name service for this machine's name, which can take seconds."""
        if self.address_family == socket.AF_INET6 and socket.has_dualstack_ipv6():
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        client, address = super().get_request()
        with self._lock:
            self._clients[client] = time.monotonic()
        return client, address

    def service_actions(self) -> None:
        """Cut off those who have had their time. Runs between requests and while none comes."""
        oldest = time.monotonic() - LONGEST_SECONDS
        with self._lock:
            over = [client for client, since in self._clients.items() if since < oldest]
        for client in over:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def let_stay(self, client: socket.socket) -> None:
        with self._lock:
            self._clients[client] = math.inf

    def cut_all_off(self) -> None:
        with self._lock:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER_SECONDS
            while (left := until - time.monotonic()) > 0:
                request.settimeout(left)
                if not request.recv(1 << 16):
                    break
        with self._lock:
            self._clients.pop(request, None)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is nobody's concern."""


class DriverServer:
    """Answers from its construction to ``close``. Raises OSError where the address cannot be had."""

    def __init__(
        self,
        metrics: Metrics | None,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        api: PlanApi | QueryApi | None = None,
        standbys: Standbys | None = None,
    ) -> None:
        """``port`` 0: any that is free. Without ``api`` there is nothing under ``/v1``; without ``metrics`` there is no join here, and
        without ``standbys`` nobody can stand by for it."""
        address = listened(address)
        try:
            family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except UnicodeError as error:
            raise OSError(0, "not an address") from error
        self._server = _Server(family, where)
        self._server.set_app(_application(metrics, api, str(self._server.server_address[0]), standbys))
        self.url = f"http://{endpoint(address, self._server.server_address[1])}"
        """Without a path."""
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.cut_all_off()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> DriverServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _application(metrics: Metrics | None, api: PlanApi | QueryApi | None, address: str, standbys: Standbys | None) -> Any:
    page = metrics if metrics is not None else QueryPage(api.metrics) if isinstance(api, QueryApi) else None
    exposition = None if page is None else make_wsgi_app(page.registry)
    index = QUERY_INDEX if metrics is None else INDEX
    has_page = isinstance(api, PlanApi) and api.has_page

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", "/"), environ["REQUEST_METHOD"]
        if path == "/metrics" and exposition is not None:
            answered: Iterable[bytes] = exposition(environ, start)
            return answered
        if api is not None and (path == "/v1" or path.startswith("/v1/")):
            return _told(start, _asked(api, environ, address), environ)
        if path == STANDBY and standbys is not None and method == "GET":
            return _told(start, _watched(standbys, environ), environ)
        file = pages.asset(path) if has_page else None
        if path not in ("/", "/healthz", "/readyz") and file is None:
            return _plain(start, method, 404, index)
        if method not in ("GET", "HEAD"):
            return _plain(start, method, 405, index, Allow="GET, HEAD")
        if path in ("/healthz", "/readyz") and metrics is not None:
            return _health(start, method, metrics, may_stand_by=path == "/healthz")
        if file is None and path == "/" and has_page and "text/html" in environ.get("HTTP_ACCEPT", ""):
            file = pages.index("index")
        if file is not None:
            return _plain(start, method, 200, file[1], file[0], **pages.HEADERS)
        return _plain(start, method, 200, index, **({"Vary": "Accept"} if has_page else {}))

    return answer


def _health(start: StartResponse, method: str, metrics: Metrics, *, may_stand_by: bool) -> list[bytes]:
    healthy, facts = metrics.health()
    for private in ("lastFailure", "snapshotsWait", "watermarkHeld"):  # they name places and brokers, and anybody may ask here
        del facts[private]
    is_well = healthy and (may_stand_by or facts["state"] != STANDS_BY)
    return _plain(start, method, 200 if is_well else 503, json.dumps(facts).encode() + b"\n", "application/json")


def _watched(standbys: Standbys, environ: WSGIEnvironment) -> Answer | Stream:
    try:
        return standbys.answer(environ.get("QUERY_STRING", ""))
    except Refused as refused:
        return refused.answer


def _told(start: StartResponse, told: Answer | Content | Stream, environ: WSGIEnvironment) -> list[bytes]:
    if isinstance(told, Stream):
        return _streamed(start, told, environ)
    kind, body = told.content
    return _plain(start, environ["REQUEST_METHOD"], told.status, body, kind, **told.headers)


def _streamed(start: StartResponse, told: Stream, environ: WSGIEnvironment) -> list[bytes]:
    write = start("200 OK", [("Content-Type", told.content_type), *told.headers.items()])
    write(b"")  # sends the headers; what follows goes to the socket itself, as only that says how much of it was sent
    environ[STAY]()
    told.send(Outlet(environ[CONNECTION]))
    return []


def _asked(api: PlanApi | QueryApi, environ: WSGIEnvironment, address: str) -> Answer | Content | Stream:
    """The API's answer to a request, whatever is wrong with it."""
    method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
    try:
        api.admission.admit(method, path, environ.get("HTTP_AUTHORIZATION"), address=address, host=environ.get("HTTP_HOST", ""))
        if method not in OPEN_METHODS:
            _require_own(environ)
        body = _body(environ) if method in ("PUT", "POST") else b""
        request = Request(
            *(method, path, body, environ.get("QUERY_STRING", "")),
            accept=environ.get("HTTP_ACCEPT", ""),
            last_event_id=environ.get("HTTP_LAST_EVENT_ID"),
            is_gone=lambda: _is_gone(environ[CONNECTION]),
            may_write=path == "/v1/live" and _may_write(api, environ, address),
        )
        return api.answer(request)
    except Refused as refused:
        return refused.answer
    except Exception as error:  # what it may be, a client must get an answer and the run must go on
        return Answer(500, ErrorAnswer(error=f"{method} {path}: {type(error).__name__}: {error}; this is a bug, please report it"))


def _require_own(environ: WSGIEnvironment) -> None:
    """Raises Refused for what only another site's page would send: it may make a browser that has it open send requests here, of which it
    must not choose what is sent, and need not see the answer."""
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST", "")
    if origin is not None and origin.partition("://")[2] != host:
        raise Refused(403, f"Origin: {origin[:100]!r} is another site; ask from the page of this server, or without a browser")
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind not in BODY_TYPES:
        raise Refused(415, f"Content-Type: {kind[:100]!r} is not read; send application/json")


def _may_write(api: PlanApi | QueryApi, environ: WSGIEnvironment, address: str) -> bool:
    """Whether the client would be let put plans."""
    try:
        api.admission.admit("PUT", "/v1/plan", environ.get("HTTP_AUTHORIZATION"), address=address, host=environ.get("HTTP_HOST", ""))
    except Refused:
        return False
    return True


def _is_gone(client: socket.socket) -> bool:
    """Whether the client has closed its connection."""
    try:
        return bool(select.select([client], [], [], 0)[0]) and client.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # it has been cut off
        return True


def _body(environ: WSGIEnvironment) -> bytes:
    """Raises Refused for a body of unknown size, one that is too large, and one that does not come."""
    given = environ.get("CONTENT_LENGTH") or ""
    if not given or environ.get("HTTP_TRANSFER_ENCODING"):
        raise Refused(411, "Content-Length: is missing; send the body's size in bytes, and the body in one piece")
    if not (given.isascii() and given.isdigit()):
        raise Refused(400, f"Content-Length: {given[:40]!r} must be the body's size in bytes")
    size = int(given[:20])
    if size > MOST_BODY_BYTES:
        raise Refused(413, f"Content-Length: {size:,} must be at most {MOST_BODY_BYTES:,} bytes; a plan of 2,048 areas is smaller")
    try:
        body: bytes = environ["wsgi.input"].read(size)
    except OSError as error:
        raise Refused(408, f"the body: did not come within {IDLE_SECONDS:g} s; send all {size:,} bytes") from error
    if len(body) < size:
        raise Refused(400, f"the body: ended after {len(body):,} of {size:,} bytes; send all that Content-Length promises")
    return body


def _plain(
    start: StartResponse, method: str, status: int, body: bytes, kind: str = "text/plain; charset=utf-8", **more: str
) -> list[bytes]:
    headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *more.items()]
    start(f"{status} {responses[status]}", headers)
    return [] if method == "HEAD" else [body]
