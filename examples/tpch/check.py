"""Compares what a join of this folder wrote with what DuckDB computes from the same files, row by row.

Of a query's join it also compares the query's answer: TPC-H's text over the tables, and the sums over the join's results.
Run from the repository's root: ``.venv/bin/python examples/tpch/check.py q3`` (or another manifest's name). Exits with 1
where they differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import duckdb

TABLES = ("customer", "orders", "lineitem", "supplier", "nation", "region")
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
    "q3": """
        SELECT l_orderkey, l_linenumber, l_extendedprice * (1 - l_discount) AS revenue, o_orderdate, o_shippriority
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    """,
    "q5": """
        SELECT l_orderkey, l_linenumber, n_name, l_extendedprice * (1 - l_discount) AS revenue
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
            JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
            JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
        WHERE r_name = 'ASIA' AND year(o_orderdate) = 1994
    """,
    "q10": """
        SELECT l_orderkey, l_linenumber, l_extendedprice * (1 - l_discount) AS revenue,
            c_custkey, c_name, c_acctbal, n_name, c_address, c_phone, c_comment
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
            JOIN nation ON c_nationkey = n_nationkey
        WHERE o_orderdate BETWEEN DATE '1993-10-01' AND DATE '1993-12-31' AND l_returnflag = 'R'
    """,
}
"""What each manifest asks for, in DuckDB's words."""


class Answer(NamedTuple):
    """One of TPC-H's queries: the table ``found`` has the results of its join."""

    over_results: str
    over_tables: str


ANSWERS = {
    "q3": Answer(
        """
        SELECT l_orderkey, sum(revenue) AS revenue, o_orderdate, o_shippriority
        FROM found
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate
        LIMIT 10
        """,
        """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate
        LIMIT 10
        """,
    ),
    "q5": Answer(
        """
        SELECT n_name, sum(revenue) AS revenue
        FROM found
        GROUP BY n_name
        ORDER BY revenue DESC
        """,
        """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
            AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
            AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL 1 YEAR
        GROUP BY n_name
        ORDER BY revenue DESC
        """,
    ),
    "q10": Answer(
        """
        SELECT c_custkey, c_name, sum(revenue) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
        FROM found
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC
        LIMIT 20
        """,
        """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
        FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL 3 MONTH
            AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC
        LIMIT 20
        """,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("join", choices=sorted(EXPECTED), help="the manifest's name without .yaml")
    parser.add_argument("--data", type=Path, default=Path("out/tpch/data"), help="what generate.py wrote")
    parser.add_argument("--output", type=Path, help="what the join wrote (default: out/tpch/JOIN)")
    parser.add_argument("--count-only", action="store_true", help="say the expected count, and look at no output")
    arguments = parser.parse_args()
    output = arguments.output or Path("out/tpch", arguments.join)

    connection = duckdb.connect()
    for table in TABLES:
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
    answered = arguments.join not in ANSWERS or compare(connection, ANSWERS[arguments.join])
    return 0 if answered and not missing and not unexpected else 1


def compare(connection: duckdb.DuckDBPyConnection, answer: Answer) -> bool:
    """Shows the query's answer from the join's results, and says whether it is the one from the tables."""
    ours = connection.sql(answer.over_results)
    same: bool = ours.fetchall() == connection.sql(answer.over_tables).fetchall()
    print(f"the query's answer from these rows, {'the same as' if same else 'ANOTHER THAN'} from the tables:")
    print(ours)
    return same


def files(directory: Path) -> str:
    pattern = str(directory / "*.parquet").replace("'", "''")
    return f"read_parquet('{pattern}')"


def columns(connection: duckdb.DuckDBPyConnection) -> str:
    return ", ".join(row[0] for row in connection.execute("DESCRIBE expected").fetchall())


def count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {relation}").fetchall()[0][0])


if __name__ == "__main__":
    sys.exit(main())
