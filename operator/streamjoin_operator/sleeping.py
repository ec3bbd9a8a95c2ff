"""Whether a join sleeps: it is suspended in the times of ``spec.suspendDuring``, and while it has nothing to do (``spec.idle``).

That is noted on the driver's Deployment, in the same write that stops or starts the driver. So an operator that is killed between any two
steps goes on from what that says. While an idle join sleeps, a Deployment of its own, the watcher, asks the sources, and its container ends
with 0 as soon as there is something; whether it has is seen by its pod, and a pod that is lost has a successor that finds the same.

Always holds: pure; a join falls asleep only by what its driver has said, and never sleeps for long with nobody who could wake it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from streamjoin_operator import names
from streamjoin_operator.drift import Object, annotations_of
from streamjoin_operator.instants import instant
from streamjoin_operator.reasons import Reason

IDLE, SCHEDULE = Reason.SuspendedWhenIdle, Reason.SuspendedBySchedule
BLIND_SECONDS = 300.0
"""An idle join whose sources nobody could ask for so long is woken."""
MOST_RESTARTS = 6
"""So is one whose watcher has ended so often: it takes as long, by the pauses of kubelet, which may take it for ready in between."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """The last time that a join slept, or sleeps."""

    why: Reason
    """``IDLE`` or ``SCHEDULE``."""
    since: str
    """RFC 3339, as ``woken_at``."""
    text: str
    """For people."""
    woken_at: str | None = None
    """None: it sleeps."""
    woken_by: str = ""

    @property
    def is_asleep(self) -> bool:
        return self.woken_at is None

    @property
    def is_watched(self) -> bool:
        """Whether a record wakes it."""
        return self.is_asleep and self.why is IDLE

    def woken(self, now: float, by: str) -> Sleep:
        return replace(self, woken_at=instant(now), woken_by=by)

    @property
    def shown(self) -> Object:
        """``status.sleep``."""
        woken = {} if self.woken_at is None else {"wokenAt": self.woken_at, "wokenBy": self.woken_by}
        return {"reason": self.why.name, "since": self.since, "message": self.text, **woken}

    @property
    def note(self) -> str:
        """``names.SLEEP``."""
        return json.dumps(self.shown, sort_keys=True)

    @classmethod
    def of(cls, deployment: Object | None) -> Sleep | None:
        """What is noted on a driver's Deployment; None: nothing that can be read."""
        noted = annotations_of(deployment).get(names.SLEEP)
        if noted is None:
            return None
        try:
            shown = json.loads(noted)
            woken = shown.get("wokenAt"), shown.get("wokenBy", "")
            return cls(Reason[shown["reason"]], shown["since"], shown["message"], *woken)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def next_sleep(before: Sleep | None, now: float, *, suspend: bool, window: str | None, wakes: str | None, idle: str | None) -> Sleep | None:
    """What is to be noted. ``suspend``: ``spec.suspend``; ``window``: the time of ``spec.suspendDuring`` that it is; ``wakes``: what wakes
    an idle join; ``idle``: for how long a join that is awake has had nothing to do, where that is long enough."""
    asleep = before if before is not None and before.is_asleep else None
    if suspend:
        return before if asleep is None else asleep.woken(now, "spec.suspend is true")
    if window is not None:
        text = f"it is in {window} (spec.suspendDuring); the state is kept"
        return asleep if asleep is not None and asleep.why is SCHEDULE else Sleep(SCHEDULE, instant(now), text)
    if asleep is not None:
        by = wakes if asleep.why is IDLE else "it is no time of spec.suspendDuring any more"
        return asleep if by is None else asleep.woken(now, by)
    if idle is None:
        return before
    text = f"no stream had had a record for {idle} at {instant(now)} (spec.idle.after); the first record wakes the join"
    return Sleep(IDLE, instant(now), text)


def has_found(pods: Sequence[Object]) -> bool:
    """Whether a watcher has ended because there is something to read. One of a former sleep may yet have to go."""
    ended = [(container.get(state) or {}).get("terminated") for container in _watchers(pods) for state in ("state", "lastState")]
    return any(each is not None and each.get("exitCode") == 0 for each in ended)


def is_blind(watcher: Object | None, pods: Sequence[Object], sleep: Sleep, now: float) -> bool:
    """Whether nobody has been able to ask the sources for too long. ``watcher``: its Deployment. ``now``: seconds since 1970."""
    if any(container.get("restartCount", 0) >= MOST_RESTARTS for container in _watchers(pods)):
        return True
    status = (watcher or {}).get("status") or {}
    if status.get("readyReplicas"):
        return False
    since = [
        condition["lastTransitionTime"]
        for condition in status.get("conditions") or []
        if condition.get("type") == "Available" and condition.get("status") == "False"
    ]
    began = max(datetime.fromisoformat(each).timestamp() for each in (sleep.since, *since))
    return now - began >= BLIND_SECONDS


def _watchers(pods: Sequence[Object]) -> list[Object]:
    """The statuses of their containers, but for pods that are being deleted."""
    living = (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
    found = (container for pod in living for container in (pod.get("status") or {}).get("containerStatuses") or [])
    return [container for container in found if container.get("name") == names.WATCHER]
