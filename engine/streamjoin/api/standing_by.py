"""Waits until the driver at work is gone: the shell around ``controlplane.standby``, with its connection, its clock and the log.

Always holds: until the claim it reads the newest entry of the log and nothing else, and writes nothing to the storage.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

from streamjoin.api.loop import Reason, Standing
from streamjoin.controlplane.fingerprint import join_changes
from streamjoin.controlplane.standby import (
    Ask,
    Beat,
    Began,
    Broken,
    Claim,
    Claimed,
    Event,
    Farewell,
    Found,
    Instruction,
    Look,
    Outrun,
    Phase,
    Ready,
    Report,
    Standby,
    Ticked,
    Warm,
)
from streamjoin.epoch.ports import Runner
from streamjoin.job import Job
from streamjoin.serve.standbys import PATH
from streamjoin.state.log import CommitLog, Superseded, read_latest
from streamjoin.state.storage import Storage

CONNECT_SECONDS = 2.0
POLL_SECONDS = 0.1
"""How soon a request to stop is noticed, and workers that are ready."""


class Connection:
    """To the driver at work; a thread listens to what it says."""

    def __init__(self, ask: Ask, name: str, *, hands_over: bool) -> None:
        """``name``: the standby's. ``hands_over``: whether a driver that was stopped leaves the join to it."""
        self._ask, self._name, self._hands_over = ask, name, hands_over
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._listen, name="driver at work", daemon=True).start()

    def heard(self, seconds: float) -> list[Event]:
        """What has come, for which it waits so long at most. Broken is the last."""
        try:
            return [self._events.get(timeout=seconds)]
        except queue.Empty:
            return []

    def report(self, ready: int) -> None:
        """Say how many workers here are ready; whoever dies meanwhile need not know."""
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self._connected()) as connection:
            self._request(connection, ready=ready)
            connection.getresponse().read()

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _connected(self) -> http.client.HTTPConnection:
        url = urlsplit(self._ask.address)
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=CONNECT_SECONDS)

    def _request(self, connection: http.client.HTTPConnection, **more: Any) -> None:
        connection.request("GET", f"{PATH}?{urlencode({'of': self._ask.writer, 'name': self._name, **more})}")

    def _listen(self) -> None:
        try:
            with contextlib.closing(self._connected()) as connection:
                self._request(connection)
                self._socket = connection.sock
                connection.sock.settimeout(None)  # silence is the machine's to judge
                response = connection.getresponse()
                # Another program may have the port by now, or another driver.
                for line in response if response.status == http.HTTPStatus.OK else ():
                    self._events.put(_event(json.loads(line), self._hands_over))
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            pass
        finally:
            self._events.put(Broken())


def _event(said: dict[str, Any], hands_over: bool) -> Event:
    ended = said.get("ended")
    if ended is None:
        return Beat(int(said["workers"]))
    return Farewell(ended == Reason.FAILED or (hands_over and ended == Reason.STOPPED))


class StandingBy:
    """See the module. ``took_over`` is called when this driver has claimed the log of one that it has watched."""

    def __init__(
        self,
        job: Job,
        storage: Storage,
        log: CommitLog,
        runner: Runner,
        *,
        stop: threading.Event,
        hands_over: bool,
        tell: Callable[[Standing], None],
        took_over: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hands_over``: whether the join goes on here when the driver at work is asked to stop."""
        self._job, self._storage, self._log, self._runner = job, storage, log, runner
        self._stop, self._hands_over, self._tell, self._took_over = stop, hands_over, tell, took_over
        self._clock = clock
        self._machine = Standby()
        self._connection: Connection | None = None
        self._told: Standing | None = None

    def wait(self) -> Reason | None:
        """Return once the log is this driver's, or with the reason why there is nothing more to do. Raises StorageError, EpochFailed where
        workers cannot be started, and CheckpointMismatch."""
        machine = self._machine
        try:
            self._happened(Began())
            while machine.phase not in (Phase.ACTIVE, Phase.ENDED) and not self._stop.is_set():
                self._show()
                for event in self._heard() or (Ticked(),):
                    self._happened(event)
                if self._runner.ready != machine.ready:
                    self._happened(Ready(self._runner.ready))
        finally:
            self._hang_up()
        if machine.phase is Phase.ACTIVE:
            return None
        self._show()
        return Reason.ELSEWHERE if machine.phase is Phase.ENDED else Reason.STOPPED

    def _heard(self) -> Sequence[Event]:
        if self._connection is None:
            self._stop.wait(POLL_SECONDS)
            return ()
        return self._connection.heard(POLL_SECONDS)

    def _happened(self, event: Event) -> None:
        if isinstance(event, Broken):
            self._hang_up()
        for instruction in self._machine.handle(event, self._clock()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Look():
                self._happened(self._found())
            case Ask():
                self._hang_up()
                self._connection = Connection(instruction, self._log.writer, hands_over=self._hands_over)
            case Report(ready):
                if self._connection is not None:
                    self._connection.report(ready)
            case Warm(workers):
                self._runner.request(workers)
            case Claim(after):
                self._show()
                self._happened(self._claimed(after))

    def _found(self) -> Found:
        latest = read_latest(self._storage)
        if latest is None:
            return Found(0)
        join_changes(self._job, latest.checkpoint, self._storage.url)  # better now than when it is to take over
        return Found(latest.incarnation, latest.writer, latest.address, latest.sequence)

    def _claimed(self, after: int) -> Claimed | Outrun:
        self._hang_up()
        was_heard = self._machine.workers is not None
        try:
            self._log.claim_after(after)
        except Superseded:
            return Outrun()
        if was_heard:
            self._took_over()
        return Claimed()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _show(self) -> None:
        machine = self._machine
        now = Standing(machine.phase, machine.watched.writer, machine.workers, machine.ready)
        if now != self._told and machine.phase is not Phase.LOOKING:
            self._told = now
            self._tell(now)
