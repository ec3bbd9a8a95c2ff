"""Run while the image for tables is built, on its own processor, with all of its packages: joins with a Delta and an Iceberg table.

The images have no SQLite, in which PyIceberg keeps a catalog on one machine: here one is kept in this process (``Kept``).
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import MetastoreCatalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

import streamjoin
from streamjoin import Join

PICTURES = "matplotlib"
TABLE = "results.pairs"
ROWS = 50


class Kept(MetastoreCatalog):
    """A catalog of this process."""

    places: dict[str, str] = {}  # noqa: RUF012 - of the class, as the engine opens the catalog anew
    """By table, where its metadata are."""

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        pass

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        pass

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        where = self._resolve_table_location(location, *identifier.split("."))
        metadata = new_table_metadata(schema, partition_spec, sort_order, where, properties or {})
        place = load_location_provider(where, properties or {}).new_table_metadata_file_location()
        self._write_metadata(metadata, load_file_io(self.properties, place), place)
        self.places[identifier] = place
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        if name not in self.places:
            raise NoSuchTableError(name)
        place = self.places[name]
        files = load_file_io(self.properties, place)
        return Table(tuple(name.split(".")), FromInputFile.table_metadata(files.new_input(place)), place, files, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        staged = self._update_and_stage_table(self.load_table(table.name()), table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.places[".".join(table.name())] = staged.metadata_location
        return CommitTableResponse.model_validate({"metadata": staged.metadata, "metadata-location": staged.metadata_location})


Kept.__abstractmethods__ = frozenset()  # the engine asks no more of a catalog


def import_all() -> None:
    """Every module, but for those that draw."""
    for each in pkgutil.walk_packages(streamjoin.__path__, "streamjoin."):
        if not each.name.endswith("__main__"):
            try:
                importlib.import_module(each.name)
            except ModuleNotFoundError as error:
                if error.name != PICTURES:
                    raise


def join(root: Path, **sink: object) -> None:
    """Runs a join of two made-up streams to its end: each row of one has one partner."""
    columns: dict[str, object] = {"id": {"sequence": {}}}
    made_up = {"generator": {"rows": ROWS, "rate": {"constant": 10}, "realTime": False, "columns": columns}}
    stream = {"source": made_up, "schema": "id BIGINT, at TIMESTAMP", "eventTime": "at"}
    output = {"select": ["a.id AS id", "b.at AS at"], "sink": sink}
    pairs = {"condition": "a.id = b.id", "window": {"within": "10s"}, "output": output}
    made = Join.of(root.name, streams={"a": stream, "b": stream}, joins={"pairs": pairs}, checkpoint=root / "state", workers=1)
    for _ in made.run(runner="inline", until_idle=True):
        pass


def check(root: Path) -> None:
    import_all()
    delta, warehouse = root / "delta", root / "iceberg"
    join(delta, delta={"path": str(delta / "table")})
    table = DeltaTable(delta / "table")
    table.optimize.compact()
    table.create_checkpoint()
    assert pyarrow.RecordBatchReader.from_stream(table.scan()).read_all().num_rows == ROWS
    catalog = {"py-catalog-impl": "check_tables.Kept", "warehouse": f"file://{warehouse}"}
    join(warehouse, iceberg={"table": TABLE, "catalog": catalog})
    assert sorted(load_catalog("default", **catalog).load_table(TABLE).scan().to_arrow()["id"].to_pylist()) == list(range(ROWS))
    assert S3FileSystem(anonymous=True, region="none").type_name == "s3"
    assert PyArrowFileIO().new_output(f"{root}/file").location
    for module in ("pyiceberg.catalog.rest", "pyiceberg.catalog.sql", "sqlalchemy.dialects.postgresql.psycopg"):
        importlib.import_module(module)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory))
    print("tables have all that they need")
