"""The step by which executors get the memory that the autoscaler has decided on (``spec.scaling.vertical``).

They are resized first. Once all of them have it, that is noted beside the decisions, and from then on the manifest counts as if it asked
for so much (``derived.derive``): the record of what runs, the driver's files and so the capacity, executors that come later, and the next
driver all follow from that. Where they cannot have it, that is noted instead, and workers are added: what some have got they keep.

Always holds: nothing is resized before the decision is stored, and nothing rests on the memory before it is stored that all executors have
it; an operator that is killed at any point goes on from what is stored and from what the pods say.
"""

from __future__ import annotations

from collections.abc import Callable

from streamjoin.elastic.autoscaler import Autoscaler
from streamjoin_operator.derived import enlarged_to
from streamjoin_operator.pod_templates import executor_resources
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Reconciliation, Verdict
from streamjoin_operator.resize_step import ResizeStep
from streamjoin_operator.scaling_step import ScalingStep

PATIENCE_SECONDS = 60.0
"""Executors that have not got more memory by then do not get it in time: a worker is full."""


class EnlargeStep:
    """See the module."""

    def __init__(self, ports: Ports, resizing: ResizeStep, scaling: ScalingStep) -> None:
        self._ports, self._resizing, self._scaling = ports, resizing, scaling

    async def enlarge(self, reconciliation: Reconciliation) -> Verdict:
        """Resize the executors, and see how far they are."""
        memo, scaler = reconciliation.memo, reconciliation.memo.scaler
        enlarged = None if scaler is None or reconciliation.refused is not None else scaler.autoscaler.enlarged
        if scaler is None or enlarged is None or enlarged.wanted is None:
            memo.enlarging_since = None
            return PROCEED
        if scaler.autoscaler.is_new:
            await self._scaling.write_ledger(reconciliation, scaler)
        workers = enlarged_to(reconciliation.manifest.spec.workers, enlarged.wanted)
        found, refused = await self._resizing.toward(reconciliation, executor_resources(workers))
        if not found.executors:
            return PROCEED
        if not found.lacking:
            await self._note(reconciliation, lambda autoscaler: autoscaler.has_enlarged(self._ports.now))
            memo.checked_at = float("-inf")
            return AGAIN  # with a check of what follows from it
        now = self._ports.clock()
        memo.enlarging_since = now if memo.enlarging_since is None else memo.enlarging_since
        why = refused or found.infeasible
        if why is None and now - memo.enlarging_since >= PATIENCE_SECONDS:
            why = f"{found.lacking} of {found.executors} executors have not got it within {PATIENCE_SECONDS:.0f} s"
            why = ": ".join([why, *found.said[:1]])
        if why is None:
            reconciliation.looks_soon = True
            return PROCEED
        told = f"executors do not get {workers.resources.memory} of memory for each worker: {why}"
        await self._note(reconciliation, lambda autoscaler: autoscaler.cannot_enlarge(told))
        reconciliation.events.append(("Warning", Reason.EnlargingFailed, told))
        return PROCEED

    async def _note(self, reconciliation: Reconciliation, change: Callable[[Autoscaler], None]) -> None:
        """What counts is what is stored."""
        scaler = reconciliation.memo.scaler
        assert scaler is not None, "the step stops without one"
        before = scaler.autoscaler.enlarged
        change(scaler.autoscaler)
        try:
            await self._scaling.write_ledger(reconciliation, scaler)
        except BaseException:
            if scaler.autoscaler.is_new:
                scaler.autoscaler.enlarged = before
            raise
