"""What appending to an Iceberg table and rewriting its files share: transactions, what manifests say of a data file, and flushes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from streamjoin.location import place
from streamjoin.state import durable

_TIMES = (DateType, TimestampType, TimestamptzType)


def transaction_once(table: Table) -> Transaction:
    """A transaction that fails at a conflict. PyIceberg would itself begin again, without asking what has come in between."""
    once = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    return table.transaction()


def flush(paths: Iterable[str]) -> None:
    """Those of these files that are on this machine survive a power loss from now on."""
    for path in paths:
        if path.startswith(("/", "file:")):
            with contextlib.suppress(FileNotFoundError):
                durable.flush_file(Path(place(path, is_literal=True)))


def data_file(table: Table, path: str, nbytes: int, partition: Record, footer: pq.FileMetaData) -> DataFile:
    """A Parquet file of the table's present columns and partitioning, with its bounds and counts. O(row groups * columns)."""
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.properties)

    def statistics() -> dict[str, Any]:
        mapping = parquet_path_to_id_mapping(schema)
        return data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=mapping
        ).to_serialized_dict()

    try:
        described = statistics()
    except (OverflowError, ValueError):  # Python has no times of years above 9999 or below 1: a table has them without bounds
        counts = MetricsMode(MetricModeTypes.COUNTS)
        plan = {number: replace(of, mode=counts) if isinstance(of.iceberg_type, _TIMES) else of for number, of in plan.items()}
        described = statistics()
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=nbytes,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **described,
    )
