"""Where results go: the fields of ``sink``. A new sink is a field here, and a module of ``connectors``."""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.manifest.connector import SinkConnector, given, kinds_of
from streamjoin.manifest.connectors.console import ConsoleSink
from streamjoin.manifest.connectors.delta import DeltaSink
from streamjoin.manifest.connectors.files import FilesSink
from streamjoin.manifest.connectors.iceberg import IcebergSink
from streamjoin.manifest.connectors.kafka import KafkaSink
from streamjoin.manifest.connectors.postgres import PostgresSink
from streamjoin.manifest.connectors.spark import SparkSink
from streamjoin.manifest.part import Part


class Sink(Part):
    """Where results go: exactly one of the fields."""

    files: FilesSink | None = None
    """Files in a directory: each result exactly once."""
    console: ConsoleSink | None = None
    """Standard output."""
    kafka: KafkaSink | None = None
    """A Kafka topic: each result at least once, with an identity that shows repeats; or exactly once, by transactions."""
    delta: DeltaSink | None = None
    """A Delta table: each result exactly once."""
    iceberg: IcebergSink | None = None
    """An Iceberg table: each result exactly once."""
    postgres: PostgresSink | None = None
    """A table of PostgreSQL: each result once. It replaces the row with the same key."""
    spark: SparkSink | None = None
    """Whatever Spark can write, by the format's name: each result at least once, or exactly once where Spark's own writer does so."""


SINKS = {name: kind for name, kind in kinds_of(Sink) if issubclass(kind, SinkConnector)}
"""Sink (field -> model)."""
SUGGESTED = tuple(sorted(SINKS, key=lambda name: (SINKS[name].is_shown, not SINKS[name].is_exactly_once)))
"""The fields of ``sink``, those first that promise most."""


def sinks_in(part: Sink | None) -> Iterator[tuple[str, SinkConnector]]:
    """The sinks that are given, by field: one, unless that is a problem."""
    return ((name, each) for name, each in given(part) if isinstance(each, SinkConnector))
