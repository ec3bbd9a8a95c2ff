"""A join as an object: validated, planned, run and asked by the same code as on the command line.

Always holds: making a Join reads nothing but the manifest, and raises nothing for what is wrong in it: ``validate`` says all of that, and
whatever needs a valid manifest raises ManifestError with the same problems. A Join does not change, and any number of threads may use it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamjoin.api.text import Unreadable, read_text
from streamjoin.location import is_url
from streamjoin.manifest.connector import Connector
from streamjoin.manifest.model import API_VERSION, KIND, Manifest
from streamjoin.manifest.problem import ManifestError, Problem
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.validate import Document, check, parse, the_one
from streamjoin.sizing import foreseen_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin.api.planning import Outline
    from streamjoin.api.running import Run
    from streamjoin.elastic.plan import Plan
    from streamjoin.job import Job
    from streamjoin.query.execution import Answer, Stop

Runner = Literal["spark", "inline"]
QUERY_MEMORY_BYTES = 1 << 30


class Join:
    """What one manifest describes: one join over its streams, or several.

    >>> join = Join.parse("kind: StreamJoin")
    >>> print(join.validate()[0])
    apiVersion: is missing; give streamjoin.dev/v1beta1
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        """``manifest``: a manifest's fields as data. ``Path``, tuple and ``timedelta`` are accepted for text, list and duration.

        Raises TypeError for what has no fields, such as a file's name.
        """
        if not isinstance(manifest, Mapping):
            raise TypeError(f"manifest: {manifest!r:.60} has no fields; use Join.read for a file, and Join.parse for text")
        self._document = check(_plain(manifest), keep_unknown=True)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Join:
        """Read a manifest file with one StreamJoin; ``-`` is standard input. Raises OSError if it cannot be read."""
        return cls.parse(_text_of(path))

    @classmethod
    def parse(cls, text: str) -> Join:
        """Parse a manifest's text, YAML or JSON. Problems have line numbers."""
        return cls._of(the_one(parse(text)))

    @classmethod
    def parse_all(cls, text: str) -> list[Join]:
        """All StreamJoins of a text with several documents. Resources of other kinds are skipped."""
        return [cls._of(document) for document in parse(text)]

    @classmethod
    def of(
        cls,
        name: str = "join",
        *,
        streams: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
        joins: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
        checkpoint: str | PathLike[str] | Mapping[str, Any],
        workers: int | Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Join:
        """A join from its parts.

        ``streams`` and ``joins``: by name, with the fields of a manifest. A join without an ``output`` gives its results to the program
        that runs it. ``checkpoint``: where the state is. ``workers``: their number, or the manifest's fields. ``spec``: other fields, such
        as ``scaling`` or ``dead_letter``.

        >>> numbers = {"generator": {"rows": 100, "rate": {"constant": 10}, "realTime": False, "columns": {"id": {"sequence": {}}}}}
        >>> stream = {"source": numbers, "schema": "id BIGINT, at TIMESTAMP", "eventTime": "at"}
        >>> join = Join.of(
        ...     "pairs",
        ...     streams={"a": stream, "b": stream},
        ...     joins={"pairs": {"condition": "a.id = b.id", "window": {"within": "10s"}}},
        ...     checkpoint="state/pairs",
        ...     workers=1,
        ... )
        >>> join.validate()
        []
        """
        found: dict[str, Any] = {
            "streams": _named(streams),
            "joins": [{"output": {"sink": {"console": {}}}} | join for join in _named(joins)],
            "checkpoint": checkpoint if isinstance(checkpoint, Mapping) else {"location": fspath(checkpoint)},
        }
        if workers is not None:
            found["workers"] = {"min": workers, "max": workers} if isinstance(workers, int) else workers
        found |= {_camel(field): value for field, value in spec.items()}
        return cls({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": found})

    @classmethod
    def _of(cls, document: Document) -> Join:
        join = cls.__new__(cls)
        join._document = document
        return join

    @property
    def name(self) -> str | None:
        """``metadata.name``."""
        return self._document.name

    def validate(self) -> list[Problem]:
        """Everything that is wrong with the manifest, each with its field, its value and what to do. Empty if the join can be run."""
        return list(self._document.problems)

    @property
    def remarks(self) -> list[Problem]:
        """What is allowed, but perhaps not what you meant."""
        return list(self._document.remarks)

    @property
    def manifest(self) -> Manifest:
        """Raises ManifestError with all problems."""
        if self._document.manifest is None:
            raise ManifestError(self._document.problems)
        return self._document.manifest

    def require(self) -> None:
        """Raises ManifestError with all problems, if there are any."""
        _ = self.manifest

    @cached_property
    def job(self) -> Job:
        """The manifest compiled to what the engine runs. Relative paths are resolved against the working directory of the first use.

        Raises ManifestError, also if there is no ``spec.checkpoint.location``.
        """
        from streamjoin.compilation import compile_job

        return anchored(compile_job(self.manifest))

    def expected(self) -> tuple[str | None, str | None]:
        """Two sentences, or None for each: a warning, if the allowed workers would begin fuller than the manifest wants them to be; and
        how much a worker may hold, if the manifest does not say so. Raises ManifestError.
        """
        from streamjoin.compilation import compile_job, with_checkpoint

        job = compile_job(with_checkpoint(self.manifest))
        return foreseen_plan(job).warning, job.capacity.told() if job.capacity.origin else None

    def plan(
        self,
        *,
        stats: Mapping[str, Any] | str | None = None,
        tasks: int | None = None,
        capacity: float | None = None,
        current: Plan | Mapping[str, Any] | str | None = None,
    ) -> Outline:
        """How the join would be cut among workers: the data of ``streamjoin plan``. Nothing is read or written.

        ``tasks``: the number of workers. ``capacity``: the most tuples that a worker may hold; the plan has as few workers as that allows.
        Without both, the plan is the one that a run would begin with. ``stats``: what the streams look like, as data or JSON text of the
        form that ``--stats`` takes. ``current``: the plan to go on from. Raises ManifestError, PlanRefusal, and ValueError for invalid
        statistics or plans.

        >>> from pathlib import Path
        >>> outline = Join.read(Path("examples/band.yaml")).plan(tasks=4)
        >>> outline.workers, len(outline.loads)
        (4, 4)
        """
        from streamjoin.api.planning import outline
        from streamjoin.compilation import compile_job, with_checkpoint

        if tasks is not None and capacity is not None:
            raise ValueError("tasks and capacity exclude each other; give one")
        job = compile_job(with_checkpoint(self.manifest))
        running = current if current is None or isinstance(current, str | Mapping) else current.to_json()
        return outline(job, stats=_json(stats), tasks=tasks, capacity=capacity, running=_json(running))

    def run(
        self,
        *,
        runner: Runner = "spark",
        until_idle: bool = False,
        for_seconds: float | None = None,
        elastic: bool = False,
        log_directory: str | PathLike[str] | None = None,
    ) -> Run:
        """Run the join epoch by epoch, from the last committed epoch on. Nothing happens before you ask for the first epoch.

        ``runner``: ``spark`` starts Spark on this machine, with a process for each worker; ``inline`` joins in this process and needs no
        Java. The run ends when all input is joined and no more can come (``until_idle``), ``for_seconds`` after the workers have started,
        or when it is stopped. ``elastic``: workers come and go as ``spec.scaling`` says. ``log_directory``: for Spark's log and traces; by
        default ``logs`` in the checkpoint. Raises ManifestError, also where a package that a table needs is not installed.
        """
        from streamjoin.api.packages import require_packages
        from streamjoin.api.running import Run

        require_packages(self.manifest)
        directory = None if log_directory is None else Path(log_directory)
        return Run(self.job, runner=runner, until_idle=until_idle, for_seconds=for_seconds, elastic=elastic, log_directory=directory)

    def query(
        self,
        sql: str,
        *,
        limit: int | None = None,
        seconds: float = 60.0,
        memory_bytes: int = QUERY_MEMORY_BYTES,
        after: int | None = None,
    ) -> pa.Table:
        """The answer to one SELECT, from the storage of the join, whether it runs or not.

        The tables are the streams, with the tuples that the join holds, and the joins that keep snapshots, with their results. The answer
        is of one committed epoch, which the metadata of the table's schema names (``streamjoin.epoch``, ``streamjoin.committed-at``).
        ``limit``: the most rows (``streamjoin.truncated`` says whether there are more). ``after``: of one join's results, only those of
        later snapshots (``streamjoin.snapshot`` is the last one). Raises QueryError, ManifestError. The whole answer is in memory.
        """
        import pyarrow as pa

        from streamjoin.query.messages import Limits

        limits = Limits(limit, seconds, memory_bytes, threads=os.cpu_count() or 1)
        with self.asked(sql, limits, after=after) as answer:
            table = pa.Table.from_batches(answer.batches, answer.schema)
        cut = str(answer.is_cut).lower()
        told = {"epoch": answer.epoch, "committed-at": answer.committed, "truncated": cut, "snapshot": answer.snapshot}
        return table.replace_schema_metadata({f"streamjoin.{name}": str(value) for name, value in told.items()})

    @contextlib.contextmanager
    def asked(self, sql: str, limits: Any, stop: Stop | None = None, *, after: int | None = None) -> Iterator[Answer]:
        """The same answer batch by batch, as a context manager. ``limits``: a ``query.messages.Limits``."""
        from streamjoin.query.catalog import Catalog
        from streamjoin.query.execution import asked
        from streamjoin.state.storage import ObjectStorage

        with asked(ObjectStorage(self.job.checkpoint), Catalog.of(self.job), sql, limits, stop, after=after) as answer:
            yield answer

    def results(self, join: str | None = None) -> pa.RecordBatchReader:
        """The visible results of a join as Arrow, from its files sink, or else from its snapshots.

        ``join``: its name, if there are several. Files that appear after the call are not read. One batch is in memory at a time. Raises
        ManifestError; ValueError if results are kept in neither; while reading, SourceError or StorageError.
        """
        from streamjoin.api.results import results_of

        return results_of(self, join)

    def __repr__(self) -> str:
        state = f"{len(self._document.problems)} problems" if self._document.problems else "valid"
        return f"<streamjoin.Join {self.name!r}, {state}>"


def anchored(job: Job) -> Job:
    """The job with its relative paths made absolute, from the working directory: executors have others."""

    def moved(part: Any) -> Any:
        return part.moved(absolute) if isinstance(part, Connector) else part

    return replace(
        job,
        streams=tuple(replace(stream, source=moved(stream.source)) for stream in job.streams),
        joins=tuple(replace(join, sink=moved(join.sink)) for join in job.joins),
        checkpoint=absolute(job.checkpoint),
        dead_letter=absolute(job.dead_letter),
    )


def absolute(where: str) -> str:
    """A place, from the working directory where it is a relative path."""
    return where if is_url(where) else os.path.abspath(where)


def _text_of(path: str | PathLike[str]) -> str:
    try:
        return read_text(fspath(path))
    except Unreadable as error:
        raise Unreadable(f"{fspath(path)}: {error}") from error


def _named(parts: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(parts, Mapping):
        return [{"name": name, **fields} for name, fields in parts.items()]
    return [dict(fields) for fields in parts]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _plain(value: Any) -> Any:
    """A value with what a file has instead of Python's own types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, timedelta):
        return str(Duration(value // timedelta(microseconds=1)))
    return fspath(value) if isinstance(value, PathLike) else value


def _json(value: Mapping[str, Any] | str | None) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
