"""Run in the engine's image while that is built, on its own processor: whether what was left out of packages is missed anywhere."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import pyarrow
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import S3FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

import streamjoin
from streamjoin.elastic import mapping
from streamjoin.kernel import native
from streamjoin.query import execution

PICTURES = "matplotlib"


def import_all() -> None:
    """Every module, but for those that draw."""
    for each in pkgutil.walk_packages(streamjoin.__path__, "streamjoin."):
        if not each.name.endswith("__main__"):
            try:
                importlib.import_module(each.name)
            except ModuleNotFoundError as error:
                if error.name != PICTURES:
                    raise


def check(root: Path) -> None:
    import_all()
    native.compile_all()
    assert not {"numba", "llvmlite"} & set(sys.modules), "the library of native functions is not used"
    matrix = numpy.array([[1.0, 5.0, 0.0], [4.0, 1.0, 0.0]])
    old, new = numpy.nonzero(matrix)
    overlap = mapping.Overlap((2, 3), old, new, matrix[old, new])
    assert mapping.assign(matrix) == mapping.assign(overlap) == (1, 0, None)
    table = pyarrow.table({"number": [1, 2, 3]})
    for _ in range(2):
        write_deltalake(root / "delta", table, mode="append")
    delta = DeltaTable(root / "delta")
    delta.optimize.compact()
    delta.create_checkpoint()
    assert pyarrow.RecordBatchReader.from_stream(delta.scan()).read_all().num_rows == 6
    assert S3FileSystem(anonymous=True, region="none").type_name == "s3"
    assert PyArrowFileIO().new_output(f"{root}/file").location
    assert execution.duckdb.sql("SELECT count(*) FROM range(10)").fetchall() == [(10,)]
    (root / "one.proto").write_text('syntax = "proto3"; message One { int32 number = 1; }')
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={root}/set", "one.proto"]
    subprocess.run(protoc, check=True)
    catalogs = ("pyiceberg.catalog.rest", "pyiceberg.catalog.sql")
    for module in ("cassandra.cluster", "confluent_kafka", "fastavro.schema", "psycopg", *catalogs, "rich.live"):
        importlib.import_module(module)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory))
    print("the engine has all that it needs")
