"""``GET /standby``: a driver tells its standbys that it is alive, for as long as it is, and how it has ended.

Each line of the answer is a JSON object: ``{"workers": 4}`` twice a second, and at last ``{"ended": "idle"}``, unless the process dies.

Always holds: a standby is answered only by the driver whose entry it has read in the log, never by another one at the same port. A standby
that is slow holds up nobody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from streamjoin.serve.admission import Refused, Stream
from streamjoin.serve.event_stream import Outlet

PATH = "/standby"
BEAT_SECONDS = 0.5
SEND_SECONDS = 2.0
"""A standby that does not take a line in this time is left; it asks again."""
LAST_SECONDS = 5.0
"""How long the end of the run waits for those who are told of it."""


class Standbys:
    """See the module. Any thread may call it."""

    def __init__(self, writer: Callable[[], str], workers: Callable[[], int]) -> None:
        """``writer``: of this driver's entries; ``workers``: of its plan, 0 while it has none."""
        self._writer, self._workers = writer, workers
        self._changed = threading.Condition()
        self._ready: dict[object, int] = {}
        """Of each standby that is connected, the workers that it has ready."""
        self._ended: str | None = None

    @property
    def told(self) -> dict[str, Any] | None:
        """For the health: how far the standby is that is furthest. None: there is none."""
        with self._changed:
            ready = max(self._ready.values(), default=None)
        if ready is None:
            return None
        wanted = max(1, self._workers())
        return {"state": "Ready" if ready >= wanted else "Starting", "workers": ready}

    def answer(self, parameters: str) -> Stream:
        """Raises Refused for a question to another driver."""
        given = parse_qs(parameters)
        if given.get("of") != [self._writer()]:
            raise Refused(404, f"{PATH}: this is not the driver that is asked for")
        ready = given.get("ready", ["0"])[0]
        return Stream("application/x-ndjson", lambda outlet: self._tell(outlet, int(ready) if ready.isdecimal() else 0))

    def finish(self, ended: str) -> None:
        """The run is over; returns once all standbys know, or have had time to."""
        with self._changed:
            self._ended = ended
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._ready, LAST_SECONDS)

    def _tell(self, outlet: Outlet, ready: int) -> None:
        this = object()
        with self._changed:
            self._ready[this] = ready
        try:
            while self._ended is None:
                if not outlet.send(_line(workers=self._workers()), SEND_SECONDS):
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._ended is not None, BEAT_SECONDS)
            outlet.send(_line(ended=self._ended), LAST_SECONDS)
        except OSError:
            return
        finally:
            with self._changed:
                del self._ready[this]
                self._changed.notify_all()


def _line(**facts: Any) -> bytes:
    return json.dumps(facts).encode() + b"\n"
