"""The pool as a state machine: which process is at which place, which worker has which place, and what becomes of attempts when
processes die. Pure: events in, commands out. No socket, thread or clock. ``pool`` is the shell around it.

Always holds, after each event (:meth:`Roster.validate`):

- A place has at most one process, the newest that called, and nobody has given it up.
- An attempt waits for connected processes only. So once it has failed or was cancelled it ends: each process answers, or is gone; one that
  does neither for ``ANSWER_SECONDS`` is replaced.
- Each process gets an attempt's Work before it is told to abandon it.
- For each place whose container is to go, another was brought at once. Its worker serves there until it is released, or the container is
  gone; no worker that has no place gets that one, and it never gets another process from elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.progress import stall_sentence
from streamjoin.runner.events import (
    Assigned,
    Begun,
    Bring,
    Command,
    Event,
    GivenUp,
    Greeted,
    HangUp,
    Leave,
    LetGo,
    Missed,
    Over,
    PlaceDied,
    Released,
    Replace,
    Restarted,
    Said,
    Tell,
    Ticked,
    Wake,
    Wanted,
    Warn,
)
from streamjoin.runner.messages import Abandon, Beat, Done, End, Failed, Leaving, Work
from streamjoin.runner.process import Place, Process, Trial, death_of

SILENT_BEATS = 15
"""Counted in the driver's own beats: a driver that slept has not missed any."""
ANSWER_SECONDS = 60.0
"""A process that was told to abandon an attempt may finish what it is writing."""


class Roster:
    """See the module. Not for use by several threads at once."""

    def __init__(self, at: float) -> None:
        self.places: dict[int, Place] = {}
        """By number, in the order in which they came."""
        self.place_of: dict[int, int] = {}
        """By worker."""
        self.current: list[Trial] = []
        """The attempts in flight, in order."""
        self.moved_at = at
        """When anything of any attempt last moved."""
        self.came_at = at
        """When a process last called."""
        self._lent = False
        """Some task of the last attempt was not done where it belongs."""
        self._next_place = self._next_attempt = 0
        self._at = at

    def handle(self, event: Event, at: float) -> list[Command]:
        """What to do about an event, in this order. ``at``: seconds, never less than before."""
        self._at = at
        return list(self._handled(event))

    def next_attempt(self) -> int:
        """The number of another attempt."""
        self._next_attempt += 1
        return self._next_attempt - 1

    @property
    def here(self) -> list[Process]:
        """The processes that are connected, by place."""
        return [place.process for place in self.places.values() if place.process is not None]

    def has_enough(self, count: int, least: int, stabilization_seconds: float, at: float) -> bool:
        """Whether there are so many processes, or at least ``least`` and no other has come for so long."""
        here = len(self.here)
        return here >= count or (here >= least and at - self.came_at >= stabilization_seconds)

    @property
    def is_settled(self) -> bool:
        """Whether every worker has its process and its task, so that an attempt may follow another; and none that is in flight is lost: who
        has done its part of that would go on from there, and need what is committed again."""
        lost = any(trial.failure is not None or any(process.gone for process in trial.processes) for trial in self.current)
        return not lost and not self._lent and all(self.process_of(worker) is not None for worker in self.place_of)

    def process_of(self, worker: int) -> Process | None:
        place = self.places.get(self.place_of.get(worker, -1))
        return None if place is None else place.process

    def processes_for(self, workers: Sequence[int], patience_seconds: float, at: float) -> tuple[Process, ...] | None:
        """By task, the process that gets it: the worker's own, or, where that has not come for long, one that has few tasks. None: it is
        worth while to wait. Empty: there is no process at all. The workers were :class:`Assigned`."""
        found = [self.process_of(worker) for worker in workers]
        missing = [self.places[self.place_of[worker]] for worker, one in zip(workers, found, strict=True) if one is None]
        if missing and not all(at > place.empty_since + patience_seconds for place in missing):
            return None
        tasks = dict.fromkeys(self.here, 0)
        for process in found:
            if process is not None:
                tasks[process] += 1
        placed = []
        for process in found if tasks else ():
            one = process or min(tasks, key=lambda each: (tasks[each], each.hello.place))
            tasks[one] += process is None
            placed.append(one)
        return tuple(placed)

    def following(self, epoch: int, tasks: int) -> tuple[Process, ...]:
        """The processes of the attempt in flight at an epoch, for an attempt that follows it; empty if there is none of so many tasks."""
        before = next((trial.processes for trial in self.current if trial.epoch == epoch), ())
        return before if len(before) == tasks else ()

    def leaving(self, at: float) -> dict[int, float]:
        """The workers whose containers were told to go and that still serve, and the seconds that they have left."""
        found = {}
        for worker, number in self.place_of.items():
            place = self.places.get(number)
            if place is not None and place.process is not None and place.leaves_at is not None:
                found[worker] = max(0.0, place.leaves_at - at)
        return found

    def validate(self) -> None:
        """Raises AssertionError where an invariant does not hold. O(places + tasks)."""
        here = self.here
        assert all(not process.gone for process in here), "a process that is gone is at a place"
        assert all(self.places[process.hello.place].process is process for process in here), "a process is at another's place"
        assert len(set(self.place_of.values())) == len(self.place_of), f"workers share a place: {self.place_of}"
        numbers = [trial.number for trial in self.current]
        assert numbers == sorted(set(numbers)), f"attempts out of order: {numbers}"
        for trial in self.current:
            assert trial.pending.keys() <= set(here), f"attempt {trial.number} waits for processes that are gone"
            assert trial.pending.keys() <= set(trial.processes), f"attempt {trial.number} waits for processes that have no task"
            assert (trial.failure is None) == (trial.failed_at is None)
        idle = {number for number, place in self.places.items() if place.leaves_at is not None} - set(self.place_of.values())
        assert not idle, f"places are kept that no worker has, though they leave: {idle}"

    def _handled(self, event: Event) -> Iterator[Command]:  # noqa: C901
        match event:
            case Wanted(count):
                yield from self._want(count)
                yield from self._let_go(self._spare(), count)
            case Restarted():
                self.place_of.clear()
                yield from self._let_go(self._spare(), len(self.places))
            case Assigned(workers):
                yield from self._assign(workers)
            case Released(workers, places):
                yield from self._release(workers, len(workers) if places is None else places)
            case Greeted(process):
                yield from self._greet(process)
            case Said(process, message):
                yield from self._hear(process, message)
            case Missed(process):
                yield from self._miss(process)
            case PlaceDied(place, reason):
                yield from self._place_died(place, reason)
            case Ticked(beat_seconds):
                yield from self._tick(beat_seconds)
            case Begun():
                yield from self._begin(event)
            case GivenUp(trial, failure):
                if trial.failure is None or failure.permanent:
                    yield from self._fail(trial, failure)
            case Over(trial):
                yield from self._end(trial)

    def _want(self, count: int) -> Iterator[Command]:
        """Have so many places that stay."""
        for _ in range(count - sum(place.leaves_at is None for place in self.places.values())):
            number, self._next_place = self._next_place, self._next_place + 1
            self.places[number] = Place(number, self._at)
            yield Bring(number)

    def _assign(self, workers: Sequence[int]) -> Iterator[Command]:
        # Of a worker whose process is gone nothing is left at its place: one that has a process and no part in this does as well.
        is_lost = {worker for worker in self.place_of if self.process_of(worker) is None}
        leaves = {worker for worker in self.place_of if worker not in workers and (worker in is_lost or not is_lost.isdisjoint(workers))}
        self.place_of = {worker: place for worker, place in self.place_of.items() if worker not in leaves}
        spare = sum(self.places[number].process is not None for number in self._spare() if self.places[number].leaves_at is None)
        lost = [worker for worker in workers if worker in is_lost][:spare]
        homeless = [worker for worker in workers if worker in lost or self.place_of.get(worker) not in self.places]
        taken = {place for worker, place in self.place_of.items() if worker not in homeless}
        yield from self._want(sum(self.places[number].leaves_at is None for number in taken) + len(homeless))
        free = [place for place in self.places.values() if place.number not in taken and place.leaves_at is None]
        free.sort(key=lambda place: (place.process is None, place.number))
        self.place_of |= {worker: place.number for worker, place in zip(homeless, free, strict=False)}
        yield from self._let_go(self._spare(), len(self.places))

    def _release(self, workers: Sequence[int], places: int) -> Iterator[Command]:
        self.place_of = {worker: place for worker, place in self.place_of.items() if worker in workers}
        self._pack()
        yield from self._let_go(self._spare(), places)
        yield Wake()

    def _spare(self) -> list[int]:
        """The places that no worker has, in the order in which they are kept: first those with a process, on the executors with the most
        workers; last those that leave."""
        workers: Counter[str] = Counter()
        used = set(self.place_of.values())
        for process in self.here:
            workers[process.hello.executor] += process.hello.place in used

        def order(number: int) -> tuple[bool, bool, int, int]:
            place = self.places[number]
            process = place.process
            return place.leaves_at is not None, process is None, 0 if process is None else -workers[process.hello.executor], number

        return sorted((number for number in self.places if number not in used), key=order)

    def _let_go(self, spare: Sequence[int], count: int) -> Iterator[Command]:
        """Have no more than ``count`` places that stay, but those that workers have; and of those that leave, only these."""
        staying = [number for number in spare if self.places[number].leaves_at is None]
        used = sum(place.leaves_at is None for place in self.places.values()) - len(staying)
        for number in (*staying[max(0, count - used) :], *spare[len(staying) :]):
            yield from self._end_place(self.places[number], "its place was let go")

    def _end_place(self, place: Place, why: str) -> Iterator[Command]:
        del self.places[place.number]
        if place.process is not None:
            yield Tell(place.process, End())
        yield from self._drop(place, why)
        yield LetGo(place.number)

    def _leave(self, process: Process, seconds: float) -> Iterator[Command]:
        """A process's container is to go, with all that are on it: bring other places at once, and let go those that no worker has."""
        executor = process.hello.executor
        leaving = [one for one in self.here if one is process or (executor and one.hello.executor == executor)]
        places = [self.places[one.hello.place] for one in leaving]
        are_new = [place for place in places if place.leaves_at is None]
        for place in places:
            place.leaves_at = self._at + seconds
        if not are_new:
            return
        yield Warn(f"the {process} was told to go with its executor, in {seconds:.0f} s; others are brought in their stead")
        for place in are_new:
            yield Leave(place.number, executor)
        yield from self._want(len(are_new) + sum(place.leaves_at is None for place in self.places.values()))
        yield from self._let_go(self._spare(), len(self.places))
        yield Wake()

    def _pack(self) -> None:
        """Have the workers of an executor go on in processes of others, whose workers have gone, where those have room for all of them: an
        executor costs as much with one worker as with many. What they hold is read back there."""
        workers_on: defaultdict[str, list[int]] = defaultdict(list)
        spare_on: defaultdict[str, list[int]] = defaultdict(list)
        worker_at = {place: worker for worker, place in self.place_of.items()}
        for process in self.here:
            executor, number = process.hello.executor, process.hello.place
            if self.places[number].leaves_at is not None:
                continue
            if number in worker_at:
                workers_on[executor].append(worker_at[number])
            else:
                spare_on[executor].append(number)
        staying = sorted(workers_on, key=lambda executor: len(workers_on[executor]))
        while staying:
            emptiest, *staying = staying
            room = [(executor, number) for executor in reversed(staying) for number in spare_on[executor]]
            if len(room) < len(workers_on[emptiest]):
                return
            for worker, (executor, number) in zip(workers_on[emptiest], room, strict=False):
                self.place_of[worker] = number
                spare_on[executor].remove(number)

    def _greet(self, process: Process) -> Iterator[Command]:
        yield Tell(process, Beat())
        hello = process.hello
        place = self.places.get(hello.place)
        if place is None:  # it was let go meanwhile
            process.gone = True
            yield Tell(process, End())
            yield HangUp(process)
            return
        if hello.died is not None:
            place.died(hello.died)
            yield Warn(f"the worker at place {place.number} died: {hello.died}; another has taken its place")
        yield from self._drop(place, hello.died or "it called again")
        self.came_at = self._at
        place.process, place.absence, place.is_replaced = process, None, False
        yield Wake()

    def _miss(self, process: Process) -> Iterator[Command]:
        place = self.places.get(process.hello.place)
        if place is not None and place.process is process:
            yield from self._drop(place, None)
        process.gone = True
        yield Wake()

    def _hear(self, process: Process, message: Beat | Leaving | Done | Failed) -> Iterator[Command]:
        if process.gone:  # it was given up, and is there again
            yield Tell(process, End())
            return
        process.silent = 0
        if isinstance(message, Beat):
            if message.progress != process.progress:
                process.progress = message.progress
                for trial in self.current:
                    self._moved(trial)
            return
        if isinstance(message, Leaving):
            yield from self._leave(process, message.seconds)
            return
        for trial in self.current:
            if trial.number == message.attempt and process in trial.pending:
                yield from self._answered(trial, process, message)

    def _answered(self, trial: Trial, process: Process, message: Done | Failed) -> Iterator[Command]:
        del trial.pending[process]
        self._moved(trial)
        if isinstance(message, Done):
            trial.reports += message.reports
        elif trial.failure is None or (trial.is_symptom and not message.abandoned):
            trial.is_symptom = message.abandoned
            said = f"epoch {trial.epoch}: {message.message}"
            failure = EpochFailed(said, message.detail, permanent=message.permanent, too_large=message.too_large)
            yield from self._fail(trial, failure)
        if not trial.pending:  # who waits need not look at each answer
            yield Wake()

    def _place_died(self, number: int, reason: str) -> Iterator[Command]:
        place = self.places.get(number)
        if place is None:
            return
        if place.leaves_at is not None:  # another was brought when it was told to go
            place.died(reason)
            yield from self._end_place(place, reason)
            yield Wake()
        elif place.process is not None or place.is_unexplained:
            place.died(reason)
            yield from self._drop(place, reason)
            yield Wake()
        elif not place.is_replaced:
            place.absence = reason
            yield Warn(f"no worker has come to place {number}: {reason}; it is tried again")
        place.is_replaced = False

    def _tick(self, beat_seconds: float) -> Iterator[Command]:
        for process in self.here:
            yield Tell(process, Beat())
            process.silent += 1
            if process.silent > SILENT_BEATS:
                yield from self._replace(process, f"it said nothing for {SILENT_BEATS * beat_seconds:.0f} s")
        for trial in list(self.current):
            still = self._at - trial.moved_at
            if trial.pending and still > trial.deadline_seconds:
                late = list(trial.pending)
                if trial.may_fail:
                    trial.is_symptom = False
                    sentence = stall_sentence(trial.epoch, "tasks", still, trial.owing)
                    yield from self._fail(trial, EpochFailed(sentence, worker_died=True, stalled=True))
                for process in late:
                    yield from self._replace(process, f"it got nowhere for {trial.deadline_seconds:.0f} s")
            elif trial.failed_at is not None and self._at - trial.failed_at > ANSWER_SECONDS:
                yield from self._replace_late(trial)

    def _begin(self, event: Begun) -> Iterator[Command]:
        trial = event.trial
        if event.is_lent is not None:
            self._lent = event.is_lent
        tasks: dict[Process, list[int]] = {}
        for task, process in enumerate(trial.processes):
            tasks.setdefault(process, []).append(task)
        self.current.append(trial)
        trial.pending = dict.fromkeys(process for process in tasks if not process.gone)
        self._moved(trial)
        for process, numbers in tasks.items():
            if not process.gone:
                shares = tuple(shared for identity, shared in event.shared.items() if identity not in process.shared)
                stale = tuple(process.shared - event.shared.keys())
                process.shared = set(event.shared)
                yield Tell(process, Work(trial.number, tuple(numbers), event.assignment, shares, stale))
        for process in tasks:
            if process.gone:
                yield from self._died(trial, process, self.places.get(process.hello.place), None)

    def _end(self, trial: Trial) -> Iterator[Command]:
        if trial in self.current:
            yield from self._replace_late(trial)
            self._moved(trial)
            self.current.remove(trial)

    def _replace_late(self, trial: Trial) -> Iterator[Command]:
        for process in list(trial.pending):
            yield from self._replace(process, "it did not give up an attempt that was abandoned")

    def _replace(self, process: Process, why: str) -> Iterator[Command]:
        """Take a process for dead, have it killed, and another brought."""
        place = self.places.get(process.hello.place)
        if place is None or place.process is not process:
            return
        place.died(why)
        place.is_replaced = True
        yield from self._drop(place, why)
        yield Warn(f"{process}: {why}; it is replaced")
        yield Replace(place.number)
        yield Wake()

    def _drop(self, place: Place, why: str | None) -> Iterator[Command]:
        """Its process, if it has one, is gone; None: nobody has told why."""
        process, place.process = place.process, None
        if process is not None:
            process.gone = True
            place.empty_since = self._at
            place.is_unexplained = why is None
            for trial in self.current:
                if process in trial.pending:
                    del trial.pending[process]
                    yield from self._died(trial, process, place, why)

    def _died(self, trial: Trial, process: Process, place: Place | None, why: str | None) -> Iterator[Command]:
        """A process is gone before it has answered."""
        if trial.may_fail:
            trial.is_symptom = False
            yield from self._fail(trial, death_of(process, trial.epoch, why or "its connection broke"))
            if why is None and place is not None:
                trial.unexplained = process, place, place.deaths
        if not trial.pending:
            yield Wake()

    def _fail(self, trial: Trial, failure: EpochFailed) -> Iterator[Command]:
        trial.failure = failure
        trial.failed_at = self._at if trial.failed_at is None else trial.failed_at
        self._moved(trial)
        for process in trial.pending:
            yield Tell(process, Abandon(trial.number))

    def _moved(self, trial: Trial) -> None:
        trial.moved_at = self.moved_at = self._at
