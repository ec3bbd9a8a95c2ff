"""Sources and sinks from the manifest's models. The classes themselves know nothing of manifests."""

from __future__ import annotations

import glob
import math
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.io.base import Sink, Snapshots, Source
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.io.files_times import Times
from streamjoin.io.generator import GeneratorConfig, GeneratorSource
from streamjoin.io.generator_columns import ChoiceValues, HotspotValues, SequenceValues, UniformValues, Values, ZipfValues
from streamjoin.io.generator_rates import ConstantRate, DiurnalRate, RampRate, Rate, SpikeRate
from streamjoin.io.inbox import InboxSink
from streamjoin.io.refused import RefusedResults
from streamjoin.io.sinks import ConsoleSink, ConsoleSinkConfig, FilesSink, FilesSinkConfig
from streamjoin.job import Inbox
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.schema import Schema
from streamjoin.location import is_url, place
from streamjoin.manifest import sinks, sources
from streamjoin.state.storage import Storage

if TYPE_CHECKING:
    from streamjoin.io.compacting import Compaction
    from streamjoin.io.kafka_client import KafkaClient
    from streamjoin.io.schema_registry import RegistryConfig

SECOND = 1_000_000


def make_source(
    source: sources.FilesSource | sources.GeneratorSource | sources.KafkaSource | sources.DeltaSource | sources.IcebergSource,
    schema: Schema,
    event_time: str | None,
    *,
    snapshots: Snapshots,
    exact_counts: bool,
    stream: str = "",
    query: str = "",
    times: Times | None = None,
) -> Source:
    """The source that a stream's manifest describes.

    ``snapshots`` keeps positions that are too large for a commit. ``exact_counts``: record positions must be dense and
    exact, as windows of rows need. ``stream``: keeps its snapshots apart from another stream's. ``times``: the least
    event time of a batch, by which a backlog of files is read. ``query``: the join's name.
    Raises SourceError where model and schema do not fit.
    """
    declared = arrow_schema(schema)
    if isinstance(source, sources.FilesSource):
        path, pattern, is_deep = place(source.path), source.pattern, source.recursive
        if pattern == "*" and not is_url(path) and os.path.isfile(path):
            path, name = os.path.split(path)
            path, pattern, is_deep = path or ".", glob.escape(name), False
        config = FilesSourceConfig(
            path=path,
            format=source.format,
            max_files_per_epoch=source.max_files_per_epoch,
            pattern=pattern,
            header=source.header,
            delimiter=source.delimiter,
            settle_seconds=math.inf if source.settle == "never" else source.settle.micros / SECOND,
            encoding=source.encoding,
            on_replaced=source.on_replaced,
            is_deep=is_deep,
        )
        return FilesSource(config, declared, snapshots, exact_counts, stream=stream, times=times)
    if isinstance(source, sources.KafkaSource):
        from streamjoin.io.kafka_source import DISCOVERY_SECONDS, KafkaSource, KafkaSourceConfig

        group = source.group_id or f"streamjoin-{query}"
        kafka = KafkaSourceConfig(
            *(_kafka_client(source), group, source.format, source.starting_offsets, source.on_data_loss, _registry(source)),
            metadata=_metadata(source, declared),
            starting_millis=None if source.starting_timestamp is None else -(-source.starting_micros // 1000),
            discovery_seconds=DISCOVERY_SECONDS if source.discovery_interval is None else source.discovery_interval.micros / SECOND,
        )
        return KafkaSource(kafka, declared)
    if isinstance(source, sources.DeltaSource):
        from streamjoin.io.delta_changes import DeltaChanges, DeltaSourceConfig
        from streamjoin.io.table_source import TableSource

        changes = DeltaChanges(DeltaSourceConfig(place(source.path), source.starting_version, source.on_change))
        return TableSource(changes, declared, f"delta.path: {source.path}", source.max_files_per_epoch)
    if isinstance(source, sources.IcebergSource):
        from streamjoin.io.iceberg_changes import IcebergChanges, IcebergSourceConfig
        from streamjoin.io.table_source import TableSource

        iceberg = IcebergSourceConfig(source.table, _properties(source), source.catalog_name, source.starting_snapshot, source.on_change)
        return TableSource(IcebergChanges(iceberg), declared, f"iceberg.table: {source.table}", source.max_files_per_epoch)
    generator = GeneratorConfig(
        rate=_rate(source.rate),
        columns={name: _values(column) for name, column in source.columns.items()},
        seed=source.seed,
        rows=source.rows,
        start_micros=source.start_micros,
        real_time=source.real_time,
        out_of_order_micros=source.out_of_order.micros,
    )
    return GeneratorSource(generator, declared, event_time)


def make_sink(
    sink: sinks.FilesSink | sinks.ConsoleSink | sinks.KafkaSink | sinks.DeltaSink | sinks.IcebergSink | sinks.PostgresSink | Inbox,
    schema: pa.Schema,
    *,
    storage: Storage | None = None,
    query: str = "",
    join: str = "",
    refused: RefusedResults | None = None,
) -> Sink:
    """The sink that an output's manifest describes, for results of ``schema``.

    ``storage`` is the checkpoint's, where a sink without files stages; ``query`` the resource's name, ``join`` the join's among several.
    ``refused``: where results go that the sink's server refuses; None: one ends the run.
    """
    if isinstance(sink, sinks.KafkaSink):
        from streamjoin.io.encoded import Encoding
        from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig

        assert storage is not None, "a Kafka sink stages its records in the checkpoint"
        client, once = _kafka_client(sink), sink.delivery == "exactlyOnce"
        encoding = Encoding(sink.format, _registry(sink), f"{sink.topic}-value")
        return KafkaSink(KafkaSinkConfig(client, query, sink.key, join, encoding, once), schema, storage, refused)
    if isinstance(sink, Inbox):
        return InboxSink(sink, schema)
    if isinstance(sink, sinks.ConsoleSink):
        return ConsoleSink(ConsoleSinkConfig(sink.limit), schema)
    if isinstance(sink, sinks.PostgresSink):
        from streamjoin.io.postgres_sink import PostgresSink, PostgresSinkConfig

        assert storage is not None, "a PostgreSQL sink stages its rows in the checkpoint"
        options = tuple(sorted((name, _setting(value)) for name, value in sink.options.items()))
        where = (sink.host, sink.port, sink.database, sink.namespace, sink.table)
        return PostgresSink(PostgresSinkConfig(*where, sink.key, sink.timeout.micros / SECOND, options, join), schema, storage, refused)
    gather = sink.gather.micros / SECOND
    if isinstance(sink, sinks.DeltaSink):
        from streamjoin.io.delta_sink import DeltaSink, DeltaSinkConfig

        config = DeltaSinkConfig(place(sink.path), query, sink.partition_by, sink.compression, gather, _compaction(sink.compact))
        return DeltaSink(config, schema, refused)
    if isinstance(sink, sinks.IcebergSink):
        from streamjoin.io.iceberg_sink import IcebergSink, IcebergSinkConfig

        table, compaction = (sink.table, _properties(sink), sink.catalog_name), _compaction(sink.compact)
        given = IcebergSinkConfig(*table, query, sink.partition_by, sink.compression, gather, compaction)
        return IcebergSink(given, schema, refused=refused)
    return FilesSink(FilesSinkConfig(place(sink.path), sink.format, sink.compression, gather_seconds=gather), schema)


def _compaction(compact: sinks.Compact | None) -> Compaction | None:
    from streamjoin.io.compacting import Compaction

    if compact is None:
        return None
    every = None if compact.every is None else compact.every.micros / SECOND
    return Compaction(compact.files, every, compact.target_size.bytes)


def _kafka_client(kafka: sources.KafkaSource | sinks.KafkaSink) -> KafkaClient:
    from streamjoin.io.kafka_client import KafkaClient

    options = {name: _setting(value) for name, value in kafka.options.items()}
    pattern = kafka.topic_pattern if isinstance(kafka, sources.KafkaSource) else None
    topic = pattern or kafka.topic
    assert topic is not None, "the manifest demands one"
    timeout = kafka.timeout.micros / SECOND
    return KafkaClient(kafka.bootstrap_servers, topic, tuple(sorted(options.items())), timeout, is_pattern=pattern is not None)


def _metadata(kafka: sources.KafkaSource, schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """(column as it is declared, what it has)."""
    names = {name.casefold(): name for name in schema.names}
    return () if kafka.metadata is None else tuple((names[column.casefold()], kind) for kind, column in kafka.metadata.columns())


def _registry(kafka: sources.KafkaSource | sinks.KafkaSink) -> RegistryConfig | None:
    from streamjoin.io.schema_registry import RegistryConfig

    given = kafka.schema_registry
    if given is None:
        return None
    options = tuple(sorted((name, str(value)) for name, value in given.options.items()))
    return RegistryConfig(given.url, options, kafka.timeout.micros / SECOND)


def _properties(table: sources.IcebergSource | sinks.IcebergSink) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, _setting(value)) for name, value in table.catalog.items()))


def _setting(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rate(rate: sources.Rate) -> Rate:
    if rate.ramp is not None:
        return RampRate(rate.ramp.start, rate.ramp.end, rate.ramp.over.micros / SECOND)
    if rate.diurnal is not None:
        wave = rate.diurnal
        return DiurnalRate(wave.mean, wave.amplitude, wave.period.micros / SECOND, wave.begin.micros / SECOND)
    if rate.spike is not None:
        spike = rate.spike
        every = spike.every.micros / SECOND if spike.every is not None else 0.0
        return SpikeRate(spike.base, spike.peak, spike.at.micros / SECOND, spike.length.micros / SECOND, every)
    assert rate.constant is not None
    return ConstantRate(rate.constant)


def _values(column: sources.ColumnGenerator) -> Values:
    if column.sequence is not None:
        return SequenceValues(column.sequence.start)
    if column.uniform is not None:
        return UniformValues(column.uniform.min, column.uniform.max)
    if column.zipf is not None:
        return ZipfValues(column.zipf.values, column.zipf.exponent)
    if column.hotspot is not None:
        hotspot = column.hotspot
        return HotspotValues(hotspot.min, hotspot.max, hotspot.width, hotspot.share, hotspot.period.micros / SECOND)
    assert column.choice is not None
    return ChoiceValues(column.choice)
