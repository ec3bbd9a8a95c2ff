"""Waits until the driver at work is gone: the shell around ``controlplane.standby``, with its connection, its clock and the log.

Always holds: until the claim it reads the newest entry of the log and nothing else, and writes nothing to the storage.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
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
    """To the driver at work; events come of what it says. Raises OSError where there can be none."""

    def __init__(self, ask: Ask) -> None:
        url = urlsplit(ask.address)
        self._socket = socket.create_connection((url.hostname, url.port), CONNECT_SECONDS)
        self._received = b""
        self._is_answered = False
        query = urlencode({"of": ask.writer, "ready": ask.ready})
        self._socket.sendall(f"GET {PATH}?{query} HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n".encode())

    def heard(self, seconds: float, hands_over: bool) -> list[Event]:
        """What has come, for which it waits so long at most. ``hands_over``: whether a driver that was stopped leaves the join to us."""
        try:
            if not select.select([self._socket], [], [], seconds)[0]:
                return []
            if not (data := self._socket.recv(1 << 16)):
                return [Broken()]
        except OSError:
            return [Broken()]
        self._received += data
        if not self._is_answered:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return []
            if head.split(maxsplit=2)[1:2] != [b"200"]:
                return [Broken()]  # another program has the port by now, or another driver
            self._is_answered, self._received = True, rest
        *lines, self._received = self._received.split(b"\n")
        return [_event(json.loads(line), hands_over) for line in lines]

    def close(self) -> None:
        self._socket.close()


def _event(said: dict[str, object], hands_over: bool) -> Event:
    ended = said.get("ended")
    if ended is None:
        return Beat(int(str(said["workers"])))
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
        connect: Callable[[Ask], Connection] = Connection,
    ) -> None:
        """``hands_over``: whether the join goes on here when the driver at work is asked to stop."""
        self._job, self._storage, self._log, self._runner = job, storage, log, runner
        self._stop, self._hands_over, self._tell, self._took_over = stop, hands_over, tell, took_over
        self._clock, self._connect = clock, connect
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
        return self._connection.heard(POLL_SECONDS, self._hands_over)

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
                self._ask(instruction)
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
        return Found(latest.incarnation, latest.writer, latest.address)

    def _ask(self, ask: Ask) -> None:
        """Connect anew. What the connection before has said last, a farewell perhaps, counts."""
        try:
            connection = self._connect(ask)
        except OSError:
            self._happened(Broken())
            return
        last = self._connection.heard(0.0, self._hands_over) if self._connection is not None else []
        self._hang_up()
        self._connection = connection
        for event in last:
            if isinstance(event, Farewell):
                self._happened(event)

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
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _show(self) -> None:
        machine = self._machine
        now = Standing(machine.phase, machine.watched.writer, machine.workers, machine.ready)
        if now != self._told and machine.phase is not Phase.LOOKING:
            self._told = now
            self._tell(now)
