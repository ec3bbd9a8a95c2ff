"""How far a StreamJoin's spec is carried out: the conditions Ready, Reconciling and Stalled, the generations and the phase.

By these ``kubectl wait``, kstatus (sigs.k8s.io/cli-utils, with which Flux and Helm wait) and Argo CD judge a resource. A spec that is
refused, or is still being tried, leaves the join running as an earlier spec wants it. Available says whether a join runs; Ready says
whether it runs as the newest spec asks.

Always holds: pure; Ready is True only for a generation that is carried out; Reconciling and Stalled are never both True;
``observedGeneration`` is a generation that was carried out or refused, so a reader who compares it with ``metadata.generation`` is told
neither too early nor never; kstatus finds the resource Current exactly when its generation is carried out, nothing is under way and what it
asks for is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamjoin_operator.reasons import Reason

Cause = tuple[Reason, str]
"""A reason, and a message for people."""

PASSING = frozenset({Reason.ApiFailing, Reason.SecretUnusable})
"""Reasons that end without a change of the spec, as a rule: the operator waits for them. All other refusals are Stalled."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now."""

    type: str
    status: bool | None
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that the outcome follows from."""

    generation: int
    """``metadata.generation``."""
    available: Condition
    """Whether a join runs, of whatever generation."""
    running: str
    """The phase of what runs."""
    applied: int | None = None
    """The last generation that was carried out, as the status has it."""
    observed: int | None = None
    """``status.observedGeneration``, likewise."""
    is_carried_out: bool = False
    """Whether all that this generation asks for has been done."""
    unmet: Cause | None = None
    """What of it has yet to be done, where the driver runs."""
    refused: Cause | None = None
    """Why the operator cannot go on."""
    trying: Cause | None = None
    """What is tried or waited for before the driver is replaced."""
    restarting: bool = False
    """Whether the driver is to come up, for whatever reason."""
    deleting: Cause | None = None
    paused: bool = False
    suspended: bool = False
    suspended_by: Cause = (Reason.Suspended, Reason.Suspended.value)
    stopped: bool = False
    """Whether no pod of the driver is left."""
    has_driver: bool = True
    """Whether a driver is wanted, by this spec or by the one before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is written of it."""

    ready: Condition
    reconciling: Condition
    stalled: Condition
    applied: int | None
    """``status.appliedGeneration``."""
    observed: int | None
    """``status.observedGeneration``."""
    phase: str


def outcome(standing: Standing) -> Outcome:
    """See the module. O(1)."""
    applied = standing.generation if standing.is_carried_out else standing.applied
    now = replace(standing, applied=applied)
    stalled = _stalled(now)
    is_settled = applied == now.generation or stalled.status
    return Outcome(
        ready=_ready(now),
        reconciling=_reconciling(now, stalled),
        stalled=stalled,
        applied=applied,
        observed=now.generation if is_settled else now.observed,
        phase=_phase(now),
    )


def _stalled(standing: Standing) -> Condition:
    if standing.refused is not None and standing.refused[0] not in PASSING:
        return Condition("Stalled", True, *standing.refused)
    return Condition("Stalled", False, Reason.NothingRefused)


def _ready(standing: Standing) -> Condition:
    if standing.deleting is not None:
        return Condition("Ready", False, *standing.deleting)
    if standing.applied != standing.generation:
        reason, message = _obstacle(standing)
        goes_on = standing.available.status and standing.applied is not None
        return Condition("Ready", False, reason, f"{message}; the join runs as of generation {standing.applied}" if goes_on else message)
    if standing.suspended:
        return _suspended("Ready", standing.stopped, standing)
    return replace(standing.available, type="Ready")


def _obstacle(standing: Standing) -> Cause:
    """Why this generation is not carried out."""
    if standing.refused is not None:
        return standing.refused
    if standing.paused:
        return Reason.Paused, "spec.paused is true, and what else has changed is not carried out; set it to false, and the operator goes on"
    if standing.suspended:
        return Reason.Suspending, Reason.Suspending.value
    if standing.trying is not None:
        return standing.trying
    if not standing.available.status:
        return standing.available.reason, standing.available.message
    return standing.unmet or (Reason.Applying, Reason.Applying.value)


def _suspended(kind: str, status: bool, standing: Standing) -> Condition:
    return Condition(kind, status, *(standing.suspended_by if standing.stopped else (Reason.Suspending, Reason.Suspending.value)))


def _reconciling(standing: Standing, stalled: Condition) -> Condition:
    if standing.deleting is not None:
        return Condition("Reconciling", not stalled.status, *standing.deleting)
    if stalled.status:
        return Condition("Reconciling", False, stalled.reason, "the operator cannot go on; the condition Stalled says why, and what to do")
    if standing.refused is not None:
        return Condition("Reconciling", True, *standing.refused)
    if standing.paused:
        return Condition("Reconciling", False, Reason.Paused, "spec.paused is true; set it to false, and the operator goes on")
    if standing.suspended:
        return _suspended("Reconciling", not standing.stopped, standing)
    if standing.trying is not None or standing.applied != standing.generation:
        return Condition("Reconciling", True, *_obstacle(standing))
    if standing.restarting:
        return Condition("Reconciling", True, Reason.DriverStarting)
    return Condition("Reconciling", False, Reason.Settled)


def _phase(standing: Standing) -> str:
    """One word of Pending, Starting, Running, Rescaling, Suspended, Paused, Failed, Deleting."""
    if standing.deleting is not None:
        return "Deleting"
    if standing.suspended:
        return "Suspended"
    if standing.paused:
        return "Paused"
    if standing.refused is not None and not standing.has_driver:
        return "Failed"
    return standing.running
