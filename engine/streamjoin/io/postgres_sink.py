"""A sink that is a table of PostgreSQL: each result replaces the one with the same key, and each epoch's come in one transaction.

Tasks stage results as Arrow objects in the checkpoint's ``outbox``, or, where there are few, leave them to the commit. The driver copies
an epoch's, once that is committed, into a temporary table (COPY) and from there into the table (``INSERT ... ON CONFLICT``).

Always holds: the same transaction notes, in ``<table>_published``, the number of the checkpoint's newest publication, and does nothing
where that is there already. So each epoch's results are applied once and in order, whoever dies: an older driver cannot bring older
values back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import Sink, Staged
from streamjoin.io.outbox import OUTBOX, OutboxWriter, data_of, sweep
from streamjoin.io.ownership import Owner
from streamjoin.io.references import settings
from streamjoin.io.refused import RefusedResults
from streamjoin.io.table_files import Publication
from streamjoin.state.storage import Storage

if TYPE_CHECKING:
    from streamjoin.io.factory import Writing
    from streamjoin.io.postgres_table import PostgresTable
    from streamjoin.manifest.connectors.postgres import PostgresSink as Model


@dataclass(frozen=True)
class Place:
    """A table, and how its server is reached."""

    host: str
    port: int
    database: str
    namespace: str
    """The schema."""
    table: str
    timeout_seconds: float = 60.0
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of libpq; a value ``file:/path`` is that file's content, ``env:NAME`` that environment variable's."""
    where: str = "postgres.options"
    """The options' field, for messages."""

    def __str__(self) -> str:
        return f"PostgreSQL at {self.host}:{self.port}, {self.database}, table {self.namespace}.{self.table}"


@dataclass(frozen=True)
class PostgresSinkConfig:
    """A PostgreSQL sink as the manifest describes it."""

    place: Place
    key: tuple[str, ...]
    """The columns by which a result replaces another, without regard to case."""
    join: str = ""
    """The join's name, where there are several: objects in the outbox say whose they are."""


class PostgresSink(Sink):
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    def __init__(self, config: PostgresSinkConfig, schema: pa.Schema, storage: Storage, refused: RefusedResults | None = None) -> None:
        """``storage``: the checkpoint's. ``refused``: where rows go that the table refuses; None: one ends the run."""
        self.config, self.schema, self._storage, self.refused = config, schema, storage, refused
        self._opened: PostgresTable | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PostgresSink, (self.config, self.schema, self._storage, self.refused)

    @property
    def _folder(self) -> str:
        return f"{OUTBOX}/postgres-{quote(self.config.join, safe='')}"

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> OutboxWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""

        def blank(done: list[Staged]) -> Staged:
            return Staged("", f"part-{stem}-{len(done):03d}", 0, 0)

        return OutboxWriter(self._storage, self.schema, f"{self._folder}/{name}", small_bytes, blank)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """The same results, which the commit keeps as they are, under names of their own."""
        return [replace(each, final=f"part-{stem}-{number:05d}") for number, each in enumerate(small)]

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Applies results in one transaction. O(rows log rows) for the server.

        ``again`` with nothing to apply, as when a driver starts, looks at the table, or makes it. Raises SinkError, UnavailableError.
        """
        if not staged:
            if again:
                self._table().prepare()
            return
        publication = Publication.of(staged)
        which = publication.identity, publication.number
        refused = None if self.refused is None else self.refused.of(*which, again=again)
        self._table().apply(*which, lambda: self._batches(staged), refused)
        if refused is not None:
            refused.published()
        self._storage.delete_many([each.path for each in staged if each.path])

    def claim(self, owner: Owner, *, takes: bool) -> None:
        """See :class:`streamjoin.io.base.Sink`. A publication takes the table, in its transaction."""
        if not takes:
            self._table().require_owner(owner)

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged objects whose name may be removed. O(staged objects)."""
        return sweep(self._storage, self._folder, may_remove)

    def _batches(self, staged: Sequence[Staged]) -> Iterator[pa.RecordBatch]:
        for each in staged:
            yield from ipc.open_stream(data_of(self._storage, each, f"{self.config.place} does not have them"))

    def _table(self) -> PostgresTable:
        if self._opened is None:
            from streamjoin.io.postgres_table import PostgresTable

            self._opened = PostgresTable(self.config, self.schema)
        return self._opened


def open_sink(model: Model, writing: Writing) -> PostgresSink:
    """See ``io.factory``."""
    where = (model.host, model.port, model.database, model.namespace, model.table)
    place = Place(*where, model.timeout.micros / 1e6, settings(model.options))
    return PostgresSink(PostgresSinkConfig(place, model.key, writing.join), writing.schema, writing.outbox, writing.refused)
