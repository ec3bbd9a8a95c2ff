"""What the page of all StreamJoins may change: a StreamJoin's ``spec.suspend``, for who shows the page's token.

Always holds: without a token nobody changes anything; only StreamJoins that this operator looks after are changed, of them only this
field, and only while this operator may write (its Lease). The token's file is read anew at each request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Protocol

from streamjoin.bearer import MOST_BYTES, Token, TokenError, only_token
from streamjoin_operator.api import STREAM_JOIN, TIMEOUT_SECONDS, Api, ApiError
from streamjoin_operator.queue import Key

MANAGER = "streamjoin-page"
"""The field manager of what the page changes: it tells who did."""
MOST_BODY_BYTES = 1024
SECONDS = 2 * TIMEOUT_SECONDS
"""For both requests that a change may take."""

log = logging.getLogger("streamjoin.page")


class Refused(Exception):  # noqa: N818 - an answer rather than an error
    """The request is answered by this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class PageToken(Token):
    """The file that holds the token; no file: nobody may change anything."""

    whence = "what the Secret of operator.pageTokenSecret holds"

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def is_there(self) -> bool:
        """Whether anybody may change anything."""
        return bool(self._path)

    def may(self, authorization: str | None) -> bool:
        """Whether this value of an ``Authorization`` header lets anything be changed."""
        try:
            self.require(authorization)
        except Refused:
            return False
        return True

    def require(self, authorization: str | None) -> None:
        """Raises Refused unless this value of an ``Authorization`` header shows the token."""
        if not self._path:
            raise Refused(403, "this page only shows; to suspend from it, give operator.pageTokenSecret of the operator's chart a Secret")
        try:
            is_admitted = self.admits(authorization)
        except TokenError as error:
            raise Refused(503, f"nobody is let in: {error}") from error
        if not is_admitted:
            what = "the token is not the right one" if authorization else "there is no token"
            raise Refused(401, f"{what}; send Authorization: Bearer and {self.whence}")

    def _read(self) -> bytes:
        try:
            token = only_token(Path(self._path))
        except OSError as error:
            raise TokenError(f"the token's file cannot be read ({error.strerror}); make the Secret of operator.pageTokenSecret") from error
        if token is None:
            raise TokenError(f"the Secret of operator.pageTokenSecret must hold one token, of 1 to {MOST_BYTES} bytes")
        return token


class Watched(Protocol):
    """What is needed of ``seen.Seen``, in the loop's thread."""

    bodies: dict[Key, Any]

    def saw(self, body: Any) -> Key: ...


class Suspending:
    """Suspends and resumes. ``switch`` may be called by any thread but the loop's, in which ``api`` and ``seen`` are used."""

    def __init__(self, api: Api, seen: Watched, token: PageToken) -> None:
        """To be made within the event loop."""
        self.token = token
        self._api, self._seen = api, seen
        self._loop = asyncio.get_running_loop()

    def switch(self, namespace: str, name: str, body: bytes) -> dict[str, Any]:
        """What was done. ``body``: ``{"suspend": true or false}``. Raises Refused."""
        suspend = _wish(body)
        try:
            return asyncio.run_coroutine_threadsafe(self._switch((namespace, name), suspend), self._loop).result(SECONDS)
        except (TimeoutError, CancelledError, RuntimeError) as error:
            text = "the operator is ending, or the API server does not answer; look at the StreamJoin, and try again"
            raise Refused(503, text) from error

    async def _switch(self, key: Key, suspend: bool) -> dict[str, Any]:
        namespace, name = key
        known = self._seen.bodies.get(key)
        if known is None:
            raise Refused(404, f"{namespace}/{name}: this operator looks after no such StreamJoin")
        if known["metadata"].get("deletionTimestamp"):
            raise Refused(409, f"{namespace}/{name}: is being deleted")
        # Of this very object: not of one that somebody has made anew by this name since.
        patch = {"metadata": {"uid": known["metadata"]["uid"]}, "spec": {"suspend": suspend}}
        try:
            body = await self._api.patch(STREAM_JOIN, namespace, name, patch, manager=MANAGER)
        except ApiError as error:
            status = error.status if error.status in (403, 404, 409, 422) else 503
            raise Refused(status, f"{namespace}/{name}: the API server has refused it: {error}") from error
        log.info("%s/%s: %s by who has the page's token", namespace, name, "suspended" if suspend else "resumed")
        self._seen.saw(body)
        return {"namespace": namespace, "name": name, "suspended": bool(body["spec"].get("suspend"))}


def _wish(body: bytes) -> bool:
    """Raises Refused."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.keys() != {"suspend"} or not isinstance(value["suspend"], bool):
        shown = body[:100].decode(errors="replace")
        raise Refused(400, f'the body {shown!r} must be {{"suspend": true}} or {{"suspend": false}}')
    return bool(value["suspend"])
