"""A decision of the core as a record: what to do, why, by which numbers, and what each rule said.

Always holds: records are frozen, and JSON without NaN or infinity (``to_json``) and back (``from_json``) is the same record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from streamjoin.elastic.arbitration import Bill
from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Mode, Rule
from streamjoin.manifest.quantity import Memory


class Kind(StrEnum):
    """What to do."""

    HOLD = "HOLD"
    ALLOCATE = "ALLOCATE"
    DEALLOCATE = "DEALLOCATE"
    REPLAN = "REPLAN"
    ENLARGE = "ENLARGE"
    """Give the workers that run more memory; the plan stays."""
    REORDER = "REORDER"
    """Nothing that is left to do: the driver has begun to join three and more streams in another way."""


class Reason(StrEnum):
    """Why. The first group are reasons to act, the second to hold still."""

    FULL = "Full"
    """tau was at or above tau3 for scaleUpAfter."""
    UNEVEN = "Uneven"
    """The fullest worker is much fuller than the mean."""
    RATIO_MOVED = "RatioMoved"
    """The streams' ratio is not that which the plan was made for."""
    BEHIND = "Behind"
    """Epochs take longer than their interval, and what waits grows."""
    UNUSED = "Unused"
    """tau was at or below tau0 for scaleDownAfter."""
    BELOW_FLOOR = "BelowFloor"
    """Fewer workers than the least allowed."""
    ABOVE_CEILING = "AboveCeiling"
    """More workers than the most allowed."""
    ORDERED = "Ordered"
    """Somebody has changed the limits or the model: no rule decided it."""

    CHEAPER = "Cheaper"
    """Streams that meet in another way are expected to have less sent between workers."""
    BUDGET = "Budget"
    """The budget for lost results was going to be spent."""

    STEADY = "Steady"
    """Nothing calls for a change."""
    OFF = "Off"
    """The rule, or each of them, is off."""
    SUSPENDED = "Suspended"
    PAUSED = "Paused"
    """By an operator."""
    NO_SAMPLE = "NoSample"
    """None of this plan yet."""
    STALE = "Stale"
    """The last sample is too old."""
    BAD_SAMPLE = "BadSample"
    """The last sample lacks something."""
    UNCONFIRMED = "Unconfirmed"
    """Nobody confirms the last sample, which is the join's own: by it workers are added, and none removed."""
    QUIET = "Quiet"
    """It is a time at which no change is to begin."""
    TOO_OFTEN = "TooOften"
    """There were as many changes in the last hour as there may be."""
    WAITING = "Waiting"
    """The condition has not lasted long enough."""
    MIGRATING = "Migrating"
    """State is on the move."""
    STARTING = "Starting"
    """Workers are starting, and count."""
    AT_LIMIT = "AtLimit"
    """No more workers are allowed."""
    SHEDDING = "Shedding"
    """Tuples are dropped: no time to remove workers."""
    WITHIN_BUDGET = "WithinBudget"
    """Results are lost, no more than may be, and a change costs more than it saves."""
    WOULD_SHED = "WouldShed"
    """Tuples would be dropped, and are not, as that is only recommended."""
    RISING = "Rising"
    """Held tuples grow: no time to remove workers."""
    BUSY = "Busy"
    """Fewer workers would not keep up."""
    WOULD_EXCEED = "WouldExceed"
    """tau would be too high afterwards."""
    NO_FORECAST = "NoForecast"
    """It cannot be said what a change would do."""
    NO_GAIN = "NoGain"
    """A change would not lower tau enough."""
    NOT_WORTH = "NotWorth"
    """A change costs more than it saves."""
    INEFFECTIVE = "Ineffective"
    """The last workers that were added did not help."""
    UNABLE = "Unable"
    """Workers that run cannot be given more memory."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule said. ``kind`` HOLD: it refuses, and ``reason`` says why."""

    rule: Rule
    kind: Kind
    reason: Reason
    sentence: str
    target: int
    """Workers afterwards."""
    mode: Mode = Mode.ENFORCE


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of workers that was considered."""

    workers: int
    prospect: Prospect
    bill: Bill | None = None
    """None where only its tau was asked for."""


@dataclass(frozen=True, slots=True)
class Enlargement:
    """More memory for each worker that runs, as it was considered. Memory in bytes."""

    before: int
    memory: int
    prospect: Prospect
    """Of the plan that runs, with that memory."""
    bill: Bill

    @property
    def words(self) -> str:
        """``3Gi of memory instead of 2Gi``."""
        return f"{Memory(self.memory)} of memory instead of {Memory(self.before)}"


@dataclass(frozen=True, slots=True)
class PathPlanChange:
    """Of one stream's new tuples: how they met the other streams, and how they do now."""

    stream: str
    before: str
    after: str
    bytes_before: float
    """Per second, as both were priced when it was changed."""
    bytes_after: float


@dataclass(frozen=True, slots=True)
class Reordering:
    """A change of ways (:mod:`streamjoin.elastic.path_plans`)."""

    changes: tuple[PathPlanChange, ...]
    rounds: tuple[int, int]
    """Of the exchange in each epoch, before and after."""
    seconds: tuple[float, float]
    """What they and all bytes are expected to add to an epoch, before and after."""
    measured: Mapping[str, Any]
    """What it was decided by (``Flowing.to_json``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now."""

    at: float
    kind: Kind
    rule: Rule | None
    """None: no rule had a say, as while suspended."""
    reason: Reason
    sentence: str
    generation: int
    """Of the plan that it is about."""
    workers: int
    """Of that plan."""
    target: int
    """Workers afterwards; the same as ``workers`` for HOLD, REPLAN and ENLARGE."""
    mode: Mode
    """ENFORCE: carry it out. RECOMMEND: only say it. A HOLD is always ENFORCE."""
    inputs: Reading | None
    """The last sample; None before the first of this plan."""
    age_seconds: float | None
    """Of the inputs."""
    held_for: float | None = None
    """For how many seconds the condition has lasted, where one did."""
    shed_factor: float = 0.0
    """The shed factor at the fullest worker's tau (``shedding.shed_factor``)."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    """In order of workers."""
    stay: Bill | None = None
    """What it would cost to change nothing."""
    prediction: Prospect | None = None
    """What is expected of the target."""
    verdicts: tuple[Verdict, ...] = ()
    """What each rule said, the refusals with their reasons."""
    reordering: Reordering | None = None
    """Of a REORDER: what has changed."""
    enlargement: Enlargement | None = None
    """More memory, where that was considered."""

    @property
    def enforced(self) -> bool:
        """Whether there is a plan to carry out."""
        return self.kind not in {Kind.HOLD, Kind.REORDER, Kind.ENLARGE} and self.mode is Mode.ENFORCE

    @property
    def enlarges(self) -> bool:
        """Whether workers are to get more memory."""
        return self.kind is Kind.ENLARGE and self.mode is Mode.ENFORCE

    @property
    def is_told(self) -> bool:
        """Whether it is worth remembering for long: it was to change something, or somebody has ordered it."""
        return self.kind is not Kind.HOLD or self.reason is Reason.ORDERED

    @property
    def signature(self) -> tuple[Any, ...]:
        """What makes two decisions the same thing said twice: all but numbers and times. Orders, and changes of how streams meet, are told
        apart by their words, and those that give more memory by how much."""
        said = tuple((verdict.rule, verdict.kind, verdict.reason, verdict.target, verdict.mode) for verdict in self.verdicts)
        order = self.sentence if self.reason in {Reason.ORDERED, Reason.CHEAPER} else None
        if self.kind is Kind.ENLARGE and self.enlargement is not None:
            order = self.enlargement.words
        return self.kind, self.rule, self.reason, self.generation, self.workers, self.target, self.mode, said, order

    def to_json(self) -> dict[str, Any]:
        """Plain data: dicts, lists, texts, finite numbers and None."""
        return {
            "at": self.at,
            "kind": self.kind.value,
            "rule": None if self.rule is None else self.rule.value,
            "reason": self.reason.value,
            "sentence": self.sentence,
            "generation": self.generation,
            "workers": self.workers,
            "target": self.target,
            "mode": self.mode.value,
            "inputs": None if self.inputs is None else self.inputs.to_json(),
            "age_seconds": self.age_seconds,
            "held_for": self.held_for,
            "shed_factor": self.shed_factor,
            "thresholds": dict(self.thresholds),
            "candidates": [
                {
                    "workers": candidate.workers,
                    "prospect": _slots(candidate.prospect),
                    "bill": None if candidate.bill is None else candidate.bill.to_json(),
                }
                for candidate in self.candidates
            ],
            "stay": None if self.stay is None else self.stay.to_json(),
            "prediction": None if self.prediction is None else _slots(self.prediction),
            "verdicts": [
                {
                    "rule": verdict.rule.value,
                    "kind": verdict.kind.value,
                    "reason": verdict.reason.value,
                    "sentence": verdict.sentence,
                    "target": verdict.target,
                    "mode": verdict.mode.value,
                }
                for verdict in self.verdicts
            ],
            "reordering": None if self.reordering is None else asdict(self.reordering),
            "enlargement": None if self.enlargement is None else asdict(self.enlargement),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        return cls(
            at=data["at"],
            kind=Kind(data["kind"]),
            rule=None if data["rule"] is None else Rule(data["rule"]),
            reason=Reason(data["reason"]),
            sentence=data["sentence"],
            generation=data["generation"],
            workers=data["workers"],
            target=data["target"],
            mode=Mode(data["mode"]),
            inputs=None if data["inputs"] is None else Reading.from_json(data["inputs"]),
            age_seconds=data["age_seconds"],
            held_for=data["held_for"],
            shed_factor=data["shed_factor"],
            thresholds=dict(data["thresholds"]),
            candidates=tuple(Candidate(one["workers"], Prospect(**one["prospect"]), _bill(one["bill"])) for one in data["candidates"]),
            stay=_bill(data["stay"]),
            prediction=None if data["prediction"] is None else Prospect(**data["prediction"]),
            verdicts=tuple(
                Verdict(Rule(one["rule"]), Kind(one["kind"]), Reason(one["reason"]), one["sentence"], one["target"], Mode(one["mode"]))
                for one in data["verdicts"]
            ),
            reordering=_reordering(data.get("reordering")),
            enlargement=_enlargement(data.get("enlargement")),
        )


def _slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _reordering(data: Mapping[str, Any] | None) -> Reordering | None:
    if data is None:
        return None
    changes = tuple(PathPlanChange(**change) for change in data["changes"])
    (rounds, then_rounds), (seconds, then_seconds) = data["rounds"], data["seconds"]
    return Reordering(changes, (rounds, then_rounds), (seconds, then_seconds), data["measured"])


def _enlargement(data: Mapping[str, Any] | None) -> Enlargement | None:
    return None if data is None else Enlargement(data["before"], data["memory"], Prospect(**data["prospect"]), Bill(**data["bill"]))


def _bill(data: Mapping[str, Any] | None) -> Bill | None:
    return None if data is None else Bill(**{name: value for name, value in data.items() if name != "total"})
