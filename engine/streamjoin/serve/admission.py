"""Decides who may ask what of an HTTP API, before a request's body is read; and the types of requests and answers, without HTTP's
details.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamjoin.bearer import Token, TokenError
from streamjoin.serve.messages import ErrorAnswer, Message

if TYPE_CHECKING:
    from streamjoin.serve.event_stream import Outlet

OPEN_METHODS = ("GET", "HEAD")
"""What anybody may ask where there is no token; all else, only this machine."""

_OF_METHODS = {"/v1/savepoints/{name}": "savepoints"}
"""What a resource is of, for messages, if its methods do not say that."""


@dataclass(frozen=True)
class Request:
    """What a client asks, once it was admitted."""

    method: str
    path: str
    body: bytes = b""
    parameters: str = ""
    """What is behind the path's question mark."""
    accept: str = ""
    """These two are headers."""
    last_event_id: str | None = None
    is_gone: Callable[[], bool] = lambda: False
    """Whether the client has closed its connection."""
    may_write: bool = False
    """Whether the client would be let put plans."""


@dataclass(frozen=True)
class Answer:
    """A status and a message."""

    status: int
    message: Message
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> tuple[str, bytes]:
        """The media type and the bytes of the answer."""
        return "application/json", self.message.model_dump_json(by_alias=True).encode() + b"\n"


@dataclass(frozen=True)
class Content:
    """A success that is no message."""

    content: tuple[str, bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Stream:
    """A success that goes on: ``send`` writes all that follows the headers, and returns when that is over."""

    content_type: str
    send: Callable[[Outlet], None]
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):  # noqa: N818 - an answer rather than an error
    """The request is answered by this."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.answer = Answer(status, ErrorAnswer(error=error), {name.replace("_", "-"): value for name, value in headers.items()})


class Admission:
    """Lets requests pass for the paths and methods that there are, from those who show the token."""

    def __init__(self, methods: Mapping[str, tuple[str, ...]], token: Token | None, *, private: Collection[str] = ()) -> None:
        """``methods``: by path, whose last part may be any name, as in ``/v1/queries/{join}``. ``private``: paths where no method is open
        to anybody."""
        self._methods, self._token, self._private = methods, token, private

    def admit(self, method: str, path: str, authorization: str | None, *, address: str, host: str) -> None:
        """Let a request pass before its body is read, or raise Refused.

        ``address``: the one that is listened on; ``host``: the request's ``Host``, empty where it has none.
        """
        folder = path.rpartition("/")[0]
        resource = path if path in self._methods else next((each for each in self._methods if each.startswith(f"{folder}/{{")), "")
        if not resource:
            raise Refused(404, f"{path}: there is no such resource; there are {', '.join(self._methods)}")
        if method not in self._methods[resource]:
            allowed = ", ".join(self._methods[resource])
            raise Refused(405, f"{method} {path}: the methods here are {allowed}", Allow=allowed)
        if self._token is None:
            if method in OPEN_METHODS and resource not in self._private:
                return
            if not _is_loopback(address):
                what = _OF_METHODS.get(resource, "plans" if method == "PUT" else "queries")
                raise Refused(
                    403,
                    f"{method} {path}: without a token {what} are taken from this machine only, and {address} is open to others; "
                    "start the run with --api-token-file, or without --metrics-address",
                )
            if host and not _is_loopback(_without_port(host)):  # a page in a browser here that was told that its own name is this machine
                raise Refused(403, f"{method} {path}: without a token the Host must be this machine (localhost, 127.0.0.1), not {host!r}")
            return
        try:
            admitted = self._token.admits(authorization)
        except TokenError as error:
            raise Refused(503, f"nobody is let in: {error}") from error
        if not admitted:
            what = "the token is not the right one" if authorization else "there is no token"
            text = f"{method} {path}: {what}; send Authorization: Bearer and {self._token.whence}"
            raise Refused(401, text, WWW_Authenticate='Bearer realm="streamjoin"')


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
