"""The driver's end of the resident workers: who is there, which task each has, and what becomes of an epoch when one of them dies.

A *place* is room for one worker process; the hosts (Spark's tasks, or a test's processes) bring a process to each, and another one when it
dies. A process calls the driver and keeps the connection open: its end is the first that the driver hears of a death. Workers are numbers,
which the driver gives. A worker gets a place with its first work and stays there, unless other workers go and leave so much room that an
executor is not needed any more.

Always holds:

- At most one process of a place is connected, the newest.
- An attempt ends when every process that has a part in it has answered, or is gone. So when it has failed or was cancelled, nothing of it
  runs any more, except in a process that cannot be reached, whose files no commit will name.
- An attempt that follows another goes to the same processes, or fails.
- No wait is without a deadline: a process that is silent for ``SILENT_BEATS`` is taken for dead and its place is brought anew; an attempt
  of which nothing moves within the epoch's deadline fails, and those that owe it an answer are brought anew likewise; a place that stays
  empty for ``patience_seconds`` lends its task to another.

Locks: all state is guarded by one condition, ``changed``; nothing that can block is called while it is held.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from streamjoin.endpoint import endpoint
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec, Shared
from streamjoin.runner.attempt import Attempt
from streamjoin.runner.control import Connection, ControlServer
from streamjoin.runner.messages import Assignment, Beat, End, Work, decode, encode
from streamjoin.runner.process import Place, Process
from streamjoin.runner.reading import Reading
from streamjoin.runner.security import Gate, Security

BEAT_SECONDS = 1.0
SILENT_BEATS = 15
"""Counted in the driver's own beats: a driver that slept has not missed any."""
_log = logging.getLogger("streamjoin.workers")


class Hosts(Protocol):
    """The part that brings processes to places. Methods return at once."""

    def bring(self, place: int) -> None:
        """Have a process at this place, and another whenever it dies, until :meth:`end`."""

    def end(self, place: int) -> None:
        """The place is not needed any more; its process was told to end."""

    def replace(self, place: int) -> None:
        """The place's process hangs, or cannot be reached: kill it, and bring another."""

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
        self._places: dict[int, Place] = {}
        self._numbers = itertools.count()
        self._attempts = itertools.count()
        self._place_of: dict[int, int] = {}
        """By worker."""
        self._lent = False
        """Some task of the last attempt was not done where it belongs."""
        self.current: list[Attempt] = []
        """The attempts in flight, in order."""
        self.moved_at = time.monotonic()
        """When anything of any attempt last moved."""
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

    def want(self, count: int) -> None:
        """Have at least so many places."""
        with self.changed:
            fresh = [next(self._numbers) for _ in range(count - len(self._places))]
            self._places |= {number: Place(number) for number in fresh}
        for number in fresh:
            self.hosts.bring(number)

    @property
    def connected(self) -> int:
        """The number of places that have a process that is ready to work."""
        with self.changed:
            return sum(place.process is not None for place in self._places.values())

    @property
    def pids(self) -> dict[int, int]:
        """The process id of the connected process, by place."""
        with self.changed:
            return {number: place.process.hello.pid for number, place in self._places.items() if place.process is not None}

    def reason(self, place: int) -> str | None:
        """The reason why the last process that died at a place ended."""
        with self.changed:
            return self._places[place].reason

    @property
    def absence(self) -> str | None:
        """Why processes do not come to places that have none, as far as something went wrong there."""
        with self.changed:
            reasons = {place.absence for place in self._places.values() if place.process is None and place.absence is not None}
        return "; ".join(sorted(reasons)) or None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The workers that have yet to answer in the earliest attempt in flight."""
        with self.changed:
            return self.current[0].owing if self.current else ()

    @property
    def settled(self) -> bool:
        """Whether every worker has its process and its task, so that an attempt may follow another; and none that is in flight is lost: who
        has done its part of that would go on from there, and need what is committed again."""
        with self.changed:
            lost = any(attempt.failure is not None or any(process.gone for process in attempt.processes) for attempt in self.current)
            return not lost and not self._lent and all(self._process_of(worker) is not None for worker in self._place_of)

    def await_connected(self, count: int, seconds: float) -> int:
        """Wait until there are so many, or the time is over; how many there are. Raises EpochFailed when none will ever come."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while True:
                there = sum(place.process is not None for place in self._places.values())
                if there >= count or time.monotonic() > deadline:
                    return there
                self._require_hosts()
                self.changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))

    def restart(self, workers: Sequence[int]) -> None:
        """Begin with these workers and no others, wherever there are places; the workers of a former driver are forgotten."""
        with self.changed:
            self._place_of.clear()
        self.want(len(workers))
        self.release(workers)

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Attempt:
        """Begin an attempt at an epoch, task t on ``workers[t]``. Waits for workers that are not there. Raises EpochFailed."""
        before = None
        if spec.follows is not None:
            with self.changed:
                before = next((one for one in self.current if one.epoch == spec.follows), None)
            processes = before.processes if before is not None and len(before.processes) == len(workers) else ()
            if not processes:
                return self._begin(spec, (), f"epoch {spec.follows} is over")
        else:
            processes = self._placed(spec, workers)
        return self._begin(spec, processes)

    def release(self, workers: Sequence[int]) -> None:
        """Let go the places that these workers do not need."""
        with self.changed:
            self._place_of = {worker: place for worker, place in self._place_of.items() if worker in workers}
            self._pack()
            used = set(self._place_of.values())
            spare = [number for number in self._places if number not in used]
            # Those that have a process are worth more; the newest go first.
            spare.sort(key=lambda number: (self._places[number].process is None, number))
            surplus = spare[max(0, len(workers) - len(used)) :]
            ended = [self._places.pop(number) for number in surplus]
            self.changed.notify_all()
        for place in ended:
            if place.process is not None:
                place.process.tell(End())
            self.hosts.end(place.number)

    def _pack(self) -> None:
        """Have the workers of an executor go on in processes of others, whose workers have gone, where those have room for all of them: an
        executor costs as much with one worker as with many. What they hold is read back there."""
        workers_on: defaultdict[str, list[int]] = defaultdict(list)
        spare_on: defaultdict[str, list[int]] = defaultdict(list)
        worker_at = {place: worker for worker, place in self._place_of.items()}
        for place in self._places.values():
            if place.process is None:
                continue
            executor = place.process.hello.executor
            if place.number in worker_at:
                workers_on[executor].append(worker_at[place.number])
            else:
                spare_on[executor].append(place.number)
        staying = sorted(workers_on, key=lambda executor: len(workers_on[executor]))
        while staying:
            emptiest, *staying = staying
            room = [(executor, number) for executor in reversed(staying) for number in spare_on[executor]]
            if len(room) < len(workers_on[emptiest]):
                return
            for worker, (executor, number) in zip(workers_on[emptiest], room, strict=False):
                self._place_of[worker] = number
                spare_on[executor].remove(number)

    def close(self) -> None:
        """End all workers. A process that ends does so by itself."""
        atexit.unregister(self.close)
        if not self._closed.is_set():
            self.release(())
            self._closed.set()
            self._server.close()

    def place_died(self, place: int, reason: str) -> None:
        """Called by the hosts: what kept the place has ended, with its process. The hosts bring it anew."""
        with self.changed:
            found = self._places.get(place)
            if found is not None and (found.process is not None or found.is_unexplained):
                found.died(reason)
                self._drop(found, reason)
                self.changed.notify_all()
            elif found is not None and not found.is_replaced:
                found.absence = reason
                _log.warning("no worker has come to place %d: %s; it is tried again", place, reason)
            if found is not None:
                found.is_replaced = False

    def greet(self, process: Process) -> None:
        """A process has called. Called in the thread of the connections, as are the next two."""
        process.tell(Beat())
        hello = process.hello
        with self.changed:
            place = self._places.get(hello.place)
            if place is None:  # it was let go meanwhile
                process.gone = True
                process.tell(End())
                process.hang_up()
                return
            if hello.died is not None:
                place.died(hello.died)
                _log.warning("the worker at place %d died: %s; another has taken its place", place.number, hello.died)
            if place.process is not None:
                self._drop(place, hello.died or "it called again")
            place.process, place.absence, place.is_replaced = process, None, False
            self.changed.notify_all()

    def miss(self, process: Process) -> None:
        """A process's connection is over."""
        with self.changed:
            place = self._places.get(process.hello.place)
            if place is not None and place.process is process:
                self._drop(place, None)
            process.gone = True
            self.changed.notify_all()

    def hear(self, process: Process, message: Any) -> None:
        """A process has said something."""
        with self.changed:
            if process.gone:  # it was given up, and is there again
                process.tell(End())
                return
            process.silent = 0
            if isinstance(message, Beat):
                if message.progress != process.progress:
                    process.progress = message.progress
                    for attempt in self.current:
                        attempt.moved()
            else:
                for attempt in self.current:
                    if attempt.number == message.attempt:
                        attempt.answered(process, message)
                        if not attempt.pending:  # who waits need not look at each answer
                            self.changed.notify_all()

    def _drop(self, place: Place, why: str | None) -> None:
        """Its process is gone; None: nobody has told why."""
        process, place.process = place.process, None
        if process is not None:
            process.gone = True
            place.empty_since = time.monotonic()
            place.is_unexplained = why is None
            for attempt in self.current:
                attempt.lost(process, place, why)

    def _process_of(self, worker: int) -> Process | None:
        place = self._places.get(self._place_of.get(worker, -1))
        return None if place is None else place.process

    def _placed(self, spec: EpochSpec, workers: Sequence[int]) -> tuple[Process, ...]:
        """By task, the process that gets it: the worker's own, or, where that has not come for long, one that has few tasks."""
        self._assign_places(workers)
        with self.changed:
            while True:
                found = [self._process_of(worker) for worker in workers]
                self._lent = None in found
                if not self._lent:
                    break
                self._require_hosts()
                missing = [self._places[self._place_of[w]] for w, one in zip(workers, found, strict=True) if one is None]
                if all(time.monotonic() > place.empty_since + self._patience for place in missing):
                    break
                self.changed.wait(0.5)
            tasks: dict[Process, int] = {place.process: 0 for place in self._places.values() if place.process is not None}
            if not tasks:
                reasons = sorted({reason for place in self._places.values() if (reason := place.absence or place.reason) is not None})
                raise EpochFailed(f"epoch {spec.epoch}: no worker is there: {'; '.join(reasons) or 'none has called yet'}")
            for process in found:
                if process is not None:
                    tasks[process] += 1
            placed = []
            for process in found:
                if process is None:
                    process = min(tasks, key=lambda one: (tasks[one], one.hello.place))  # noqa: PLW2901
                    tasks[process] += 1
                placed.append(process)
            return tuple(placed)

    def _assign_places(self, workers: Sequence[int]) -> None:
        with self.changed:
            homeless = [worker for worker in workers if self._place_of.get(worker) not in self._places]
            taken = {place for worker, place in self._place_of.items() if worker not in homeless}
        self.want(len(taken) + len(homeless))
        with self.changed:
            free = [place for place in self._places.values() if place.number not in taken]
            free.sort(key=lambda place: (place.process is None, place.number))
            self._place_of |= {worker: place.number for worker, place in zip(homeless, free, strict=False)}

    def _begin(self, spec: EpochSpec, processes: Sequence[Process], impossible: str | None = None) -> Attempt:
        attempt = Attempt(self, next(self._attempts), spec, tuple(processes))
        if impossible is not None:
            attempt.failure = EpochFailed(f"epoch {spec.epoch}: {impossible}")
            return attempt
        tasks: dict[Process, list[int]] = {}
        for task, process in enumerate(processes):
            tasks.setdefault(process, []).append(task)
        assignment = Assignment(
            spec.with_shared(lambda shared: Shared(shared.identity, b"")),
            tuple(process.address for process in processes),
            self._reading.spread(spec.splits, [process.address for process in tasks]),
        )
        body = encode(assignment)
        wanted: dict[str, Shared] = {}

        def note(shared: Shared) -> Shared:
            wanted[shared.identity] = shared
            return shared

        spec.with_shared(note)
        with self.changed:
            self.current.append(attempt)
            attempt.pending.update(tasks)
            for process in tasks:
                if process.gone:
                    attempt.lost(process, self._places.get(process.hello.place), None)
        for process, numbers in tasks.items():
            shares = tuple(shared for identity, shared in wanted.items() if identity not in process.shared)
            stale = tuple(process.shared - wanted.keys())
            process.shared = set(wanted)
            process.tell(Work(attempt.number, tuple(numbers), body, shares, stale))
        return attempt

    def _require_hosts(self) -> None:
        lost = self.hosts.lost()
        if lost is not None:
            raise EpochFailed(lost, permanent=True)

    def _beat(self) -> None:
        """Tell every process that the driver is there, and replace those that are not."""
        while not self._closed.wait(self._beat_seconds):
            with self.changed:
                here = [place.process for place in self._places.values() if place.process is not None]
            for process in here:
                process.tell(Beat())
                process.silent += 1
                if process.silent > SILENT_BEATS:
                    self.replace(process, f"it said nothing for {SILENT_BEATS * self._beat_seconds:.0f} s")
            with self.changed:
                hanging = {process: attempt for attempt in self.current if attempt.give_up_stalled() for process in attempt.pending}
            for process, attempt in hanging.items():
                self.replace(process, f"it got nowhere for {attempt.deadline_seconds:.0f} s")

    def replace(self, process: Process, why: str) -> None:
        """Take a process for dead, kill it, and bring another."""
        with self.changed:
            place = self._places.get(process.hello.place)
            if place is None or place.process is not process:
                return
            place.died(why)
            place.is_replaced = True
            self._drop(place, why)
            self.changed.notify_all()
        _log.warning("%s: %s; it is replaced", process, why)
        self.hosts.replace(place.number)


class _Caller:
    """Hears a worker, from its hello to the connection's end."""

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool, self._connection = pool, connection
        self._process: Process | None = None
        connection.over.add_done_callback(self._closed)

    def heard(self, message: bytes) -> None:
        if self._process is not None:
            self._pool.hear(self._process, decode(message))
        else:
            self._process = Process(decode(message), self._connection)
            self._pool.greet(self._process)

    def _closed(self, over: object) -> None:
        if self._connection.failure is not None:
            _log.error("a worker's connection was ended, as what it said could not be taken", exc_info=self._connection.failure)
        if self._process is not None:
            self._pool.miss(self._process)
