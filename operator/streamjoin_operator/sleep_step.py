"""The steps by which a join falls asleep and is woken (``sleeping``).

Always holds: what is decided is written with the driver's Deployment, in one request, and told after it; where the watcher cannot be made,
the join goes on.
"""

from __future__ import annotations

import json

from pydantic import TypeAdapter, ValidationError

from streamjoin.elastic.quiet import windows
from streamjoin.manifest.model import Suspension
from streamjoin_operator import api, children, names
from streamjoin_operator.applying import Applier
from streamjoin_operator.drift import annotations_of
from streamjoin_operator.driver_steps import DriverSteps
from streamjoin_operator.ports import Ports
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Reconciliation, Verdict
from streamjoin_operator.sleeping import Sleep, has_found, is_blind, next_sleep
from streamjoin_operator.trial import image_of

SUSPEND_DURING = TypeAdapter(tuple[Suspension, ...])


class SleepStep:
    """See the module."""

    def __init__(self, ports: Ports, applier: Applier, driver_steps: DriverSteps) -> None:
        self._ports, self._applier, self._driver_steps = ports, applier, driver_steps

    async def decide(self, reconciliation: Reconciliation) -> Verdict:
        """Whether it is to sleep. If that changes, the children are compared."""
        before = Sleep.of(reconciliation.deployment)
        after = next_sleep(
            *(before, self._ports.now),
            suspend=reconciliation.body["spec"].get("suspend") is True,
            window=self._window(reconciliation),
            wakes=await self._wakes(reconciliation, before) if before is not None and before.is_watched else None,
            idle=self._idle(reconciliation),
        )
        reconciliation.decided_sleep = (after,)
        if after == before or reconciliation.checking:
            return PROCEED
        reconciliation.memo.checked_at = float("-inf")
        return AGAIN

    async def doze(self, reconciliation: Reconciliation) -> Verdict:
        """Decide at once by what the driver has just said."""
        if self._idle(reconciliation) is None:
            return PROCEED
        reconciliation.memo.checked_at = float("-inf")
        return AGAIN

    async def watch(self, reconciliation: Reconciliation) -> Verdict:
        """What asks the sources of a join that is to sleep, in the driver's image. Without it the join does not fall asleep."""
        if not reconciliation.checking or not reconciliation.is_watched or reconciliation.deployment is None:
            return PROCEED
        image = image_of(reconciliation.deployment["spec"]["template"])
        watcher = children.watcher(reconciliation.resource, reconciliation.manifest, self._ports.settings, image)
        verdict = await self._applier.apply(reconciliation, watcher)
        if verdict.after is not None:
            reconciliation.decided_sleep = (Sleep.of(reconciliation.deployment),)
        return verdict

    def looks_after(self, reconciliation: Reconciliation) -> float | None:
        """After how many seconds a join that sleeps is looked at again, where its watcher does not tell of itself by its Deployment."""
        settings, sleep = self._ports.settings, reconciliation.sleep
        if sleep is None or not sleep.is_asleep:
            return None
        return settings.start_seconds if sleep.is_watched else settings.poll_seconds

    def _window(self, reconciliation: Reconciliation) -> str | None:
        """The time of ``spec.suspendDuring`` that it is. That is heeded as ``suspend`` is, also where the rest of the spec is refused."""
        try:
            given = SUSPEND_DURING.validate_json(json.dumps(reconciliation.body["spec"].get("suspendDuring") or []))
        except ValidationError:
            return None
        return next((str(window) for window in windows(given) if window.contains(self._ports.now)), None)

    def _idle(self, reconciliation: Reconciliation) -> str | None:
        """``spec.idle.after``, where the driver of this very spec runs and has had nothing to do for so long."""
        memo, manifest = reconciliation.memo, reconciliation.derived.manifest
        idle, (seconds, said_at) = None if manifest is None else manifest.spec.idle, memo.idle
        if idle is None or seconds is None or seconds < idle.after.micros / 1e6:
            return None
        is_old = self._ports.clock() - said_at > self._ports.settings.poll_seconds
        is_held = reconciliation.refused is not None or not reconciliation.has_acted or memo.waiting is not None
        is_running = reconciliation.is_driver_ready and not reconciliation.is_rolling
        return str(idle.after) if is_running and not is_old and not is_held else None

    async def _wakes(self, reconciliation: Reconciliation, sleep: Sleep) -> str | None:
        """What wakes a join that is watched; None: nothing does yet."""
        manifest, deployment, resource = reconciliation.derived.manifest, reconciliation.deployment, reconciliation.resource
        if manifest is not None and manifest.spec.idle is None:
            return "spec.idle is not there any more"
        if reconciliation.checking and reconciliation.refused is None:
            wanted = reconciliation.driver(self._ports.settings)["metadata"]["annotations"][names.REVISION]
            if annotations_of(deployment).get(names.REVISION) != wanted:
                return "what the driver is started for has changed"
        if ((reconciliation.watcher or {}).get("status") or {}).get("readyReplicas") and not reconciliation.checking:
            return None  # the sources have answered, and one that has found something is never ready again
        pods = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.WATCHER))
        if has_found(pods):
            return "there is something to read"
        await self._driver_steps.watcher(reconciliation, pods)
        if is_blind(reconciliation.watcher, pods, sleep, self._ports.now):
            why = "" if reconciliation.watch_trouble is None else f": {reconciliation.watch_trouble.message}"
            return f"its sources could not be asked for a while{why}"
        return None
