"""The end of a reconcile: the status is written if it differs, and then what happened is told in events."""

from __future__ import annotations

import json
import logging

from streamjoin_operator import api, children, names, status
from streamjoin_operator.api import ApiError
from streamjoin_operator.correlation import Told
from streamjoin_operator.definition import Definition
from streamjoin_operator.drift import Object, annotations_of, digest
from streamjoin_operator.facts import Facts
from streamjoin_operator.instants import instant
from streamjoin_operator.measurement import Source
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import Reconciliation
from streamjoin_operator.resource import Resource
from streamjoin_operator.seen import Seen
from streamjoin_operator.sleeping import Sleep
from streamjoin_operator.trial import image_of

TOLD = (
    *(("Available", reason) for reason in (Reason.JoinRunning, Reason.Suspending, Reason.Suspended)),
    *(("Available", reason) for reason in (Reason.SuspendedWhenIdle, Reason.SuspendedBySchedule)),
    ("Rescaling", Reason.Rescaling),
)
"""Conditions and reasons that are worth an event though nothing is wrong."""

log = logging.getLogger(__name__)


class Reporter:
    """See the module."""

    def __init__(self, ports: Ports, seen: Seen) -> None:
        self._ports, self._seen = ports, seen
        self._definition = Definition(ports.api, ports.clock)

    async def report(self, reconciliation: Reconciliation) -> float | None:
        """Write the status if it differs, then tell what happened. Returns after how many seconds what is held back is to be written."""
        self._ports.on_step("report")
        await self._definition.look()
        stored = reconciliation.body.get("status") or {}
        write = status.status_of_failure if reconciliation.is_partial else status.status
        written = self._definition.storable(write(self._facts(reconciliation), stored, instant(self._ports.now)))
        patch = status.patch_of(stored, written)
        waits = status.only_measurements(patch) and self._ports.clock() - reconciliation.memo.wrote_at < self._ports.settings.status_seconds
        held = None if waits else self._held(reconciliation, stored, patch)
        if patch and not waits and held is None:
            body = {"metadata": {"resourceVersion": reconciliation.body["metadata"]["resourceVersion"]}, "status": patch}
            try:
                after = await self._ports.api.patch(
                    api.STREAM_JOIN.status, reconciliation.resource.namespace, reconciliation.resource.name, body
                )
            except ApiError as error:
                if error.status == 404:  # deleted meanwhile
                    return None
                if error.status == 422:
                    self._definition.expire()
                if error.status == 409:
                    await self._refresh(reconciliation)
                raise
            reconciliation.memo.wrote_at = self._ports.clock()
            reconciliation.body = after
            self._seen.saw(after)
            reconciliation.events += first_plans(stored, written) + transitions(stored, written) + plans_given_up(stored, written)
            reconciliation.events += taken_over(stored, written)
        self._ports.on_step("post")
        await self.post(reconciliation)
        return held

    def _held(self, reconciliation: Reconciliation, stored: Object, patch: Object) -> float | None:
        """For how many seconds the status of a join that flaps is not written. What somebody has just asked for is answered at once."""
        writes, now = reconciliation.memo.writes, self._ports.clock()
        answered = {condition.get("observedGeneration") for condition in stored.get("conditions") or [] if condition.get("type") == "Ready"}
        is_answer = reconciliation.resource.generation not in answered or reconciliation.is_being_deleted
        if not patch or status.only_measurements(patch) or is_answer:
            return None
        return None if writes.take(now) else writes.wait(now)

    async def _refresh(self, reconciliation: Reconciliation) -> None:
        """Our copy is behind: the watch will bring the newer one, but may take its time."""
        found = await self._ports.api.get(api.STREAM_JOIN, reconciliation.resource.namespace, reconciliation.resource.name)
        if found is not None:
            self._seen.saw(found)

    def _facts(self, reconciliation: Reconciliation) -> Facts:
        derived, deployed = reconciliation.derived, (reconciliation.deployment or {}).get("status") or {}
        scaler = reconciliation.memo.scaler
        measured = None if scaler is None or reconciliation.refused is not None else scaler.measured
        annotations = annotations_of(reconciliation.memo.record)
        return Facts(
            generation=reconciliation.resource.generation,
            suspended=reconciliation.is_suspended,
            suspended_by=reconciliation.suspended_by,
            sleep=Sleep.of(reconciliation.deployment),
            paused=reconciliation.is_paused,
            refused=reconciliation.refused,
            trying=reconciliation.trying,
            definition_lacks=self._definition.lacks,
            driver_wanted=reconciliation.deployment is not None and bool(reconciliation.deployment["spec"].get("replicas")),
            stands_by=reconciliation.stands_by,
            driver_pods=len(reconciliation.pods) or deployed.get("replicas", 0),
            driver_ready=reconciliation.is_driver_ready,
            trouble=reconciliation.trouble,
            executors_trouble=reconciliation.executors_trouble,
            queries=children.queries_of(reconciliation.resource, reconciliation.query_servers),
            queries_trouble=reconciliation.queries_trouble,
            watch_trouble=reconciliation.watch_trouble,
            claim_trouble=reconciliation.memo.claim_trouble,
            report=reconciliation.report,
            plan_refused=reconciliation.memo.plan_refused,
            plan_dropped=reconciliation.plan_dropped,
            resizing=reconciliation.resizing,
            resize_trouble=reconciliation.resize_trouble,
            initial_workers=derived.workers,
            first=derived.first,
            has_begun=reconciliation.has_begun,
            has_run=reconciliation.has_run,
            wanted_workers=reconciliation.wanted_workers,
            change=json.loads(annotations[names.CHANGE])
            if names.CHANGE in annotations
            else (reconciliation.body.get("status") or {}).get("change"),
            image="" if reconciliation.deployment is None else image_of(reconciliation.deployment["spec"]["template"]),
            memory=derived.memory,
            rolling=reconciliation.is_rolling,
            has_acted=reconciliation.has_acted,
            spec_digest=digest({name: value for name, value in reconciliation.body["spec"].items() if name != "paused"}),
            plan_unmet=reconciliation.plan_unmet,
            deleting=reconciliation.deleting,
            selector=status.selector_of(reconciliation.resource.name),
            shed_ratio=reconciliation.memo.shed_ratio,
            rate=reconciliation.memo.rate,
            scaler=scaler,
            by_prometheus=measured.sample if measured is not None and measured.source is Source.PROMETHEUS else None,
            most_workers=derived.job.max_workers if derived.job is not None else None,
            workers_per_executor=derived.job.workers_per_executor if derived.job is not None else None,
            price=self._ports.settings.price_per_executor_hour,
            at=self._ports.now,
        )

    async def post(self, reconciliation: Reconciliation) -> None:
        """Events for what was done and for conditions that changed. One that cannot be posted is only logged."""
        made = [message for _, reason, message in reconciliation.events if reason is Reason.Created]
        told = list(dict.fromkeys(event for event in reconciliation.events if event[1] is not Reason.Created))
        if made:
            told.insert(0, ("Normal", Reason.Created, ", ".join(made)))
        reconciliation.events.clear()
        for kind, reason, message in told:
            log.info(
                "%s: %s", reason.name, message, extra={"streamjoin": f"{reconciliation.resource.namespace}/{reconciliation.resource.name}"}
            )
            resource, memo = reconciliation.resource, reconciliation.memo
            event = memo.correlator.event(resource.uid, kind, reason.name, message, self._ports.clock(), self._ports.now)
            if event is None:
                continue
            try:
                await self._post(resource, kind, reason, event)
            except ApiError as error:
                log.warning("event %s not posted: %s", reason.name, error)

    async def _post(self, resource: Resource, kind: str, reason: Reason, told: Told) -> None:
        """Anew, or what has changed of it where it is there."""
        event = _event(resource, kind, reason, told)
        if told.name is not None:
            changed = {name: event[name] for name in ("count", "lastTimestamp", "message")}
            try:
                await self._ports.api.patch(api.EVENT, resource.namespace, told.name, changed)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        told.name = (await self._ports.api.create(api.EVENT, resource.namespace, event))["metadata"]["name"]


def _event(resource: Resource, kind: str, reason: Reason, told: Told) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{resource.base}.", "namespace": resource.namespace},
        "involvedObject": {
            "apiVersion": api.STREAM_JOIN.group_version,
            "kind": api.STREAM_JOIN.kind,
            "name": resource.name,
            "namespace": resource.namespace,
            "uid": resource.uid,
        },
        "type": kind,
        "reason": reason.name,
        "message": told.message,
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "firstTimestamp": instant(told.first_at),
        "lastTimestamp": instant(told.last_at),
        "count": told.count,
    }


def transitions(before: Object, after: Object) -> list[tuple[str, Reason, str]]:
    """Events for conditions that changed: those that say that something is wrong as warnings."""
    old = {condition["type"]: condition for condition in before.get("conditions") or []}
    events = []
    for condition in after["conditions"]:
        last = old.get(condition["type"], {"status": "False", "reason": None})
        if (last["status"], last["reason"]) == (condition["status"], condition["reason"]):
            continue
        reason, is_true = Reason[condition["reason"]], condition["status"] == "True"
        if condition["type"] in ("Degraded", "EpochStalled") and is_true:
            events.append(("Warning", reason, condition["message"]))
        elif condition["type"] == "Shedding" and (is_true or last["status"] == "True"):
            events.append(("Warning" if is_true else "Normal", reason, condition["message"]))
        elif (condition["type"], reason) in TOLD:
            events.append(("Normal", reason, condition["message"]))
    return events


def first_plans(before: Object, after: Object) -> list[tuple[str, Reason, str]]:
    """The event for a first plan that the status did not show before; a refusal is told by its condition."""
    shown = after.get("firstPlan")
    if shown is None or shown == before.get("firstPlan"):
        return []
    is_refused = any(condition["reason"] == Reason.FirstPlanTooFull.name for condition in after["conditions"])
    return [] if is_refused else [("Normal", Reason.FirstPlan, shown["message"])]


def taken_over(before: Object, after: Object) -> list[tuple[str, Reason, str]]:
    """The event for a standby that has become the driver at work since."""
    known, at = ((status.get("standby") or {}).get("tookOverAt") for status in (before, after))
    if at in (None, known):
        return []
    return [("Normal", Reason.StandbyTookOver, f"at {at} the driver at work was gone; the one that stood by goes on from the last commit")]


def plans_given_up(before: Object, after: Object) -> list[tuple[str, Reason, str]]:
    """Events for plans that the status shows as given up and did not show before."""
    known, shown = ((status.get("plan") or {}).get("givenUp") or [] for status in (before, after))
    # The driver remembers the latest plans, and the status the latest of these: what was known may have moved out at the front.
    same = next(count for count in range(min(len(known), len(shown)), -1, -1) if known[len(known) - count :] == shown[:count])
    reasons = {"Dropped": ("Warning", Reason.PlanDropped), "Replaced": ("Normal", Reason.PlanReplaced)}
    return [(*reasons[plan["fate"]], plan["reason"]) for plan in shown[same:]]
