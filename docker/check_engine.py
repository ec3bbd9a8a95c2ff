"""Run in the engine's image while that is built, on its own processor: whether what was left out of packages is missed anywhere.

Tables, for which that image has no packages, are check_tables.py's.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy
import pyarrow
from pyarrow import parquet

import streamjoin
from streamjoin.elastic import mapping
from streamjoin.native.functions import compile_all

PICTURES = "matplotlib"
TABLES = ("deltalake", "pyiceberg")


def import_all() -> None:
    """Every module, but for those that draw, and those of tables."""
    for each in pkgutil.walk_packages(streamjoin.__path__, "streamjoin."):
        if not each.name.endswith("__main__"):
            try:
                importlib.import_module(each.name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in (PICTURES, *TABLES):
                    raise


def check(root: Path) -> None:
    import_all()
    compile_all()
    assert not {"numba", "llvmlite"} & set(sys.modules), "the library of native functions is not used"
    matrix = numpy.array([[1.0, 5.0, 0.0], [4.0, 1.0, 0.0]])
    old, new = numpy.nonzero(matrix)
    overlap = mapping.Overlap((2, 3), old, new, matrix[old, new])
    assert mapping.assign(matrix) == mapping.assign(overlap) == (1, 0, None)
    parquet.write_table(pyarrow.table({"number": [1, 2, 3]}), root / "file")
    assert parquet.read_table(root / "file").num_rows == 3
    assert duckdb.sql("SELECT count(*) FROM range(10)").fetchall() == [(10,)]
    (root / "one.proto").write_text('syntax = "proto3"; message One { int32 number = 1; }')
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={root}/set", "one.proto"]
    subprocess.run(protoc, check=True)
    for module in ("cassandra.cluster", "confluent_kafka", "fastavro.schema", "psycopg", "rich.live"):
        importlib.import_module(module)


if __name__ == "__main__":
    assert not [name for name in TABLES if importlib.util.find_spec(name)], "tables have an image of their own"
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory))
    print("the engine has all that it needs")
