"""From a valid manifest to a job: all names resolved, all defaults filled in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from streamjoin.elastic.settings import Mode
from streamjoin.job import Job, JoinJob, JoinSource, Origin, SnapshotsJob, SourceModel, StreamJob
from streamjoin.language.event_time import DerivedTime
from streamjoin.language.graph import join_graphs
from streamjoin.language.join_type import JoinType
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sides import SIDES
from streamjoin.language.sql import parse_boolean
from streamjoin.language.types import TypeName
from streamjoin.language.window import widest
from streamjoin.location import place
from streamjoin.manifest import holding, outer_joins, resolve
from streamjoin.manifest.capacity import capacity_of
from streamjoin.manifest.connectors.spark import SparkSink
from streamjoin.manifest.model import Checkpoint, Manifest, SchemeSpec, Spec, Stream
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.sinks import sinks_in
from streamjoin.manifest.snapshots import Snapshots
from streamjoin.manifest.sources import sources_in
from streamjoin.manifest.validate import ManifestError, Problem
from streamjoin.scheme.capacity import tuple_bytes
from streamjoin.scheme.models import DEFAULTS, HANDSHAKE, KEYED
from streamjoin.scheme.models import Options as SchemeOptions
from streamjoin.snapshots.timeline import Rule

DEAD_LETTERS = "dead-letters"
"""The directory within the checkpoint where records go that do not parse, unless the manifest says otherwise."""

FED = "fed"
"""The directory within the checkpoint where what Spark reads is staged, by stream."""

SAMPLED_LATE = 100
"""So many late tuples of each split go to the dead letters, unless the manifest says otherwise."""
MAX_AHEAD = Duration.parse("1h")
FURTHEST_ZONE = Duration.parse("14h")
"""No zone's clock is further ahead of UTC."""


def compile_job(manifest: Manifest) -> Job:
    """The job that a valid manifest means.

    Raises ManifestError when it keeps its state in a claim alone: whoever mounts the claim knows the directory, and a
    local run needs ``checkpoint.location``.
    """
    spec = manifest.spec
    if spec.checkpoint.location is None:
        message = "is missing; a run outside Kubernetes needs a directory for its state"
        raise ManifestError((Problem("spec.checkpoint.location", None, message),))
    checkpoint = place(spec.checkpoint.location)
    clone_of, dead = spec.checkpoint.clone_of, spec.dead_letter
    spec = outer_joins.expanded(spec)
    schemas = resolve.schemas_of(spec)
    joins = tuple(_join_job(index, spec, schemas) for index in range(len(spec.joins)))
    found = holding.layouts_of(spec, schemas)
    # Of all layouts, also of those that a model which cuts along keys does not use: the model may change under a checkpoint.
    needs = holding.all_needs(spec, schemas)
    streams = tuple(_stream_job(stream, spec, schemas[stream.name], needs) for stream in spec.streams)
    if spec.scheme.model in KEYED:
        found = tuple(layout for layout in found if layout.cuts_keys)
    elif spec.scheme.model == HANDSHAKE:  # a stream's tuples go along the chain once, for all joins
        found = tuple(layout for layout in found if not layout.has_key_spaces)
    return Job(
        name=manifest.metadata.name,
        streams=streams,
        joins=joins,
        layouts=found,
        window=widest([join.window for join in joins if len(join.streams) == len(SIDES)] or [joins[0].window]),
        model=spec.scheme.model,
        scheme_options=_scheme_options(spec.scheme),
        capacity=capacity_of(spec, max(stream.tuple_bytes for stream in streams)),
        min_workers=spec.workers.min,
        max_workers=spec.workers.max,
        cores=spec.workers.resources.cpu.cores,
        memory_bytes=spec.workers.resources.memory.bytes,
        workers_per_executor=spec.workers.per_executor,
        tau0=spec.scaling.tau0,
        tau1=spec.scaling.target,
        tau2=spec.scaling.tau2,
        tau3=spec.scaling.tau3,
        when_full=spec.scaling.when_full,
        shedding_model="linear" if spec.scaling.when_full == "shed" and spec.shedding.model == "off" else spec.shedding.model,
        shedding_base=spec.shedding.base,
        shedding_mode=Mode(spec.shedding.mode),
        interval_micros=spec.epoch.interval.micros,
        deadline_seconds=None if spec.epoch.deadline is None else spec.epoch.deadline.micros / 1e6,
        max_tuples=spec.epoch.max_tuples,
        max_bytes=spec.epoch.max_bytes.bytes,
        checkpoint=checkpoint,
        origin=None if clone_of is None else Origin(place(clone_of.location), clone_of.savepoint),
        dead_letter=f"{checkpoint}/{DEAD_LETTERS}" if dead is None or dead.location is None else place(dead.location),
        letters_retention=None if dead is None or dead.retention is None else dead.retention.micros / 1e6,
        most_late_letters=SAMPLED_LATE if dead is None or dead.late is None else math.inf if dead.late else 0,
        manifest=manifest.model_copy(update={"spec": spec}),
    )


def _join_job(index: int, spec: Spec, schemas: Mapping[str, Schema]) -> JoinJob:
    join, own, names = spec.joins[index], resolve.over(spec, index, schemas), list(schemas)
    output, snapshots = resolve.output(join, spec, own), join.output.snapshots
    sink = next((sink.located(place) for _, sink in sinks_in(join.output.sink)), None)
    if isinstance(sink, SparkSink):
        snapshots = Snapshots(size=1, keep=sink.keep)
        sink = None
    return JoinJob(
        name=join.name,
        type=JoinType(join.type),
        streams=tuple(names.index(name) for name in own),
        found=resolve.condition(join.condition, own) if len(own) == len(SIDES) else join_graphs(join.condition, own),
        window=resolve.window(join.window, tuple(own)),
        output=output,
        where=None if join.output.where is None else parse_boolean(join.output.where, own),
        sink=sink,
        snapshots=None if snapshots is None else _snapshots(snapshots, output),
        fails_on_bad=join.output.on_bad == "fail",
    )


def _snapshots(given: Snapshots, output: resolve.Output) -> SnapshotsJob:
    every = None if given.every is None else given.every.micros / 1e6
    return SnapshotsJob(
        rule=Rule(every, given.size, given.max_delay, given.punctuation),
        key=resolve.snapshot_key(given.key, output),
        keep_seconds=None if given.keep is None else given.keep.micros / 1e6,
        buffer_bytes=given.buffer.bytes,
        store=None if given.store is None else given.store.postgres or given.store.cassandra,
    )


def with_checkpoint(manifest: Manifest) -> Manifest:
    """A plan needs no state, but a job does."""
    if manifest.spec.checkpoint.location is not None:
        return manifest
    spec = manifest.spec.model_copy(update={"checkpoint": Checkpoint(location="state")})
    return manifest.model_copy(update={"spec": spec})


def _stream_job(stream: Stream, spec: Spec, schema: Schema, needs: tuple[holding.Need, ...]) -> StreamJob:
    event_time = None if stream.event_time is None else resolve.event_time(stream.event_time, stream.name, schema)
    payload = holding.held(stream.name, stream.select, schema, needs)
    source = _source(stream, spec)
    return StreamJob(
        name=stream.name,
        schema=schema,
        selected=payload,
        payload=payload,
        tuple_bytes=tuple_bytes(schema, payload),
        where=None if stream.where is None else parse_boolean(stream.where, {stream.name: schema}),
        event_time=event_time.name if isinstance(event_time, Column) else None,
        derived_time=event_time if isinstance(event_time, DerivedTime) else None,
        watermark_micros=_watermark(stream, source),
        max_ahead_micros=_max_ahead(stream, event_time),
        idle_micros=source.partition_idle_micros,
        silence_micros=None if stream.idle_timeout is None else stream.idle_timeout.micros,
        expected_rate=stream.expected_rate,
        source=source,
        punctuation=None if stream.punctuation is None else resolve.punctuation(stream.punctuation, {stream.name: schema}),
        fails_on_bad=stream.on_bad == "fail",
    )


def _source(stream: Stream, spec: Spec) -> SourceModel:
    for _, source in sources_in(stream.source):
        return source.located(place).within(f"{place(spec.checkpoint.location or '')}/{FED}/{stream.name}")
    read = resolve.join_read_by(spec, stream.name)
    assert read is not None, "a valid manifest has one source"
    return JoinSource(read)


def _watermark(stream: Stream, source: SourceModel) -> int:
    watermark = source.default_watermark if stream.watermark is None else stream.watermark
    return 0 if watermark is None else watermark.micros


def _max_ahead(stream: Stream, event_time: Column | DerivedTime | None) -> int:
    if stream.max_ahead is not None:
        return stream.max_ahead.micros
    kind = event_time.expression.type if isinstance(event_time, DerivedTime) else None if event_time is None else event_time.type
    local = kind is not None and kind.name is TypeName.TIMESTAMP_NTZ
    return MAX_AHEAD.micros + local * FURTHEST_ZONE.micros


def _scheme_options(scheme: SchemeSpec) -> SchemeOptions:
    given = {name: value for name in ("sigma", "groups", "alpha") if (value := getattr(scheme, name)) is not None}
    return dataclasses.replace(DEFAULTS, **given)
