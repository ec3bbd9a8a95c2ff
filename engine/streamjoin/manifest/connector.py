"""The facts that a source, a sink or a store of snapshots states about itself, so that no other code asks which of them it has.

A connector is the model of its fields in a manifest, with what the rest of the program must know of it: its identity, its capabilities, its
checks, its rules for the API server. The half that reads or writes is in the runtime, which the operator does not load: the model names it
as packages name entry points.

Always holds: a source and a sink have an identity, as a model without one cannot be made. tests/test_connectors.py holds capabilities
against what connectors do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, get_args

from streamjoin.language.schema import Schema
from streamjoin.language.types import DataType
from streamjoin.manifest.checks import Check, value_at
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Duration

KAFKA_METRICS = "kafka"
"""The metrics of clients of Kafka, which the catalogue has."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that an extra of pyproject.toml brings."""

    name: str
    module: str
    """As it is imported."""
    extra: str

    def __str__(self) -> str:
        return self.name


class Connector(Part):
    """A source, a sink or a store."""

    package: ClassVar[Package | None] = None
    """The package that it needs, if not every engine has it."""
    metrics: ClassVar[str] = ""
    """The family of its own metrics (``serve.catalogue``); empty: none."""

    def packages(self) -> Iterator[tuple[str, Package]]:
        """The packages that it needs, each with the field in it that needs it; empty: all of it."""
        if self.package is not None:
            yield "", self.package

    def problems(self, field: str) -> Check:
        """Problems of its fields together. ``field``: where it stands in the manifest."""
        yield from ()

    def remarks(self, field: str) -> Check:
        """Remarks on fields that are allowed but perhaps not meant."""
        yield from ()

    def directory(self) -> str | None:
        """The place that it reads or writes, as the manifest has it; None: it has none of its own, or it was refused."""
        return value_at(self, "path") if "path" in type(self).model_fields else None

    def moved(self, place: Callable[[str], str]) -> Self:
        """The same, with ``place`` applied to its path, if it has one."""
        return self.model_copy(update={"path": place(value_at(self, "path"))}) if "path" in type(self).model_fields else self

    def located(self, place: Callable[[str], str]) -> Self:
        """The same, as a job has it: defaults filled in, and its path a place (``location.place``)."""
        return self.moved(place)

    def hurried(self, most: Duration) -> Self:
        """The same, waiting for its server no longer than that, if it has a ``timeout``."""
        return self.model_copy(update={"timeout": min(value_at(self, "timeout"), most)}) if "timeout" in type(self).model_fields else self


class SinkConnector(Connector):
    """A sink."""

    opener: ClassVar[str]
    """The function ``(model, io.factory.Writing) -> io.base.Sink``, as ``module:name``. Empty: it takes results from snapshots of them, and
    the engine writes nothing else."""
    results: ClassVar[str | None] = None
    """The function ``(model, Arrow schema) -> batches`` that reads visible results back, as ``module:name``; None: there is none."""
    is_exactly_once: ClassVar[bool] = True
    """Whether readers see each result once, whatever dies; otherwise some may come again."""
    replaces_by_key: ClassVar[bool] = False
    """Whether a result takes the place of one with the same key, so that one that is found again changes nothing."""
    is_shown: ClassVar[bool] = False
    """Whether results are only shown by the driver. A program that runs the join by itself is given them instead."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The place where results go: what is committed for one place is visible nowhere else."""

    def shown(self, shorten: Callable[[str], str]) -> str:
        """The place where results go, for a view. ``shorten``: how paths are shown."""
        return self.moved(shorten).identity

    def column_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        """Problems of it together with the output's columns. ``field``: the output."""
        yield from ()


class SourceConnector(Connector):
    """A source."""

    opener: ClassVar[str]
    """The function ``(model, io.factory.Reading) -> io.base.Source``, as ``module:name``."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """The fields that make the identity, as the manifest names them: they may not change under a checkpoint."""
    continued: ClassVar[Mapping[str, str]] = {}
    """Fields whose change may make an identity that goes on from the one before (:meth:`goes_on_from`), each with how it does."""
    is_consumed: ClassVar[bool] = False
    """Whether what a commit has read is removed, so that nobody can read it again."""
    is_outside: ClassVar[bool] = True
    """Whether its records come from outside this program: ``validate`` looks whether they can be read, and dead letters may be asked for
    again, if ``io.replays`` knows their splits."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The input that is read: a position in one source says nothing about another."""

    def within(self, directory: str) -> Self:
        """The same, of a stream that may keep what it needs of its own in this directory of the checkpoint."""
        return self

    def goes_on_from(self, before: str) -> bool:
        """Whether a position that was made under another identity is one in this source, too."""
        return before == self.identity

    def refusal(self, field: str, before: str) -> str | None:
        """Why it cannot go on from another identity, with the field; None: because they differ."""
        return None

    @property
    def default_watermark(self) -> Duration | None:
        """The watermark of a stream of it without one; None: a stream with event times must have one."""
        return None

    @property
    def partition_idle_micros(self) -> int:
        """How long a partition may be silent before it is not waited for; of no meaning without partitions."""
        return 0

    @property
    def partitions_of(self) -> str:
        """The name of what has the partitions, for metrics; empty: there are none, or plans name it."""
        return ""

    def schema_problems(self, field: str, schema: Schema, event_time: str | None) -> Check:
        """Problems of it together with the stream's schema. ``field``: the stream; ``event_time``: the column of event times."""
        yield from ()

    def loop_problems(self, field: str, sinks: Sequence[tuple[str, SinkConnector]]) -> Check:
        """Problems of reading what the resource's ``sinks`` (field, sink) write, as input. Directories are compared elsewhere."""
        yield from ()


def kinds_of(part: type[Part]) -> Iterator[tuple[str, type[Connector]]]:
    """The connectors that a ``source``, ``sink`` or ``store`` may have, by field."""
    for name, info in part.model_fields.items():
        for kind in get_args(info.annotation):
            if isinstance(kind, type) and issubclass(kind, Connector):
                yield info.alias or name, kind


def given(part: Part | None) -> Iterator[tuple[str, Connector]]:
    """The connectors that a ``source``, ``sink`` or ``store`` has, by field: one, unless that is a problem."""
    if part is not None:
        for name, info in type(part).model_fields.items():
            value = value_at(part, name)
            if isinstance(value, Connector):
                yield info.alias or name, value
