"""A join of two streaming DataFrames on any condition: what it is, as a manifest, and its results as a streaming DataFrame.

Always holds: nothing runs until a query of the results is started, as with any DataFrame. All of a join is in its checkpoint: ``left`` and
``right`` have the staged micro-batches, ``queries`` what Spark knows of the queries that stage, ``state`` the join's own, ``join.json`` the
manifest, by which ``streamjoin query``, ``letters`` and the other commands find it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from streamjoin.api.join import Join, absolute, anchored
from streamjoin.api.machine import fitted, machine_bytes
from streamjoin.language.join_type import JoinType
from streamjoin.language.sides import LEFT, SIDE_NAMES, SIDES
from streamjoin.language.temporal import quantity_micros
from streamjoin.location import place
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Duration
from streamjoin.spark.conjuncts import qualified
from streamjoin.spark.explaining import Explanation
from streamjoin.spark.joins import Planned, Sides, Streaming, alias_of
from streamjoin.spark.keys import column_sql
from streamjoin.spark.pairs import FORMAT, OFFICE, PairsSource
from streamjoin.spark.running import Office, Parts, is_local
from streamjoin.spark.staging import Staging, for_spark
from streamjoin.state.storage import Missing, ObjectStorage

NAME = "pairs"
MANIFEST = "join.json"
_FIXED = ("condition", "how", "within", "left", "right", "left.withWatermark", "right.withWatermark")
KEEP = "7d"
DELAY = "spark.watermarkDelayMs"
"""The metadata by which Spark knows the column of event times, and how late they may come."""
INTERVAL = "100ms"
MAX_AHEAD = "36500d"
"""Spark drops no row whose event time is in the future, so this does not either."""
_TYPES = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
_FIELDS = {
    "spec.joins[0].condition": "condition",
    "spec.joins[0].window.within": "within",
    "spec.joins[0].output.snapshots.keep": "keep",
    "spec.streams[0].idleTimeout": "idle_timeout",
    "spec.streams[0]": "left",
    "spec.streams[1]": "right",
    "spec.workers": "workers",
}
"""Arguments, by the fields of the manifest that they become."""


def planned(left: Any, right: Any, condition: str, kind: JoinType, wanted: Streaming) -> Planned:
    """The streaming DataFrame of the results. Raises ValueError, which names the argument, the value and the remedy."""
    frames = (left, right)
    for name, frame in zip(SIDE_NAMES, frames, strict=True):
        _require_stream(name, frame)
    root = _checkpoint(wanted.checkpoint)
    schemas = [_schema(name, frame) for name, frame in zip(SIDE_NAMES, frames, strict=True)]
    manifest = _manifest(Sides(left, right), schemas, root, condition, kind, wanted)
    made = Join(manifest)
    if problems := made.validate():
        raise ValueError("; ".join(map(_told, problems)))
    _require_same(root, manifest)
    return Planned(
        lambda: Explanation(made.plan().explain().rstrip()),
        partial(_results, frames, kind, schemas, root, made, manifest),
    )


def _results(frames: tuple[Any, ...], kind: JoinType, schemas: Sequence[str], root: str, made: Join, manifest: Mapping[str, Any]) -> Any:
    sides = [
        Staging(name, frame, schema, f"{root}/{name}", f"{for_spark(root)}/queries/{name}")
        for name, frame, schema in zip(SIDE_NAMES, frames, schemas, strict=True)
    ]
    session = frames[LEFT].sparkSession
    job = anchored(fitted(made.job, machine_bytes()) if is_local(session.sparkContext) else made.job)
    workers = made.manifest.spec.workers
    told = json.dumps(manifest, indent=1).encode()
    is_elastic, prepare = workers.max > workers.min, partial(ObjectStorage(root).put, MANIFEST, told)
    office = Office(Parts(sides, job, session.sparkContext, elastic=is_elastic, prepare=prepare))
    session.dataSource.register(PairsSource)
    reading = session.readStream.format(FORMAT).schema(_raw_schema(frames, kind)).option("manifestText", json.dumps(manifest))
    return _named(reading.option(OFFICE, office.address).load(), frames, kind)


def _require_stream(name: str, frame: Any) -> None:
    if not hasattr(frame, "_jdf"):
        raise ValueError(f"{name}: a streaming DataFrame of Spark Connect is not joined; use a session in which the driver runs (classic)")
    if not frame.isStreaming:
        remedy = "read it as a stream (spark.readStream), or join each micro-batch of the other with it in foreachBatch"
        raise ValueError(f"{name}: is not streaming, and the other DataFrame is; {remedy}")


def _checkpoint(given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"checkpoint: {given!r} is no place for the state of a join of streams; give a directory")
    try:
        where = place(os.fspath(given))
    except ValueError as error:
        raise ValueError(f"checkpoint: {given!r} {error}") from None
    return absolute(where)


def _duration(name: str, given: object) -> str:
    """As a manifest has it: of Spark's words (60 seconds), the manifest's (60s), or a timedelta."""
    if isinstance(given, timedelta):
        return str(Duration(given // timedelta(microseconds=1)))
    micros = quantity_micros(given) if isinstance(given, str) else None
    if micros is not None:
        return str(Duration(micros))
    if not isinstance(given, str):
        remedy = 'give how far apart event times may be, such as "60 seconds"' if name == "within" else 'write it as "60 seconds"'
        raise ValueError(f"{name}: {given!r} is no duration; {remedy}")
    return given


def _schema(name: str, frame: Any) -> str:
    """The columns as DDL. Raises ValueError for one that a join cannot have."""
    columns = []
    for field in frame.schema.fields:
        plain = isinstance(field.dataType, _TYPES) or field.dataType == T.StringType()
        if not plain:
            column = column_sql([field.name])
            remedy = f"leave it out, or carry it as text: to_json({column}) before the join, from_json after it"
            raise ValueError(f"{name}: column {column} is {field.dataType.simpleString()}, which a join of streams cannot carry; {remedy}")
        columns.append(f"{column_sql([field.name])} {field.dataType.simpleString().upper()}")
    return ", ".join(columns)


def _event_time(name: str, frame: Any) -> tuple[str, str]:
    """The column with event times and the delay, as withWatermark gave them."""
    found = [(field.name, int(field.metadata[DELAY])) for field in frame.schema.fields if DELAY in (field.metadata or {})]
    if len(found) != 1:
        what = f"has {len(found)} columns with a watermark ({', '.join(column for column, _ in found)})" if found else "has no watermark"
        remedy = f'give it one: {name}.withWatermark("at", "10 seconds"), with its column of event times, and keep that column'
        raise ValueError(f"{name}: {what}, and a join of streams needs to know when rows are late; {remedy}")
    column, millis = found[0]
    return column, str(Duration(1000 * millis))


def _manifest(sides: Sides, schemas: list[str], root: str, condition: str, kind: JoinType, wanted: Streaming) -> dict[str, Any]:
    idle = {} if wanted.idle_timeout is None else {"idleTimeout": _duration("idle_timeout", wanted.idle_timeout)}
    streams = []
    for side in SIDES:
        name, frame = SIDE_NAMES[side], sides.given[side]
        at, delay = _event_time(name, frame)
        stream = {"name": name, "source": {"staged": {"path": f"{root}/{name}"}}, "schema": schemas[side], "select": frame.columns}
        streams.append(stream | {"eventTime": {"column": at}, "watermark": delay, "maxAhead": MAX_AHEAD} | idle)
    columns = [(SIDE_NAMES[side], column) for side in _shown(kind) for column in sides.given[side].columns]
    output = {
        "select": [f"{side}.{column_sql([column])} AS {column_sql([_raw(side, column)])}" for side, column in columns],
        "snapshots": {"size": 1, "keep": _duration("keep", wanted.keep)},
    }
    join = {"name": NAME, "condition": _condition(sides, condition), "type": kind.value}
    workers = wanted.workers if isinstance(wanted.workers, Mapping) else {"min": wanted.workers, "max": wanted.workers}
    spec = {
        "streams": streams,
        "joins": [join | {"window": {"within": _duration("within", wanted.within)}, "output": output}],
        "workers": dict(workers),
        "epoch": {"interval": INTERVAL},
        "checkpoint": {"location": f"{root}/state"},
    }
    return {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": NAME}, "spec": spec}


def _condition(sides: Sides, text: str) -> str:
    """The condition with left and right in place of the frames' aliases."""

    def named(head: str, column: str) -> str | None:
        side = None if head in SIDE_NAMES else sides.side_of((head, column))
        return None if side is None else f"{SIDE_NAMES[side]}.{column_sql([column])}"

    return qualified(text, named)


def _told(problem: Problem) -> str:
    """A problem of the manifest, by the argument that it comes from."""
    text = str(problem)
    field = next((field for field in _FIELDS if text.startswith(field)), None)
    return text if field is None else _FIELDS[field] + text.removeprefix(field)


def _require_same(root: str, manifest: Mapping[str, Any]) -> None:
    """Raises ValueError where the checkpoint was begun with another join."""
    try:
        begun = json.loads(ObjectStorage(root).get(MANIFEST))
    except Missing:
        return
    for name, was, now in zip(_FIXED, _fixed(begun), _fixed(manifest), strict=True):
        if was != now:
            raise ValueError(f"{name}: {now} differs from {was}, with which the checkpoint was begun; restore it, or give a new checkpoint")


def _fixed(manifest: Mapping[str, Any]) -> list[Any]:
    """What may not change, in the order of ``_FIXED``."""
    (join,), streams = manifest["spec"]["joins"], manifest["spec"]["streams"]
    columns = [stream["schema"] for stream in streams]
    return [join["condition"], join["type"], join["window"]["within"], *columns, *(stream["eventTime"]["column"] for stream in streams)]


def _shown(kind: JoinType) -> tuple[int, ...]:
    """The sides whose columns results have."""
    return (LEFT,) if kind in (JoinType.SEMI, JoinType.ANTI) else SIDES


def _raw(side: str, column: str) -> str:
    """What the engine's results call a column."""
    return f"{side}_{column}"


def _raw_schema(frames: tuple[Any, ...], kind: JoinType) -> T.StructType:
    fields = [(SIDE_NAMES[side], field) for side in _shown(kind) for field in frames[side].schema.fields]
    return T.StructType([T.StructField(_raw(side, field.name), field.dataType) for side, field in fields])


def _named(frame: Any, frames: tuple[Any, ...], kind: JoinType) -> Any:
    """The frame with the columns' own names, which an alias of their side, or left and right, tells apart."""
    from pyspark.sql.classic.column import Column

    jvm = frame.sparkSession._jvm
    expressions, output = jvm.org.apache.spark.sql.catalyst.expressions, frame._jdf.queryExecution().analyzed().output()
    columns: list[Any] = []
    for side in _shown(kind):
        qualifier = jvm.PythonUtils.toSeq([alias_of(frames[side]) or SIDE_NAMES[side]])
        for name in frames[side].columns:
            identity, none = expressions.NamedExpression.newExprId(), jvm.scala.Option.empty()
            alias = expressions.Alias(output.apply(len(columns)), name, identity, qualifier, none, jvm.PythonUtils.toSeq([]))
            columns.append(Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(alias)))
    return frame.select(*columns)
