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
STANDS_BY = "standby"
"""The state of a driver that waits until the one at work is gone."""
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
        self._here: dict[object, str] = {}
        """By connection, the name of the standby."""
        self._ready: dict[str, int] = {}
        """Of each standby that is here, by its name, the workers that it has ready."""
        self._ended: str | None = None

    @property
    def told(self) -> dict[str, Any] | None:
        """For the health: how far the standby is that is furthest. None: there is none."""
        with self._changed:
            ready = max((self._ready.get(name, 0) for name in self._here.values()), default=None)
        if ready is None:
            return None
        wanted = max(1, self._workers())
        return {"state": "Ready" if ready >= wanted else "Starting", "workers": ready}

    def answer(self, parameters: str) -> Stream:
        """What a standby is told; or, where it says how many of its workers are ready, a line and no more. Raises Refused for a question to
        another driver."""
        given = {name: values[-1] for name, values in parse_qs(parameters).items()}
        if given.get("of") != self._writer():
            raise Refused(404, f"{PATH}: this is not the driver that is asked for")
        name, ready = given.get("name", ""), given.get("ready", "")
        if ready.isdecimal():
            with self._changed:
                self._ready |= {name: int(ready)} if name in self._here.values() else {}
        return Stream("application/x-ndjson", lambda outlet: self._report(outlet) if ready else self._tell(outlet, name))

    def finish(self, ended: str) -> None:
        """The run is over; returns once all standbys know, or have had time to."""
        with self._changed:
            self._ended = ended
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._here, LAST_SECONDS)

    def _report(self, outlet: Outlet) -> None:
        outlet.send(_line(workers=self._workers()), SEND_SECONDS)

    def _tell(self, outlet: Outlet, name: str) -> None:
        this = object()
        with self._changed:
            self._here[this] = name
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
                del self._here[this]
                self._ready = {each: ready for each, ready in self._ready.items() if each in self._here.values()}
                self._changed.notify_all()


def _line(**facts: Any) -> bytes:
    return json.dumps(facts).encode() + b"\n"
