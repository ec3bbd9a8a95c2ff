"""A state machine that brings plans into a running join: events go in, instructions come out.

It knows no runner, no storage and no clock. The loop (``driver``) tells it what happens, carries out the instructions, and asks under which
plans the next epoch runs. A plan passes through these phases; a crash in any of them resumes to the old plan, after the switch's commit to
the new one::

    WAITING     until there are workers enough; the join goes on under the old plan
    PREPARING   workers fetch the blocks that they will need, in the background, while epochs go on under the old plan
    SWITCHING   the next epoch is the new plan's first: its commit is the switch
    RUNNING     workers that have no task under the new plan are let go: all that they held is durable, and held by others now

An epoch that fails under a new plan is done again under the old one, and the plan is dropped, with the reason.

What comes is taken. Once no worker has come for the stabilization time, a plan that waits for more is cut anew for those that are there,
and is switched to; then another one, for as many as were asked for, waits for the rest. Where workers of the running plan are lost for as
long, or are not there at a driver's start, the join is cut likewise for those that are. A plan for which nobody comes for
``arrivals.PENDING_SECONDS`` is dropped. After the resource stabilization timeout of Flink's adaptive scheduler.

Workers that were told to go serve until the switch to a plan without them: the same one with others in their stead, once these are there;
when time is short, one for those that stay. Where neither can be, they are lost like any others when they go.

Always holds (``Replanner.validate``):

- A plan that was accepted waits to be taken up, is being applied, or has ended: switched to, dropped with a reason, or replaced by a later
  one. There is nothing in between: one lock is held throughout each event, and other threads put plans and ask at any time.
- The generations of the plan that runs, of the one that is being applied and of the one that waits to be taken up ascend.
- A plan that the workers' coming and going leads to is no worse than the one that runs, or it is for workers all of which have room for
  what they hold; it never needs more workers than are there.
- A worker's number means one worker for as long as the driver lives; only a worker that goes on occurs in two plans.

After dask.distributed's ``worker_state_machine``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import StrEnum

from streamjoin.controlplane.arrivals import STABILIZATION_SECONDS, Arrivals, is_late
from streamjoin.controlplane.events import (
    Adopted,
    Assignment,
    BetweenEpochs,
    BlocksFetched,
    EpochPlanned,
    EpochPlans,
    Event,
    FirstEpochCommitted,
    FirstEpochFailed,
    Instruction,
    MakePlan,
    PlanMade,
    ReleaseWorkers,
    RequestWorkers,
    StartWorkers,
    WorkersReady,
)
from streamjoin.controlplane.fates import Ended, Fate, Fates
from streamjoin.controlplane.refusals import PlanOutdated, PlanRefused, refusal_of
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.spec import Shared, share
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.tiling import Scheme

FETCH_SECONDS = 120.0
"""Blocks that have not arrived by then are read in the plan's first epoch."""
SMALL_BYTES = 8 << 20
"""So little to fetch is no reason to wait: every epoch adds some."""
MOST_DEATHS = 3
"""The number of times that a plan's first epoch is tried again because a worker died in it."""


class PlanPhase(StrEnum):
    """See the module."""

    WAITING = "WaitingForWorkers"
    PREPARING = "Preparing"
    SWITCHING = "Switching"
    RUNNING = "Running"


@dataclass(frozen=True)
class Switched:
    """A switch to a plan: how long it took, and how many tuples it moved."""

    generation: int
    epoch: int
    """The plan's first."""
    asked: int
    """The workers that were asked for: more than the plan has where the others had not come."""
    at: float
    """Wall clock."""
    waited_seconds: float
    """The time from when the loop took the plan up until its first epoch began."""
    pause_seconds: float
    """By how much the plan's first epoch took longer than the epochs before it."""
    kept_tuples: int
    """Held tuples, replicas counted each, that were where they are needed; and those that were brought there."""
    moved_tuples: int


@dataclass(frozen=True)
class PlanStatus:
    """The plan of a join, for those who ask."""

    generation: int
    scheme: Scheme
    """The one that runs."""
    phase: PlanPhase
    workers: int
    """The number of workers that run the plan."""
    wanted: Plan | None = None
    """The plan that is being applied."""
    asked: int | None = None
    """The workers that are asked for: more than ``wanted`` has where it was cut for those that came. None: no plan is being applied."""
    ready_workers: int = 0
    absence: str | None = None
    """Why workers that the plan waits for do not come, as far as something went wrong. The driver's to say."""
    to_fetch_bytes: int = 0
    dropped: str | None = None
    """Why the plan that was dropped last does not run; None once another has been put or switched to since."""
    switched: Switched | None = None
    """The last switch of this driver."""
    drops: int = 0
    """How many plans this driver has dropped."""
    ended: tuple[Ended, ...] = ()
    """What became of the last plans that were put, in the order in which they ended; at most ``REMEMBERED``."""
    first_workers: int = 0
    """The workers of the join's first plan (ESJ's M); 0: not known. The driver's to say."""


@dataclass(frozen=True)
class _Applied:
    """The plan that is being applied."""

    plan: Plan
    shared: Shared
    taken_at: float
    asked: int
    """The workers that were asked for: more than the plan has, after it was cut for those that came."""
    model: str
    """The model that was asked for."""
    phase: PlanPhase = PlanPhase.WAITING
    """Never RUNNING: then it is ``Replanner.running``."""
    workers: tuple[int, ...] = ()
    """By task of the plan; empty exactly while WAITING."""
    fetching_since: float = 0.0
    to_fetch_bytes: int = 0
    deaths: int = 0
    """Times that its first epoch failed because a worker died."""
    leavers: frozenset[int] = frozenset()
    """The workers that it was made without, as they were told to go."""

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.plan.generation, self.plan.scheme, self.shared, self.workers)


class Replanner:
    """See the module. One thread, the loop, brings events; any thread may ``put`` plans, and ask."""

    def __init__(self, name: str, stabilization_seconds: float = STABILIZATION_SECONDS, *, fetches: bool) -> None:
        """``name`` is unique to the driver. ``fetches``: whether workers must fetch blocks, or map them where they lie."""
        # Who is there, and since when.
        self._arrivals = Arrivals(stabilization_seconds)
        self._name = name
        self._fetches = fetches
        # Guards all below. No method calls another that takes it, nor anything that may wait.
        self._lock = threading.Lock()
        # None until the first plan is adopted; nothing is accepted before.
        self._running: Assignment | None = None
        # Its generation is above that of the running plan.
        self._applied: _Applied | None = None
        # Accepted and not taken up; its generation is above that of the applied plan.
        self._asked: Plan | None = None
        # Of all plans that were accepted: those that have ended, and _applied, and _asked.
        self._fates = Fates()
        # None until _fates has a switch.
        self._switched: Switched | None = None
        # The generation of a plan that was withdrawn and not yet let go.
        self._withdrawn: int | None = None
        # All numbers below are taken: of workers, and of names of schemes.
        self._next_worker = 0
        self._next_name = 0

    def put(self, plan: Plan) -> bool:
        """Accept a plan, to be taken up between two epochs; False when it runs already or is being applied.

        It replaces an accepted one that does not run by then. Raises PlanRefused when nothing runs yet or ``keep`` names a worker that does
        not exist, PlanOutdated when the plan does not come after the newest one.
        """
        with self._lock:
            running, wanted = self._running, self._wanted
            if running is None:
                raise PlanRefused("plan: the join has no plan yet, as it has seen no input; put one once it runs")
            newest: Plan | Assignment = wanted or running
            if plan.generation == newest.generation and plan.scheme == newest.scheme:
                return False
            if plan.generation <= newest.generation:
                state = "runs" if wanted is None else "is being applied"
                raise PlanOutdated(f"plan.generation: {plan.generation} must be above {newest.generation}, which {state}; read it again")
            refusal = refusal_of(plan, running.scheme)
            if refusal is not None:
                raise PlanRefused(refusal)
            if self._asked is not None:
                self._replaced(self._asked, plan)
            self._asked, self._fates.dropped = plan, None
            self._fates.accepted += 1
        return True

    def withdraw(self, generation: int) -> bool:
        """Give up the plan of this generation, if it waits to be taken up or for workers; False when it does neither any more."""
        with self._lock:
            asked, applied = self._asked, self._applied
            if asked is not None and asked.generation == generation:
                self._asked = None
                self._withdraw(asked)
                generation = -1 if applied is None else applied.plan.generation
            elif applied is None or applied.plan.generation != generation or applied.phase is not PlanPhase.WAITING:
                return False
            self._withdrawn = generation
        return True

    def status(self, ready_workers: int) -> PlanStatus | None:
        """The plan that runs and the one that is being applied; None before the first. ``ready_workers`` as the runner has them."""
        with self._lock:
            running, applied, wanted = self._running, self._applied, self._wanted
            if running is None:
                return None
            phase = PlanPhase.RUNNING
            if wanted is not None:
                phase = applied.phase if applied is not None and self._asked is None else PlanPhase.WAITING
            return PlanStatus(
                generation=running.generation,
                scheme=running.scheme,
                phase=phase,
                workers=running.scheme.tasks,
                wanted=wanted,
                asked=None if wanted is None else wanted.workers if applied is None or self._asked is not None else applied.asked,
                ready_workers=ready_workers,
                to_fetch_bytes=0 if applied is None else applied.to_fetch_bytes,
                dropped=self._fates.dropped,
                switched=self._switched,
                drops=self._fates.counts[Fate.DROPPED],
                ended=tuple(self._fates.ended),
            )

    @property
    def running(self) -> Assignment | None:
        """The plan that runs; None before the first. An Assignment never changes, so that this needs no lock."""
        return self._running

    @property
    def plans(self) -> EpochPlans | None:
        """The plans under which an epoch that begins now runs. None before the first plan."""
        with self._lock:
            running, applied = self._running, self._applied
        if running is None:
            return None
        if applied is None or applied.phase is PlanPhase.WAITING:
            return EpochPlans(running)
        if applied.phase is PlanPhase.PREPARING:
            return EpochPlans(running, upcoming=applied.assignment)
        return EpochPlans(applied.assignment, before=running)

    @property
    def is_waiting(self) -> bool:
        """Whether a plan waits for workers, and WorkersReady may get it on."""
        with self._lock:
            return self._applied is not None and self._applied.phase is PlanPhase.WAITING

    def concerns_next_epoch(self, ready: WorkersReady) -> bool:
        """Whether a plan is being prepared or switched to, or can be prepared, or made, as soon as nothing is in flight."""
        with self._lock:
            applied = self._applied
            if applied is not None and (applied.phase is not PlanPhase.WAITING or ready.count >= self._needed(applied.plan)):
                return True
            return self._cut_for(ready) is not None

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Take an event in; the instructions are to be carried out in order. Nothing else but ``put`` changes the state."""
        with self._lock:
            match event:
                case Adopted():
                    return self._adopt(event)
                case BetweenEpochs(at):
                    return self._take_up(at)
                case WorkersReady():
                    return self._look(event)
                case PlanMade(request, plan, at):
                    return self._made(request, plan, at)
                case EpochPlanned(idle):
                    if idle and self._applied is not None and self._applied.phase is PlanPhase.PREPARING:
                        self._applied = replace(self._applied, phase=PlanPhase.SWITCHING)  # nobody waits for results
                case BlocksFetched(to_fetch_bytes, at):
                    self._fetched(to_fetch_bytes, at)
                case FirstEpochFailed(why, worker_died):
                    return self._failed(self._switching(), why, worker_died)
                case FirstEpochCommitted():
                    return self._switch(self._switching(), event)
        return ()

    def validate(self) -> None:
        """Raises AssertionError where what always holds does not: derives anew what is kept twice. O(workers + areas)."""
        with self._lock:
            pending = [] if self._applied is None else [self._applied.plan]
            pending += [] if self._asked is None else [self._asked]
            self._fates.validate(len(pending))
            assert (self._switched is None) == (not self._fates.counts[Fate.SWITCHED])
            running, applied = self._running, self._applied
            if running is None:
                assert not self._fates.accepted
                return
            generations = [running.generation, *(plan.generation for plan in pending)]
            assert generations == sorted(set(generations)), f"generations do not ascend: {generations}"
            assert len(set(running.workers)) == len(running.workers) == running.scheme.tasks
            assert max(running.workers) < self._next_worker
            if applied is None:
                return
            assert applied.phase is not PlanPhase.RUNNING
            assert (applied.phase is PlanPhase.WAITING) == (not applied.workers)
            assert applied.shared.identity != running.shared.identity
            if applied.workers:
                assert len(set(applied.workers)) == len(applied.workers) == applied.plan.workers
                assert max(applied.workers) < self._next_worker
                for worker, kept in zip(applied.workers, applied.plan.keep, strict=True):
                    assert worker not in running.workers if kept is None else worker == running.workers[kept]

    @property
    def _wanted(self) -> Plan | None:
        return self._asked or (None if self._applied is None else self._applied.plan)

    def _adopt(self, adopted: Adopted) -> tuple[Instruction, ...]:
        running, asked, scheme, self._asked = self._running, self._asked, adopted.scheme, None
        assert self._applied is None, "nothing else is under way"
        if asked is not None:
            self._fates.end(asked, Fate.DROPPED, "tuples lie by other keys now; read the plan and put another")
        workers = self._new_workers(scheme.tasks) if running is None else running.workers[: scheme.tasks]
        self._running = Assignment(adopted.generation, scheme, self._shared(scheme), workers)
        self._arrivals.settle()
        return (StartWorkers(scheme, workers),) if running is None else (ReleaseWorkers(workers),)

    def _take_up(self, at: float) -> tuple[Instruction, ...]:
        asked, running, applied = self._asked, self._running, self._applied
        withdrawn, self._withdrawn = self._withdrawn, None
        if asked is None:
            if applied is None or applied.plan.generation != withdrawn or applied.phase is not PlanPhase.WAITING:
                return ()
            assert running is not None
            self._applied = None
            self._withdraw(applied.plan)
            return (ReleaseWorkers(running.workers),)
        assert running is not None
        self._asked = None
        if applied is not None:
            self._replaced(applied.plan, asked)
        refusal = refusal_of(asked, running.scheme)  # another plan may have been switched to since it was put
        if refusal is not None:
            return self._drop(asked, refusal)
        return self._wait_for(asked, at)

    def _wait_for(self, plan: Plan, at: float) -> tuple[Instruction, ...]:
        self._applied = _Applied(plan, self._shared(plan.scheme), at, plan.workers, plan.scheme.model)
        self._arrivals.expect(at)
        return (RequestWorkers(self._needed(plan)),) if None in plan.keep else ()

    def _look(self, ready: WorkersReady) -> tuple[Instruction, ...]:
        """Note who is there; and if a plan has its workers, or the join is to be cut for those that are there, see to that."""
        running, applied = self._running, self._applied
        if running is None:
            return ()
        tasks, arrivals = running.scheme.tasks, self._arrivals
        arrivals.look(ready, tasks)
        waiting = None if applied is None or applied.phase is not PlanPhase.WAITING else applied
        if not ready.is_free:
            return ()
        if applied is not None and applied.phase is PlanPhase.PREPARING and is_late(applied.leavers, ready):
            self._applied = replace(applied, phase=PlanPhase.SWITCHING)
        leaving = ready.leaving_of(running.workers)
        if waiting is not None and not leaving and ready.count >= self._needed(waiting.plan):
            self._assign(waiting, ready.at, prepares=ready.count >= tasks)
            return ()
        workers = self._cut_for(ready)
        if workers is not None:
            if waiting is None:
                return (MakePlan(running, workers, running.scheme.model, running.generation + 1, tasks, ready.count, leaving),)
            # Where workers are lost, the model stays.
            model = waiting.model if workers > tasks else running.scheme.model
            return (MakePlan(running, workers, model, waiting.plan.generation, max(waiting.asked, tasks), ready.count, leaving),)
        why = None if waiting is None else arrivals.given_up(ready, tasks, self._needed(waiting.plan))
        return () if waiting is None or why is None else self._drop(waiting.plan, why)

    def _cut_for(self, ready: WorkersReady) -> int | None:
        running, applied = self._running, self._applied
        if running is None or (applied is not None and applied.phase is not PlanPhase.WAITING):
            return None
        return self._arrivals.cut_for(ready, running.workers, 0 if applied is None else applied.plan.workers)

    def _made(self, request: MakePlan, plan: Plan | None, at: float) -> tuple[Instruction, ...]:
        running, applied = self._running, self._applied
        assert running is not None
        if self._asked is not None:  # it was put meanwhile, and is taken up before the next epoch
            return ()
        if request.workers > request.there:  # it is to wait for those that have not come
            if plan is None:
                return (ReleaseWorkers(running.workers),)
            self._fates.accepted += 1
            return self._wait_for(plan, at)
        if plan is None or self._needed(plan) > request.there:
            self._arrivals.in_vain(at)
            return ()
        if applied is None:
            self._fates.accepted += 1
            applied = _Applied(plan, self._shared(plan.scheme), at, request.asked, request.model)
        else:
            applied = replace(applied, plan=plan, shared=self._shared(plan.scheme), asked=request.asked)
        applied = replace(applied, leavers=frozenset(running.workers[task] for task in request.leaving))
        self._assign(applied, at, prepares=request.there >= running.scheme.tasks)
        return ()

    def _assign(self, applied: _Applied, at: float, *, prepares: bool) -> None:
        """Give every task of the plan its worker: the one that goes on as it, or a new one. ``prepares``: whether all workers of the plan
        that runs are there, for the epochs in which blocks are fetched."""
        running = self._running
        assert running is not None
        fresh = iter(self._new_workers(applied.plan.keep.count(None)))
        workers = tuple(next(fresh) if kept is None else running.workers[kept] for kept in applied.plan.keep)
        fills_by_itself = applied.plan.scheme.model == HANDSHAKE  # a worker that the chain has not yet stands beside it, and has no part
        phase = PlanPhase.PREPARING if self._fetches and prepares and not fills_by_itself else PlanPhase.SWITCHING
        self._applied = replace(applied, phase=phase, workers=workers, fetching_since=at)

    def _fetched(self, to_fetch_bytes: int, at: float) -> None:
        applied = self._applied
        if applied is None or applied.phase is not PlanPhase.PREPARING:
            return
        ready = to_fetch_bytes <= SMALL_BYTES or at - applied.fetching_since > FETCH_SECONDS
        phase = PlanPhase.SWITCHING if ready else PlanPhase.PREPARING
        self._applied = replace(applied, phase=phase, to_fetch_bytes=to_fetch_bytes)

    def _switch(self, applied: _Applied, event: FirstEpochCommitted) -> tuple[Instruction, ...]:
        self._running, self._applied = applied.assignment, None
        self._arrivals.settle()
        self._switched = Switched(
            generation=applied.plan.generation,
            epoch=event.epoch,
            asked=applied.asked,
            at=event.at,
            waited_seconds=event.began_at - applied.taken_at,
            pause_seconds=event.pause_seconds,
            kept_tuples=event.kept_tuples,
            moved_tuples=event.moved_tuples,
        )
        self._fates.end(applied.plan, Fate.SWITCHED)
        if applied.asked > applied.plan.workers and self._asked is None:
            release = (ReleaseWorkers(applied.workers, applied.asked),) if applied.leavers else ()
            more = MakePlan(self._running, applied.asked, applied.model, applied.plan.generation + 1, applied.asked, applied.plan.workers)
            return (*release, more)
        return (ReleaseWorkers(applied.workers),)

    def _failed(self, applied: _Applied, why: str, worker_died: bool) -> tuple[Instruction, ...]:
        """Try the first epoch again where a worker died in it, which says nothing of the plan; else, or at last, drop the plan."""
        if not worker_died or applied.deaths == MOST_DEATHS:
            return self._drop(applied.plan, why)
        self._applied = replace(applied, deaths=applied.deaths + 1)
        return ()

    def _drop(self, plan: Plan, why: str) -> tuple[Instruction, ...]:
        """Go on under the plan that runs, without what has been prepared for ``plan``."""
        assert self._running is not None
        self._applied = None
        self._arrivals.settle()
        self._fates.end(plan, Fate.DROPPED, why)
        return (ReleaseWorkers(self._running.workers),)

    def _withdraw(self, plan: Plan) -> None:
        self._fates.end(plan, Fate.WITHDRAWN, "withdrawn, as the plan that runs is wanted")

    def _replaced(self, plan: Plan, by: Plan) -> None:
        self._fates.end(plan, Fate.REPLACED, f"replaced by generation {by.generation}")

    def _switching(self) -> _Applied:
        applied = self._applied
        assert applied is not None
        assert applied.phase is PlanPhase.SWITCHING, f"the epoch was begun in phase {applied.phase}"
        return applied

    def _needed(self, plan: Plan) -> int:
        """How many workers there must be while the plan is prepared: those that run, and the new ones. 0: it needs no new ones."""
        assert self._running is not None
        new = plan.keep.count(None)
        return len(self._running.workers) + new if new else 0

    def _new_workers(self, count: int) -> tuple[int, ...]:
        first, self._next_worker = self._next_worker, self._next_worker + count
        return tuple(range(first, first + count))

    def _shared(self, scheme: Scheme) -> Shared:
        self._next_name += 1
        return share(f"{self._name}-{self._next_name}", scheme)
