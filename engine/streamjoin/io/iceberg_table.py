"""An Iceberg table, as the driver of a sink sees it: made when missing, checked, appended to. By ``pyiceberg``.

Always holds: a table that is opened can take the sink's files as they are: its columns have the output's types, and it is partitioned by
the sink's columns as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY, pyarrow_to_schema
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

from streamjoin.io.base import SinkError, SourceError, Staged, UnavailableError
from streamjoin.io.iceberg_files import data_file, flush, transaction_once
from streamjoin.io.iceberg_rewrite import rewrite, small_files
from streamjoin.io.iceberg_sink import IcebergSinkConfig
from streamjoin.io.ownership import Owner, require_known
from streamjoin.io.references import resolved
from streamjoin.io.table_files import Publication, TableFiles
from streamjoin.io.table_sink import Conflict, brief
from streamjoin.io.table_sink import Table as TransactionalTable
from streamjoin.language.temporal import date_days
from streamjoin.location import is_url, place

FOOTERS_AT_ONCE = 8
PROPERTY = "streamjoin."
"""How the properties of a table begin that say what is published, by checkpoint."""
FIRST_PARTITION_FIELD = 1000
_MADE_WITH = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "100"}
"""Each transaction leaves a file of metadata; of a table that is made here, the last hundred stay."""
_SQL = {"int": "INT", "long": "BIGINT", "timestamptz": "TIMESTAMP", "timestamp": "TIMESTAMP_NTZ"}
_ENVIRONMENT = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
"""What the other stores take from the environment, and PyArrow's S3 client does not by itself."""


_connecting = threading.Lock()
"""PyIceberg makes the tables of an SQL catalog that has none, and fails where another thread does so at the same time."""


def catalog_of(name: str, properties: Sequence[tuple[str, str]], refusal: type[Exception] = SinkError) -> Catalog:
    """The catalog, connected to. Raises ``refusal`` where a property's value cannot be had, and what ``pyiceberg`` raises."""
    urls = {name: value for name, value in properties if value.startswith("file://")}  # which are no references
    references = [(name, value) for name, value in properties if name not in urls]
    options = {**urls, **resolved(references, "iceberg.catalog", "the driver runs", refusal)}
    defaults = {option: os.environ[name] for option, name in _ENVIRONMENT.items() if os.environ.get(name)}
    with _connecting:
        return load_catalog(name, **{**defaults, **options})


class IcebergTable(TransactionalTable):
    """See the module."""

    def __init__(self, config: IcebergSinkConfig, files: TableFiles) -> None:
        super().__init__("iceberg.table", config.table, files, config.compaction)
        self.config = config
        self.root = ""
        """Where the table's files go, as a place; known once it is open."""
        self._committing = threading.Lock()

    def open(self) -> None:
        with self._explained("open"):
            if self._table is not None:
                self._table.refresh()
            else:
                table = self._made(catalog_of(self.config.catalog_name, self.config.catalog))
                self._check(table)
                self.compactor.found(lambda: small_files(table))
                self._table = table
                self.root = _data_place(table)

    def has(self, publication: Publication) -> bool:
        number = self._table.properties.get(PROPERTY + publication.identity)
        return number is not None and int(number) >= publication.number

    def require_owner(self, owner: Owner) -> None:
        """Raises OwnedElsewhere where the table has results of other checkpoints alone, or lacks this one's."""
        owners = [name.removeprefix(PROPERTY) for name in self._table.properties if name.startswith(PROPERTY)]
        removal = f"remove the table, or its properties {', '.join(PROPERTY + name for name in owners)} where it is to have both"
        require_known(self._where, "iceberg.catalog", owner, owners, removal)

    def _transaction(self, publication: Publication, staged: Sequence[Staged]) -> Callable[[], None]:
        table = self._table
        with self._explained("read the new files of"), ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(staged))) as pool:
            footers = list(pool.map(lambda each: _footer(table, self._path(each)), staged))

        def once() -> None:
            try:
                with self._explained("commit to"), self._committing:
                    self._append(table, publication, staged, footers)
            except CommitFailedException as conflict:
                raise Conflict(brief(conflict)) from conflict

        return once

    def _rewritten(self, target_bytes: int) -> tuple[int, int]:
        table = catalog_of(self.config.catalog_name, self.config.catalog).load_table(self.config.table)
        done = rewrite(table, target_bytes, self.config.compression, self._committing)
        self._flush(table)
        return done

    def _append(self, table: Table, publication: Publication, staged: Sequence[Staged], footers: Sequence[pq.FileMetaData]) -> None:
        number = str(publication.number)
        summary = {f"{PROPERTY}query": self.config.query, f"{PROPERTY}checkpoint": publication.identity, f"{PROPERTY}publication": number}
        with transaction_once(table) as transaction:
            if table.metadata.name_mapping() is None:  # files have names for their columns, and no identifiers
                mapping = table.schema().name_mapping.model_dump_json()
                transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
            transaction.set_properties({PROPERTY + publication.identity: number})
            with transaction.update_snapshot(snapshot_properties=summary).merge_append() as snapshot:
                for each, footer in zip(staged, footers, strict=True):
                    snapshot.append_data_file(self._data_file(table, each, footer))

    def _data_file(self, table: Table, staged: Staged, footer: pq.FileMetaData) -> DataFile:
        values = json.loads(staged.text)["partition"]
        fields = [self._files.stored.field(name) for name in self._files.partition_by]
        partition = Record(*(_partition_value(values[field.name], field.type) for field in fields))
        return data_file(table, self._path(staged), staged.nbytes, partition, footer)

    def _path(self, staged: Staged) -> str:
        root = self.root if is_url(self.root) else f"file://{os.path.abspath(self.root)}"
        return f"{root}/{staged.final}"

    def _made(self, catalog: Catalog) -> Table:
        with contextlib.suppress(NoSuchTableError):
            return catalog.load_table(self.config.table)
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace_if_not_exists(self.config.table.rsplit(".", 1)[0])
        numbered = [field.with_metadata({PYARROW_PARQUET_FIELD_ID_KEY: str(number)}) for number, field in enumerate(self._files.stored, 1)]
        columns = pyarrow_to_schema(pa.schema(numbered))
        sources = {field.name: field.field_id for field in columns.fields}
        partitions = [
            PartitionField(sources[name], FIRST_PARTITION_FIELD + number, IdentityTransform(), name)
            for number, name in enumerate(self._files.partition_by)
        ]
        spec = PartitionSpec(*partitions)
        try:
            made = catalog.create_table(self.config.table, columns, partition_spec=spec, properties=_MADE_WITH)
        except TableAlreadyExistsError:  # somebody else has made it just now
            return catalog.load_table(self.config.table)
        self._flush(made)
        return made

    def _check(self, table: Table) -> None:
        with self._explained("read"):
            fields, partitions = table.schema().fields, table.spec().fields
        sources = {field.field_id: field.name for field in fields}
        has = [
            sources.get(part.source_id, "?") if isinstance(part.transform, IdentityTransform) else f"{part.name} ({part.transform})"
            for part in partitions
        ]
        self._require(has, {field.name: (_sql(field.field_type), field.required) for field in fields})

    def _flush(self, table: Table) -> None:
        """What the catalog points at."""
        if is_url(self.root):
            return
        snapshot = table.current_snapshot()
        paths = [table.metadata_location]
        if snapshot is not None:
            paths.append(snapshot.manifest_list)
            paths += [file.manifest_path for file in snapshot.manifests(table.io) if file.added_snapshot_id == snapshot.snapshot_id]
        flush(paths)

    def _explained(self, what: str) -> contextlib.AbstractContextManager[None]:
        return explained(self.config.table, what, SinkError)


@contextlib.contextmanager
def explained(table: str, what: str, refusal: type[Exception]) -> Iterator[None]:
    """Errors of ``pyiceberg`` and of catalogs' clients as those of a sink or source. Conflicts are let through."""
    where = f"iceberg.table: {table}: cannot {what} it"
    try:
        yield
    except (CommitFailedException, SinkError, SourceError, UnavailableError):
        raise
    except (CommitStateUnknownException, ServerError, ServiceUnavailableError, TooManyRequestsError) as error:
        raise UnavailableError(f"{where} ({_brief(error)}); see whether the catalog is up") from error
    except Exception as error:
        if _may_pass(error):
            raise UnavailableError(f"{where} ({_brief(error)}); see whether the catalog and the store are up") from error
        file = _read_by(error)
        is_gone = isinstance(error, FileNotFoundError)
        if file and (is_gone or not isinstance(error, OSError)):
            told = f"{file} is {'missing' if is_gone else 'damaged'}: {_brief(error)}"
            raise refusal(f"{where} ({told}); restore the file, or roll the table back to a snapshot that does not need it") from error
        remedy = "correct iceberg.catalog, or the access to it" if not isinstance(error, RESTError) else "see what the catalog wants"
        by = next((f", by {value.metadata_location}" for value in _in_frames(error) if isinstance(value, Table)), "")
        raise refusal(f"{where} ({_brief(error)}{by}); {remedy}") from error


def _read_by(error: BaseException) -> str:
    """The file of metadata that ``pyiceberg`` was reading when this was raised, which its errors do not say; empty: none.

    By the local variables of its functions: there is no other way to learn where a catalog has the metadata that it cannot read.
    """
    return next((value.location for value in _in_frames(error) if isinstance(value, InputFile)), "")


def _in_frames(error: BaseException) -> Iterator[object]:
    """The local variables of the functions that the error came through, the innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (value for frame in reversed(frames) for value in frame.f_locals.values())


def _may_pass(error: Exception) -> bool:
    """Whether the way to a catalog or a store broke, whose clients have errors of their own."""
    names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return bool(names & {"requests.ConnectionError", "requests.Timeout", "builtins.ConnectionError", "builtins.TimeoutError"}) or (
        "NETWORK_CONNECTION" in str(error)
    )


def _data_place(table: Table) -> str:
    """Where the table's data files go."""
    given = table.properties.get(TableProperties.WRITE_DATA_PATH)
    where = given or f"{table.location().rstrip('/')}/data"
    try:
        return place(where, is_literal=True)
    except ValueError as error:
        raise SinkError(f"iceberg.table: the location of {table.name()}, {where}, {error}") from None


def _footer(table: Table, path: str) -> pq.FileMetaData:
    with table.io.new_input(path).open() as stream:
        return pq.read_metadata(stream)


def _partition_value(text: str | None, kind: pa.DataType) -> Any:
    """As a record of a manifest has it: dates are days since 1970."""
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_date(kind):
        return date_days(text)
    return text == "true" if pa.types.is_boolean(kind) else int(text)


def _sql(kind: IcebergType) -> str:
    return _SQL.get(str(kind), str(kind).replace(" ", "").upper())


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(error)}"
