"""The driver's end of the resident workers: who is there, which task each has, and what becomes of an epoch when one of them dies.

A *place* is room for one worker process; the hosts (Spark's tasks, or a test's processes) bring a process to each, and another one when it
dies. A process calls the driver and keeps the connection open: its end is the first that the driver hears of a death. Workers are numbers,
which the driver gives. A worker gets a place with its first work and stays there, unless other workers go and leave so much room that an
executor is not needed any more.

``roster`` decides all of this; here are the connections, the clock and the waits. Always holds:

- An attempt ends when every process that has a part in it has answered, or is gone. So when it has failed or was cancelled, nothing of it
  runs any more, except in a process that cannot be reached, whose files no commit will name.
- An attempt that follows another goes to the same processes, or fails.
- No wait is without a deadline: a process that is silent for ``SILENT_BEATS`` is taken for dead and its place is brought anew; an attempt
  of which nothing moves within the epoch's deadline fails, and those that owe it an answer are brought anew likewise; a place that stays
  empty for ``patience_seconds`` lends its task to another.

Locks: the roster is guarded by one condition, ``changed``; nothing that can block is called while it is held. What a process is told is
told under it, so that a process hears everything in the order in which it was decided.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from streamjoin.endpoint import endpoint
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec, Shared
from streamjoin.runner import events
from streamjoin.runner.attempt import Attempt
from streamjoin.runner.control import Connection, ControlServer
from streamjoin.runner.messages import Assignment, decode, encode
from streamjoin.runner.process import Process, Trial
from streamjoin.runner.reading import Reading
from streamjoin.runner.roster import Roster
from streamjoin.runner.security import Gate, Security

BEAT_SECONDS = 1.0
_log = logging.getLogger("streamjoin.workers")


class Hosts(Protocol):
    """The part that brings processes to places. Methods return at once."""

    def bring(self, place: int) -> None:
        """Have a process at this place, and another whenever it dies, until :meth:`end`."""

    def end(self, place: int) -> None:
        """The place is not needed any more; its process was told to end."""

    def replace(self, place: int) -> None:
        """The place's process hangs, or cannot be reached: kill it, and bring another."""

    def leave(self, place: int, executor: str) -> None:
        """The place's executor is to go: bring nothing to it any more. The place stays until :meth:`end`, unless it dies before."""

    def lost(self) -> str | None:
        """The reason why no process will ever come again. None: one may come."""


class Pool:
    """See the module."""

    def __init__(
        self,
        hosts: Callable[[Pool], Hosts],
        security: Security,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        patience_seconds: float = 20.0,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        """Serves at once; ``hosts`` gets the pool, whose ``address`` and ``security`` workers need. Raises OSError."""
        self.security = security
        self._patience = patience_seconds
        self._beat_seconds = beat_seconds
        self.changed = threading.Condition()
        self._roster = Roster(time.monotonic())
        self._connections: dict[Process, Connection] = {}
        self._closed = threading.Event()
        self.gate = Gate()
        self._server = ControlServer(security, self.gate, lambda connection: _Caller(self, connection).heard, host=host, port=port)
        self.address = endpoint(host, self._server.port)
        self.hosts = hosts(self)
        self._reading = Reading()
        self._watch = threading.Thread(target=self._beat, name="watch", daemon=True)
        self._watch.start()
        # After the server has: it ends itself with the process, and would wait for workers that nobody has told to go.
        atexit.register(self.close)

    def happened(self, event: events.Event) -> None:
        """Tell the roster, and do as it says."""
        with self.changed:
            commands = self._roster.handle(event, time.monotonic())
            for command in commands:
                match command:
                    case events.Tell(process, message):
                        self._connections[process].say(encode(message))
                    case events.HangUp(process):
                        self._connections[process].close()
                    case events.Wake():
                        self.changed.notify_all()
        for command in commands:
            match command:
                case events.Bring(place):
                    self.hosts.bring(place)
                case events.LetGo(place):
                    self.hosts.end(place)
                case events.Leave(place, executor):
                    self.hosts.leave(place, executor)
                case events.Replace(place):
                    self.hosts.replace(place)
                case events.Warn(text):
                    _log.warning("%s", text)

    @contextmanager
    def _locked(self) -> Iterator[Roster]:
        with self.changed:
            yield self._roster

    def want(self, count: int) -> None:
        """Have so many places, and others only where workers have them."""
        self.happened(events.Wanted(count))

    @property
    def connected(self) -> int:
        """The number of places that have a process that is ready to work."""
        with self._locked() as state:
            return len(state.here)

    @property
    def executors(self) -> dict[int, str]:
        """The executor of each worker that has its process."""
        with self._locked() as state:
            processes = {worker: state.process_of(worker) for worker in state.place_of}
        return {worker: process.hello.executor for worker, process in processes.items() if process is not None}

    @property
    def leaving(self) -> dict[int, float]:
        """The workers whose executors were told to go, and the seconds that they have left."""
        with self._locked() as state:
            return state.leaving(time.monotonic())

    @property
    def pids(self) -> dict[int, int]:
        """The process id of the connected process, by place."""
        with self._locked() as state:
            return {process.hello.place: process.hello.pid for process in state.here}

    def reason(self, place: int) -> str | None:
        """The reason why the last process that died at a place ended."""
        with self._locked() as state:
            return state.places[place].reason

    @property
    def absence(self) -> str | None:
        """Why processes do not come to places that have none, as far as something went wrong there."""
        with self._locked() as state:
            reasons = {place.absence for place in state.places.values() if place.process is None and place.absence is not None}
        return "; ".join(sorted(reasons)) or None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The workers that have yet to answer in the earliest attempt in flight."""
        with self._locked() as state:
            return state.current[0].owing if state.current else ()

    @property
    def moved_at(self) -> float:
        """When anything of any attempt last moved."""
        return self._roster.moved_at

    @property
    def settled(self) -> bool:
        """Whether an attempt may follow another (:attr:`streamjoin.runner.roster.Roster.is_settled`)."""
        with self._locked() as state:
            return state.is_settled

    def await_connected(self, count: int, seconds: float, least: int | None = None, stabilization_seconds: float = 0.0) -> int:
        """Wait until there are so many; or at least ``least``, where no other has come for so long; or the time is over.

        Returns how many there are. Raises EpochFailed when none will ever come."""
        deadline = time.monotonic() + seconds
        with self._locked() as state:
            while (now := time.monotonic()) <= deadline:
                if state.has_enough(count, count if least is None else least, stabilization_seconds, now):
                    break
                self._require_hosts()
                self.changed.wait(min(0.5, max(0.0, deadline - now)))
            return len(state.here)

    def restart(self, workers: Sequence[int]) -> None:
        """Begin with these workers and no others, wherever there are places; the workers of a former driver are forgotten."""
        self.happened(events.Restarted())
        self.want(len(workers))
        self.release(workers)

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        """Let go the places that these workers do not need, but so many if they are given."""
        self.happened(events.Released(tuple(workers), places))

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Attempt:
        """Begin an attempt at an epoch, task t on ``workers[t]``. Waits for workers that are not there. Raises EpochFailed."""
        if spec.follows is None:
            return self._begin(spec, *self._placed(spec, workers))
        with self._locked() as state:
            processes = state.following(spec.follows, len(workers))
        attempt = self._begin(spec, processes)
        if not processes:
            attempt.trial.failure = EpochFailed(f"epoch {spec.epoch}: epoch {spec.follows} is over")
        return attempt

    def _placed(self, spec: EpochSpec, workers: Sequence[int]) -> tuple[tuple[Process, ...], bool]:
        """By task, the process that gets it, and whether some are not the workers' own. Waits for those for ``patience_seconds``."""
        self.happened(events.Assigned(tuple(workers)))
        with self._locked() as state:
            while True:
                placed = state.processes_for(workers, self._patience, time.monotonic())
                if placed is not None and placed == tuple(map(state.process_of, workers)):
                    return placed, False
                self._require_hosts()
                if placed:
                    require_room(spec, placed)
                    return placed, True
                if placed is None:
                    self.changed.wait(0.5)
                    continue
                reasons = sorted({reason for place in state.places.values() if (reason := place.absence or place.reason) is not None})
                raise EpochFailed(f"epoch {spec.epoch}: no worker is there: {'; '.join(reasons) or 'none has called yet'}")

    def _begin(self, spec: EpochSpec, processes: tuple[Process, ...], is_lent: bool | None = None) -> Attempt:
        with self._locked() as state:
            trial = Trial(state.next_attempt(), spec.epoch, spec.deadline_seconds, processes, time.monotonic())
        attempt = Attempt(self, trial)
        if processes:
            addresses = tuple(process.address for process in processes)
            splits = self._reading.spread(spec.splits, list(dict.fromkeys(addresses)))
            assignment = Assignment(spec.with_shared(lambda shared: Shared(shared.identity, b"")), addresses, splits)
            shared: dict[str, Shared] = {}
            spec.with_shared(lambda each: shared.setdefault(each.identity, each))
            self.happened(events.Begun(trial, encode(assignment), shared, is_lent))
        return attempt

    def close(self) -> None:
        """End all workers. A process that ends does so by itself."""
        atexit.unregister(self.close)
        if not self._closed.is_set():
            self.release(())
            self._closed.set()
            self._server.close()

    def place_died(self, place: int, reason: str) -> None:
        """Called by the hosts: what kept the place has ended, with its process. The hosts bring it anew."""
        self.happened(events.PlaceDied(place, reason))

    def greet(self, process: Process, connection: Connection) -> None:
        """A process has called. Called in the thread of the connections, as is :meth:`miss`."""
        with self.changed:
            self._connections[process] = connection
        self.happened(events.Greeted(process))

    def miss(self, process: Process) -> None:
        """A process's connection is over."""
        self.happened(events.Missed(process))
        with self.changed:
            del self._connections[process]

    def _require_hosts(self) -> None:
        lost = self.hosts.lost()
        if lost is not None:
            raise EpochFailed(lost, permanent=True)

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_seconds):
            self.happened(events.Ticked(self._beat_seconds))


def require_room(spec: EpochSpec, placed: Sequence[Process]) -> None:
    """Raises EpochFailed where a process would hold more than it may, as it does the tasks of others that are missing."""
    held = dict.fromkeys(placed, 0.0)
    for task, process in enumerate(placed):
        held[process] += spec.filling.get(task, 0.0)
    fullest = max(held.values())
    if fullest > 1:
        why = f"{len(held)} of {len(placed)} workers are there, and have no room for what the others hold (tau would be {fullest:.2f})"
        raise EpochFailed(f"epoch {spec.epoch}: {why}", worker_died=True)


class _Caller:
    """Hears a worker, from its hello to the connection's end."""

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool, self._connection = pool, connection
        self._process: Process | None = None
        connection.over.add_done_callback(self._closed)

    def heard(self, message: bytes) -> None:
        if self._process is not None:
            self._pool.happened(events.Said(self._process, decode(message)))
        else:
            self._process = Process(decode(message))
            self._pool.greet(self._process, self._connection)

    def _closed(self, over: object) -> None:
        if self._connection.failure is not None:
            _log.error("a worker's connection was ended, as what it said could not be taken", exc_info=self._connection.failure)
        if self._process is not None:
            self._pool.miss(self._process)
