"""The one function that every handler and timer calls: observe a StreamJoin, compare, act in small named steps, report.

It is level-triggered: what it does follows from what is there and never from what happened. What it remembers between calls (``Memo``) only
saves requests; an operator that starts anew, or is killed between any two steps, goes on from what the API server has.

Always holds: each step is harmless when done twice, and each says whether to proceed or to wait; the status is written last, and only when
it differs; nothing is written when nothing changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from streamjoin.elastic.admission import Verdict as Admission
from streamjoin_operator import names, status
from streamjoin_operator.api import Api, ApiError
from streamjoin_operator.applying import Applier
from streamjoin_operator.child_steps import ChildSteps
from streamjoin_operator.deletion_steps import DeletionSteps
from streamjoin_operator.derived import Derived, derive
from streamjoin_operator.drift import Object
from streamjoin_operator.driver_steps import DriverSteps
from streamjoin_operator.enlarge_step import EnlargeStep
from streamjoin_operator.ports import Drivers, Ports, Prometheus
from streamjoin_operator.queue import Key
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Memo, Reconciliation, Step, Verdict
from streamjoin_operator.reporting import Reporter
from streamjoin_operator.resource import Resource
from streamjoin_operator.scaling_step import ScalingStep
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import Settings

log = logging.getLogger(__name__)

SOONER = 3
"""So many times as often a driver is asked of whose join the next sample may call for more workers."""
PASSING_FAILURES = 2
"""So many failures in a row that may pass by themselves are only logged: some seconds."""


class Reconciler:
    """See the module. All in one event loop; the queue sees to it that a StreamJoin is reconciled by one call at a time."""

    def __init__(
        self,
        api: Api,
        drivers: Drivers,
        settings: Settings,
        prometheus: Prometheus,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """``on_step`` hears the name of each step before it is done; tests raise there."""
        self.seen = Seen(settings.operator_class, selects_namespaces=bool(settings.watch_namespace_selector))
        self._ports = ports = Ports(api, drivers, prometheus, settings, clock, wall, on_step)
        self._applier = Applier(ports, self.seen)
        self._reporter = Reporter(ports, self.seen)
        self._driver_steps = DriverSteps(ports)
        self._child_steps = ChildSteps(ports, self.seen, self._applier, self._driver_steps)
        self._scaling_step = ScalingStep(ports, self._reporter)
        self._enlarge_step = EnlargeStep(ports, self._child_steps.resizing, self._scaling_step)
        self._deletion_steps = DeletionSteps(ports, self._applier, self._reporter)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one StreamJoin closer to what it should be. Returns after how many seconds to come again; None: when something happens.

        Raises what a step has raised, ApiError as a rule, once it is in the status.
        """
        body = self.seen.bodies.get(key)
        if body is None:
            return None
        memo = self.seen.memo(key)
        resource = replace(Resource.of(body), mounted=memo.mounted)
        deployments = (self.seen.deployments.get(key), self.seen.query_servers.get(key), self.seen.watchers.get(key))
        derived = self._derive(resource, body, memo)
        if derived.job is not None:
            resource = replace(resource, is_enlarged=derived.job.memory_bytes != derived.given_memory)
        reconciliation = Reconciliation(resource, body, memo, derived, *deployments)
        if reconciliation.is_being_deleted and names.FINALIZER not in (body["metadata"].get("finalizers") or []):
            return None
        if (reconciliation.is_suspended or reconciliation.is_paused) and memo.scaler is not None:
            memo.scaler.autoscaler.suspend(self._ports.now)
        reconciliation.checking = self._is_check_due(reconciliation)
        failure: Exception | None = None
        after: float | None = None
        try:
            steps = self._steps(reconciliation)
            after = await self._take(steps, reconciliation)
        except Exception as error:
            failure = error
        if after == AGAIN.after:
            return after
        held = await self._tell(reconciliation, failure)
        if failure is not None:
            raise failure
        looks = self._child_steps.sleep.looks_after(reconciliation)
        return None if after is None else min(each for each in (after, held, looks) if each is not None)

    async def _tell(self, reconciliation: Reconciliation, failure: Exception | None) -> float | None:
        """Report, and say after how many seconds what is held back is due. Where the steps did not come so far, look first at the driver:
        what runs is no less ready for it."""
        memo = reconciliation.memo
        memo.failures = 0 if failure is None else memo.failures + 1
        if failure is not None:
            if is_passing(failure, memo.failures):
                return None
            reconciliation.refused = reason_of(failure)
        try:
            is_held = reconciliation.refused is not None or reconciliation.trying is not None
            if is_held and reconciliation.report is None and not reconciliation.is_being_deleted:
                await self._look(reconciliation)
        except ApiError:
            if failure is None:
                raise
            reconciliation.is_partial = True
        try:
            return await self._reporter.report(reconciliation)
        except ApiError:
            if failure is None:
                raise
            return None

    async def _look(self, reconciliation: Reconciliation) -> None:
        """Of a manifest that cannot be acted on suspend alone is heeded; what runs is looked at all the same."""
        if not reconciliation.is_paused:
            if reconciliation.decided_sleep is None:
                await self._child_steps.sleep.decide(reconciliation)
            await self._applier.heed_suspend(reconciliation)
        await self._driver_steps.query_servers(reconciliation)
        if reconciliation.deployment is not None:
            await self._driver_steps.pods(reconciliation)
            await self._driver_steps.ask(reconciliation)

    def _steps(self, reconciliation: Reconciliation) -> Sequence[Step]:
        driver, scaling, enlarge = self._driver_steps, self._scaling_step, self._enlarge_step.enlarge
        if reconciliation.is_being_deleted:
            return self._deletion_steps.all()
        if reconciliation.is_paused:
            return (driver.query_servers, driver.pods, driver.ask)
        look = (driver.query_servers, driver.pods, driver.ask)
        doze = self._child_steps.sleep.doze
        act = (*self._child_steps.all(), *look, doze, scaling.orders, driver.plan, scaling.scale, enlarge)
        return (scaling.recall, self.validate, self.admit, *act)

    async def _take(self, steps: Sequence[Step], reconciliation: Reconciliation) -> float | None:
        """The steps in order, up to the first that says wait."""
        for step in steps:
            self._ports.on_step(step.__name__)
            verdict = await step(reconciliation)
            if verdict.after is not None:
                return verdict.after
        self._ports.on_step("report")
        return self._ports.settings.poll_seconds / (SOONER if reconciliation.looks_soon else 1)

    def _derive(self, resource: Resource, body: Object, memo: Memo) -> Derived:
        # Not by its generation: a watch that began under an older definition shows the same one without the fields that that lacks.
        enlarged = None if memo.scaler is None else memo.scaler.autoscaler.enlarged
        source = (resource.uid, body["spec"], enlarged)
        if memo.derived_from != source:
            try:
                memo.derived = derive(body, enlarged)
            except Exception as error:
                log.exception("nothing follows from the manifest", extra={"streamjoin": f"{resource.namespace}/{resource.name}"})
                memo.derived = Derived(None, reason_of(error))
            memo.derived_from = source
        return memo.derived

    def _is_check_due(self, reconciliation: Reconciliation) -> bool:
        memo = reconciliation.memo
        return (
            not reconciliation.has_acted
            or reconciliation.deployment is None
            or self._ports.clock() - memo.checked_at >= self._ports.settings.resync_seconds
        )

    async def validate(self, reconciliation: Reconciliation) -> Verdict:
        """What the manifest says must be usable; what runs under an earlier one goes on."""
        if reconciliation.derived.problem is None:
            return PROCEED
        reconciliation.refused = reconciliation.derived.problem
        return Verdict(self._ports.settings.resync_seconds)

    async def admit(self, reconciliation: Reconciliation) -> Verdict:
        """Before anything of a new join is made: say what its first plan promises, or refuse one that its own thresholds do not allow."""
        first = reconciliation.derived.first
        if first is None or reconciliation.has_begun:
            return PROCEED
        if first.verdict is Admission.REFUSED and not reconciliation.resource.begins_anyhow:
            annotation = f"to begin all the same, annotate it with {names.ADMISSION}=Warn"
            reconciliation.refused = (Reason.FirstPlanTooFull, f"{first.sentence}; {annotation}")
            return Verdict(self._ports.settings.resync_seconds)
        if status.first_plan(first) != (reconciliation.body.get("status") or {}).get("firstPlan"):
            await self._reporter.report(reconciliation)
        return PROCEED


def is_passing(failure: Exception, failures: int) -> bool:
    """Whether a failure is nothing to tell: somebody else was quicker, or it is among the first of a kind that passes."""
    if not isinstance(failure, ApiError):
        return False
    if failure.status in (404, 409, 410):
        return True
    return not failure.names_cause and failures <= PASSING_FAILURES


def reason_of(failure: Exception) -> tuple[Reason, str]:
    """What the condition says of a step that has failed."""
    if not isinstance(failure, ApiError):
        return Reason.OperatorFailed, f"{type(failure).__name__}: {failure}"[:500]
    if not failure.refuses_object:
        return Reason.ApiFailing, str(failure)[:500]
    remedy = "; give the operator the rights of its chart" if " cannot " in failure.message else ""
    return Reason.ApiRefused, failure.message[:500] + remedy
