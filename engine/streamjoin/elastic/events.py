"""What the decision core is told, beside samples. Times are seconds by the same clock as the samples'."""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings


@dataclass(frozen=True, slots=True)
class PlanApplied:
    """The join runs another plan. Samples that are older, or of another generation, do not count from now on."""

    at: float
    generation: int
    workers: int


@dataclass(frozen=True, slots=True)
class MigrationBegun:
    """State is on the move to a plan of so many workers."""

    at: float
    workers: int


@dataclass(frozen=True, slots=True)
class MigrationFinished:
    """All state is where its plan wants it: the new plan's, or the old one's if the migration was given up."""

    at: float


@dataclass(frozen=True, slots=True)
class Suspended:
    """The join stands still (``spec.suspend``)."""

    at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The join runs again."""

    at: float


@dataclass(frozen=True, slots=True)
class Paused:
    """An operator wants no decisions carried out for now."""

    at: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class Unpaused:
    """An operator lets decisions be carried out again."""

    at: float


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """An operator's own limits (``/scale``), within the manifest's; None: the manifest's."""

    at: float
    floor: int | None = None
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The manifest says something else."""

    at: float
    settings: Settings


Event = Sample | PlanApplied | MigrationBegun | MigrationFinished | Suspended | Resumed | Paused | Unpaused | LimitsSet | SettingsChanged
