"""The data source ``streamjoin``: options in, readers out.

Always holds: a reader knows all that its tasks need, so that the manifest need not be where executors are; offsets of a stream are
identifiers of snapshots, whose rows never change: a batch that Spark does again has the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from streamjoin.spark.conditions import Condition, condition_of
from streamjoin.spark.files import FilePartition, ResultFiles
from streamjoin.state.storage import ObjectStorage

if TYPE_CHECKING:
    from streamjoin.api.join import Join
    from streamjoin.query.catalog import Catalog

FORMAT = "streamjoin"
KINDS = ("join", "stream", "query")
OPTIONS = ("manifest", "manifestText", *KINDS, "pushFilters", "startingSnapshot", "maxRowsPerTrigger", "failOnDataLoss", "memory")
EARLIEST, LATEST = "earliest", "latest"
MEMORY_BYTES = 1 << 30
SECONDS = 24 * 3600.0


class OptionError(ValueError):
    """An option of the reader that cannot be; the text names it, the value and the remedy."""


@dataclass(frozen=True)
class Options:
    """What a reader was asked for, without the manifest."""

    kind: str
    """Of :data:`KINDS`."""
    what: str
    """A name, or for ``query`` the SQL."""
    pushes_filters: bool
    starting: str
    most_rows: int | None
    fails_on_loss: bool
    memory_bytes: int


def options_of(given: Mapping[str, str]) -> tuple[Join, Options]:
    """Names are told apart as Spark does, without regard to case. Raises OptionError, OSError, ManifestError."""
    from streamjoin.api.join import Join
    from streamjoin.api.results import join_named

    known = {name.casefold(): name for name in OPTIONS} | {"path": "manifest"}  # as of load("near.yaml")
    own = {known[name.casefold()]: value for name, value in given.items() if name.casefold() in known}
    if unknown := sorted(name for name in given if name.casefold() not in known):
        raise OptionError(f"{unknown[0]}: is no option of format {FORMAT}; it has {', '.join(OPTIONS)}")
    if ("manifest" in own) == ("manifestText" in own):
        raise OptionError("manifest: give the manifest's path, or its text as manifestText")
    join = Join.read(own["manifest"]) if "manifest" in own else Join.parse(own["manifestText"])
    kinds = [kind for kind in KINDS if kind in own]
    if len(kinds) > 1:
        raise OptionError(f"{kinds[1]}: excludes {kinds[0]}; give one of {', '.join(KINDS)}")
    kind = kinds[0] if kinds else "join"
    return join, Options(
        kind,
        own.get(kind) or join_named(join, None).name,
        _boolean("pushFilters", own.get("pushFilters", "false")),
        _starting(own.get("startingSnapshot", EARLIEST)),
        _whole("maxRowsPerTrigger", own.get("maxRowsPerTrigger"), 1),
        _boolean("failOnDataLoss", own.get("failOnDataLoss", "true")),
        _whole("memory", own.get("memory"), 1 << 26) or MEMORY_BYTES,
    )


def _starting(text: str) -> str:
    if text not in (EARLIEST, LATEST) and not text.isdecimal():
        raise OptionError(f"startingSnapshot: {text!r} must be {EARLIEST}, {LATEST} or a snapshot's number")
    return text


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name}: {text!r} must be true or false")
    return text.lower() == "true"


def _whole(name: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise OptionError(f"{name}: {text!r} must be a whole number, {least} or more")
    return int(text)


class StreamJoinSource(DataSource):  # type: ignore[misc]
    """Format ``streamjoin``.

    Options: ``manifest`` (a path, where Spark's driver is) or ``manifestText``; of ``join`` (a join's name: the results of its stored
    snapshots, each once; the default, where there is one join), ``stream`` (what the newest commit holds of a stream) and ``query`` (a
    SELECT, as of ``streamjoin query``) one. Streams are of ``join`` alone.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Here, in the driver, whose working directory relative paths are taken from. Tasks get neither manifest nor job: they would load
        # much for them.
        join, self._options = options_of(options)
        self._files = _files_of(join, self._options.what) if self._options.kind == "join" else None
        self._catalog = None if self._files is not None else _catalog_of(join, self._options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Spark's types of the rows. A ``query`` is begun once to learn them."""
        if self._files is not None:
            return from_arrow_schema(self._files.schema)
        assert self._catalog is not None
        return from_arrow_schema(_held_schema(self._catalog, self._options))

    def reader(self, schema: StructType) -> DataSourceReader:
        rows = to_arrow_schema(schema, timezone="UTC")
        if self._files is not None:
            return (PushingFilesReader if self._options.pushes_filters else FilesReader)(self._files, rows)
        assert self._catalog is not None
        is_pushing = self._options.pushes_filters and self._options.kind == "stream"
        return (PushingQueryReader if is_pushing else QueryReader)(self._options, self._catalog, rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        if self._files is None:
            raise OptionError(f"{self._options.kind}: what is held has no order in which it came; a stream is of a join: give join")
        return SnapshotsReader(self._files, self._options, to_arrow_schema(schema, timezone="UTC"))


def _held_schema(catalog: Catalog, options: Options) -> pa.Schema:
    from streamjoin.query.commit import commit_of
    from streamjoin.query.execution import asked, relations_of
    from streamjoin.query.messages import Limits

    storage = ObjectStorage(catalog.location)
    if options.kind == "stream":
        return {each.name: each.schema for each in relations_of(catalog, commit_of(storage, None), storage)}[options.what]
    with asked(storage, catalog, options.what, Limits(1, SECONDS, options.memory_bytes)) as answer:
        return answer.schema


def _catalog_of(join: Join, options: Options) -> Catalog:
    """Raises OptionError where there is no such stream."""
    from streamjoin.query.catalog import Catalog

    names = [stream.name for stream in join.job.streams]
    if options.kind == "stream" and options.what not in names:
        raise OptionError(f"stream: {options.what!r} must be one of {', '.join(names)}")
    return Catalog.of(join.job)


def _files_of(join: Join, name: str) -> ResultFiles:
    """Raises OptionError where there is no such join, or its results are not kept."""
    from streamjoin.api.results import join_named
    from streamjoin.query.catalog import Catalog
    from streamjoin.query.results import JoinResults
    from streamjoin.state.checkpoint import Checkpoint

    job = join.job
    try:
        found = join_named(join, name)
    except ValueError as error:
        raise OptionError(str(error)) from error
    kept = {each.join: each for each in Catalog.of(job).results}
    if found.name not in kept:
        where = f"spec.joins[{job.joins.index(found)}].output.snapshots"
        raise OptionError(f"join: results of {found.name} are not kept as snapshots; give {where}")
    relation = JoinResults(kept[found.name], Checkpoint(), ObjectStorage(job.checkpoint))
    return ResultFiles(job.checkpoint, found.name, relation.schema, kept[found.name].key_column)


class FilesReader(DataSourceReader):  # type: ignore[misc]
    """All stored snapshots of a join, a partition for each sorted file."""

    def __init__(self, files: ResultFiles, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        last = max((snapshot.id for snapshot in self._files.snapshots()), default=-1)
        return self._files.partitions(0, last, self._conditions) or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, FilePartition):
            yield from self._files.read(partition, self._conditions, self._schema)


class Pushing:
    """Takes filters over that mean the same where rows are read."""

    _conditions: list[Condition]
    _rows: pa.Schema

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's
        """Gives back those that Spark is to apply."""
        for each in filters:
            condition = condition_of(each, self._rows)
            if condition is None:
                yield each
            else:
                self._conditions.append(condition)


class PushingFilesReader(Pushing, FilesReader):
    """Files and row groups are passed over that cannot have rows for the filters."""

    @property
    def _rows(self) -> pa.Schema:
        return self._files.schema


class QueryReader(DataSourceReader):  # type: ignore[misc]
    """An answer of one commit, in one partition: the commit that is the newest when it is read."""

    def __init__(self, options: Options, catalog: Catalog, schema: pa.Schema) -> None:
        self._options, self._catalog, self._schema = options, catalog, schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        return [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from streamjoin.query.execution import asked, quoted
        from streamjoin.query.messages import Limits

        limits = Limits(None, SECONDS, self._options.memory_bytes)
        with asked(ObjectStorage(self._catalog.location), self._catalog, self._sql(quoted), limits) as answer:
            for batch in answer.batches:
                yield batch.cast(self._schema)

    def _sql(self, quoted: Callable[[str], str]) -> str:
        if self._options.kind == "query":
            return self._options.what
        where = f" WHERE {' AND '.join(each.sql() for each in self._conditions)}" if self._conditions else ""
        return f"SELECT * FROM {quoted(self._options.what)}{where}"  # noqa: S608 - quoted, and conditions of ours


class PushingQueryReader(Pushing, QueryReader):
    """Blocks, and slices of them, are passed over that cannot have tuples for the filters."""

    @property
    def _rows(self) -> pa.Schema:
        return self._schema


class SnapshotsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The rows of each snapshot that is stored, once; an offset is the last snapshot that was taken (-1: none)."""

    def __init__(self, files: ResultFiles, options: Options, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._starting, self._most_rows, self._fails = options.starting, options.most_rows, options.fails_on_loss
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        if self._starting not in (EARLIEST, LATEST):
            return {"snapshot": int(self._starting) - 1}
        found = [snapshot.id for snapshot in self._files.snapshots()]
        if not found:
            return {"snapshot": -1}
        return {"snapshot": found[0] - 1 if self._starting == EARLIEST else found[-1]}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        return ReadAllAvailable() if self._most_rows is None else ReadMaxRows(self._most_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's
        """Whole snapshots, as many as fit, at least one. They are stored in their order: one that is missing between others is on its
        way."""
        stored = self._files.snapshots()
        begin = start["snapshot"]
        if stored and stored[0].id > begin + 1:
            self._lost(begin + 1, stored[0].id - 1)
            begin = stored[0].id - 1
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after, rows = begin, 0
        for snapshot in stored[bisect_right(stored, begin, key=lambda each: each.id) :]:
            rows += snapshot.rows
            is_full = most_rows is not None and after > begin and rows > most_rows
            if snapshot.id != after + 1 or is_full or (self._target is not None and snapshot.id > self._target):
                break
            after = snapshot.id
        return {"snapshot": after}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._target = max((snapshot.id for snapshot in self._files.snapshots()), default=-1)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's
        return {"snapshot": max((snapshot.id for snapshot in self._files.snapshots()), default=-1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        low, high = start["snapshot"] + 1, end["snapshot"]
        if low > high:
            return []
        first = min((snapshot.id for snapshot in self._files.snapshots()), default=high + 1)
        if first > low:
            self._lost(low, min(first - 1, high))
        return self._files.partitions(low, high)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._files.read(partition, (), self._schema)

    def _lost(self, first: int, last: int) -> None:
        """Some were let go before they were read. Raises FileNotFoundError, unless it is said that this may be."""
        if self._fails:
            gone = "are not stored any more, because output.snapshots.keep removes old ones"
            text = f"{self._files.join}: snapshots {first} to {last} {gone}"
            raise FileNotFoundError(f"{text}; keep them longer, or set the option failOnDataLoss to false, which leaves them out")


NOTHING = InputPartition(None)
"""Of a query, where there is one partition; of a join without results one without rows, as Spark takes no empty list."""
