"""The state of a run, for pages that show it: one JSON object of sections, whole or as server-sent events of the sections that change.

Always holds: the object is made only while somebody asks. However many clients follow, and however short epochs are, it is made once in
``PAUSE_SECONDS`` for all of them. The thread that runs epochs never waits for it. A client that follows gets the last state of each
section.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from streamjoin.serve.admission import Content, Refused, Request, Stream
from streamjoin.serve.event_stream import CONTENT_TYPE, Outlet

PAUSE_SECONDS = 0.5
"""Between two events at least."""
BEAT_SECONDS = 2.0
"""And at most: clocks move, and plans, while no epoch ends."""
SEND_SECONDS = 10.0
"""A client that does not take an event in this time is cut off."""
LAST_SECONDS = 5.0
"""How long the end of the run waits for those who are told of it."""
MOST_FOLLOWERS = 32
"""The most followers at once; each has a thread."""
MAY_WRITE = "mayWrite"
"""The section that is of the client, not of the run: whether it may put plans."""

NO_STORE = {"Cache-Control": "no-store"}

Sections = Mapping[str, bytes]


class Board:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        observe: Callable[[], Mapping[str, Any]],
        *,
        pause_seconds: float = PAUSE_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``observe``: the sections, by name, as ``json`` writes them; called by one thread at a time."""
        self._observe, self._clock = observe, clock
        self._pause, self._beat = pause_seconds, beat_seconds
        self._changed = threading.Condition()
        self._version = 0
        self._followers = 0
        self._is_over = False
        self._building = threading.Lock()
        self._built: tuple[int, float, Sections] = (-1, float("-inf"), {})
        """Of which version, when, and what."""

    def changed(self) -> None:
        """Something has changed. Returns at once."""
        with self._changed:
            self._version += 1
            if self._followers:
                self._changed.notify_all()

    def finish(self) -> None:
        """The run is over: nobody is told anything more, once all who follow have been told that."""
        with self._changed:
            self._version += 1
            self._is_over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._followers, LAST_SECONDS)

    def answer(self, request: Request) -> Content | Stream:
        """``GET /v1/live``. Raises Refused where too many follow."""
        own = {MAY_WRITE: json.dumps(request.may_write).encode()}
        if request.method == "GET" and CONTENT_TYPE in request.accept:
            if self._followers >= MOST_FOLLOWERS:
                text = f"{request.path}: {MOST_FOLLOWERS} follow already; close a page, or ask without events"
                raise Refused(503, text, Retry_After="5")
            return Stream(CONTENT_TYPE, lambda outlet: self._follow(outlet, own, request.is_gone), NO_STORE)
        _, sections = self._sections(0.0)
        return Content(("application/json", _object({**sections, **own}) + b"\n"), NO_STORE)

    def _follow(self, outlet: Outlet, own: Sections, is_gone: Callable[[], bool]) -> None:
        sent: Sections = {}
        with self._changed:
            self._followers += 1
        try:
            while True:
                is_over = self._is_over
                version, found = self._sections(self._pause)
                sections = {**found, **own}
                new = {name: data for name, data in sections.items() if sent.get(name) != data}
                if is_gone() or not outlet.send(b"event: live\ndata: %s\n\n" % _object(new), SEND_SECONDS):
                    return
                sent = sections
                if is_over:
                    outlet.send(b"event: end\ndata: {}\n\n", LAST_SECONDS)
                    return
                self._await(version)
        except OSError:
            return
        finally:
            with self._changed:
                self._followers -= 1
                self._changed.notify_all()

    def _await(self, version: int) -> None:
        """Until there is something newer or clocks are to move, but for a pause at least; and until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, self._pause)
            self._changed.wait_for(lambda: self._version != version, self._beat - self._pause)

    def _sections(self, young_seconds: float) -> tuple[int, Sections]:
        """What is observed now, or was so lately that it serves still, unless the run is over; and of which version that is."""
        with self._building:
            version, at, found = self._built
            if self._is_over or version < 0 or self._clock() - at >= young_seconds:
                version = self._version
                found = {name: _encoded(value) for name, value in self._observe().items()}
                self._built = version, self._clock(), found
            return version, found


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _object(sections: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), data) for name, data in sections.items()) + b"}"
