"""An S3 server in this process (moto's) behind faults that a test asks for: refusals, lost and halved answers, slowness.

Requests are served one at a time, so that a conditional write is as atomic as S3's is; slow ones wait before that.
"""

from __future__ import annotations

import io
import itertools
import logging
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness import Remote

FAULTS = ("500", "503", "slow", "500-after", "drop-before", "drop-after", "halved")
"""A number: that answer, and nothing is done; ``-after``: it is done all the same. ``drop``: the connection ends; ``halved``: midway."""

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """With the bucket."""
    query: str
    copies: bool
    conditional: bool
    fault: str | None

    @property
    def kind(self) -> str:
        """What it is to S3's price list, more or less."""
        if self.method == "GET":
            return "list" if "list-type" in self.query else "get"
        if self.method == "PUT":
            return "copy" if self.copies else "create" if self.conditional else "put"
        return {"POST": "delete", "HEAD": "head"}.get(self.method, self.method)


@dataclass
class S3Server:
    """See the module. ``choose``: the fault for a request, or None."""

    requests: list[Request] = field(default_factory=list)
    choose: Callable[[Request], str | None] = lambda request: None
    slow_seconds: float = 0.05
    knows_conditions: bool = True

    def __post_init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> Remote:
        """A new bucket. The servers of a process share what moto holds, so its name is unique to the process."""
        name = f"bucket-{next(_NUMBERS)}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).read()
        self.requests.clear()
        return Remote(f"s3://{name}")

    def kinds(self) -> Counter[str]:
        return Counter(request.kind for request in self.requests)

    def faults(self) -> int:
        return sum(request.fault is not None for request in self.requests)

    @contextmanager
    def faulty(self, rate: float, seed: int, kinds: tuple[str, ...] = FAULTS) -> Iterator[None]:
        """Faults at random, as long as this lasts."""
        rng = random.Random(seed)
        self.choose = lambda request: rng.choice(kinds) if rng.random() < rate else None
        try:
            yield
        finally:
            self.choose = lambda request: None

    def _serve(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        request = Request(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ.get("QUERY_STRING", ""),
            "HTTP_X_AMZ_COPY_SOURCE" in environ,
            "HTTP_IF_NONE_MATCH" in environ,
            None,
        )
        fault = self.choose(request)
        self.requests.append(Request(request.method, request.path, request.query, request.copies, request.conditional, fault))
        if not self.knows_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault == "slow":
            time.sleep(self.slow_seconds)  # noqa: TID251 - the fault
        if fault == "drop-before":
            self._drop(environ)
        if fault is not None and fault.isdigit():
            return self._refuse(start, fault)
        status, headers, answer = self._work(environ)
        if fault == "500-after":
            return self._refuse(start, "500")
        if fault == "drop-after":
            self._drop(environ)
        if fault == "halved" and request.method == "GET" and len(answer) > 1:
            head = "".join(f"{name}: {value}\r\n" for name, value in headers)
            environ["werkzeug.socket"].sendall(f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + answer[: len(answer) // 2])
            self._drop(environ)
        start(status, headers)
        return [answer]

    def _work(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        answered: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], failure: Any = None) -> None:
            answered[:] = [status, headers]

        with self._one_at_a_time:
            chunks = self._app(environ, start)
            answer = b"".join(chunks)
        return answered[0], answered[1], answer

    @staticmethod
    def _refuse(start: Callable[..., Any], status: str) -> Iterable[bytes]:
        code = {"403": "AccessDenied", "409": "ConditionalRequestConflict", "503": "SlowDown"}.get(status, "InternalError")
        body = f"<Error><Code>{code}</Code></Error>".encode()
        start(f"{status} Refused", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    @staticmethod
    def _drop(environ: dict[str, Any]) -> None:
        environ["werkzeug.socket"].shutdown(2)
        raise ConnectionError("dropped as the test asked for")
