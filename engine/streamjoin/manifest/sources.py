"""Where a stream's tuples come from: the fields of ``source``. A new source is a field here, and a module of ``connectors``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import StringConstraints

from streamjoin.manifest.connector import SourceConnector, given, kinds_of
from streamjoin.manifest.connectors.delta import DeltaSource
from streamjoin.manifest.connectors.files import FilesSource
from streamjoin.manifest.connectors.generator import GeneratorSource
from streamjoin.manifest.connectors.iceberg import IcebergSource
from streamjoin.manifest.connectors.kafka import KafkaSource
from streamjoin.manifest.connectors.spark import SparkSource
from streamjoin.manifest.connectors.staged import StagedSource
from streamjoin.manifest.part import Part


class Source(Part):
    """Where a stream's tuples come from: exactly one of the fields."""

    files: FilesSource | None = None
    """Files in a directory."""
    generator: GeneratorSource | None = None
    """Made-up tuples, to try things and to measure."""
    kafka: KafkaSource | None = None
    """A Kafka topic, or several."""
    delta: DeltaSource | None = None
    """The rows added to a Delta table."""
    iceberg: IcebergSource | None = None
    """The rows appended to an Iceberg table."""
    spark: SparkSource | None = None
    """Whatever Spark can read, by the format's name."""
    staged: StagedSource | None = None
    """Micro-batches of a streaming DataFrame, as streamjoin.spark.join stages them."""
    join: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """The results of another join of this manifest, given by the join's name."""


SOURCES = {name: kind for name, kind in kinds_of(Source) if issubclass(kind, SourceConnector)}
"""Source (field -> model)."""


def sources_in(part: Source | None) -> Iterator[tuple[str, SourceConnector]]:
    """The sources that are given, by field: one, unless that is a problem or it is a join."""
    return ((name, each) for name, each in given(part) if isinstance(each, SourceConnector))
