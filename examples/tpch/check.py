"""Compares what a join of this folder wrote with what DuckDB computes from the same files, row by row.

Run from the repository's root: ``.venv/bin/python examples/tpch/check.py e_q5`` (or ``band``). Exits with 1 where they
differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb

EXPECTED = {
    "e_q5": """
        SELECT o_orderkey, l_linenumber, o_custkey, l_suppkey, l_extendedprice * (1 - l_discount) AS revenue
        FROM orders JOIN lineitem ON o_orderkey = l_orderkey
        WHERE year(o_orderdate) = 1994
    """,
    "band": """
        SELECT o_orderkey, l_orderkey, l_linenumber, o_orderdate, l_shipdate
        FROM orders JOIN lineitem ON o_orderdate BETWEEN l_shipdate - 2 AND l_shipdate + 2
        WHERE l_shipmode = 'TRUCK' AND l_quantity > 48 AND l_extendedprice > o_totalprice
    """,
}
"""What each manifest asks for, in DuckDB's words."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("join", choices=sorted(EXPECTED), help="the manifest's name without .yaml")
    parser.add_argument("--data", type=Path, default=Path("out/tpch/data"), help="what generate.py wrote")
    parser.add_argument("--output", type=Path, help="what the join wrote (default: out/tpch/JOIN)")
    parser.add_argument("--count-only", action="store_true", help="say the expected count, and look at no output")
    arguments = parser.parse_args()
    output = arguments.output or Path("out/tpch", arguments.join)

    connection = duckdb.connect()
    for table in ("orders", "lineitem"):
        connection.execute(f"CREATE VIEW {table} AS FROM {files(arguments.data / table)}")
    connection.execute(f"CREATE TABLE expected AS {EXPECTED[arguments.join]}")
    expected = count(connection, "expected")
    if arguments.count_only:
        print(f"{arguments.join}: {expected} rows expected")
        return 0
    if not any(output.glob("*.parquet")):
        print(f"{arguments.join}: {expected} rows expected, and {output} has no results yet; run the join first")
        return 1
    connection.execute(f"CREATE TABLE found AS SELECT {columns(connection)} FROM {files(output)}")
    missing = count(connection, "(FROM expected EXCEPT ALL FROM found)")
    unexpected = count(connection, "(FROM found EXCEPT ALL FROM expected)")
    found = count(connection, "found")
    wrong = f"{missing} missing, {unexpected} unexpected or repeated"
    print(f"{arguments.join}: {expected} rows expected, {found} found; {wrong}")
    return 1 if missing or unexpected else 0


def files(directory: Path) -> str:
    pattern = str(directory / "*.parquet").replace("'", "''")
    return f"read_parquet('{pattern}')"


def columns(connection: duckdb.DuckDBPyConnection) -> str:
    return ", ".join(row[0] for row in connection.execute("DESCRIBE expected").fetchall())


def count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {relation}").fetchall()[0][0])


if __name__ == "__main__":
    sys.exit(main())
