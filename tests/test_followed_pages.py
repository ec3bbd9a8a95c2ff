"""What a reader does who follows the README, the tutorial and the page on Python: all commands and blocks of Python are run, in order."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin
from pages import ROOT, Block, Reader, blocks, differences, steps
from test_pages import commands

DOCS = ROOT / "docs"
SQL = "SELECT count(*) AS rows FROM near"


def save(reader: Reader, page: Path, name: str) -> None:
    """Saves the block that the page says to save."""
    text = page.read_text()
    [block] = [block for block in blocks(page) if f"<!-- file: {name} -->\n```{block.kind}\n{block.text}" in text]
    (reader.directory / name).write_text(block.text)


def python(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "python" and block.reason is None]


def run(block: Block, names: dict[str, Any], **changes: str) -> None:
    """Runs a block of Python with the names of those before it."""
    text = block.text
    for old, new in changes.items():
        assert old in text, f"{block}: {old}"
        text = text.replace(old, new)
    exec(compile("\n" * block.line + text, str(block.page), "exec"), names)


def trades_and_quotes(root: Path) -> None:
    """Input for the manifest of the README: a file of each stream."""
    rng = random.Random(7)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    for name in ("trades", "quotes"):
        rows = [(n, Decimal(rng.randint(1000, 1400)) / 100, begin + timedelta(milliseconds=100 * n)) for n in range(500)]
        (root / "data" / name).mkdir(parents=True)
        if name == "quotes":
            lines = [json.dumps({"id": id_, "price": str(price), "at": at.isoformat()}) + "\n" for id_, price, at in rows]
            (root / "data/quotes/all.json").write_text("".join(lines))
            continue
        types = {"id": pa.int64(), "price": pa.decimal128(8, 2), "at": pa.timestamp("us", "UTC")}
        columns = {column: pa.array([row[at] for row in rows], kind) for at, (column, kind) in enumerate(types.items())}
        pq.write_table(pa.table(columns), root / "data/trades/all.parquet")


@pytest.mark.spark
def test_the_tutorial_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, inline=False)
    save(reader, DOCS / "tutorial.md", "near.yaml")
    assert reader.follow(DOCS / "tutorial.md") >= 12
    monkeypatch.chdir(tmp_path)
    [block] = python(DOCS / "storage.md")
    names: dict[str, Any] = {"duckdb": duckdb}
    run(block, names, **{"/data/state": "out/state", '"matches"': '"near"', "duckdb.sql(": "found = duckdb.sql(", "42": "43_989"})
    assert len(names["found"]) == 11, "the tutorial asks for the same order"


@pytest.mark.spark
def test_the_readme_and_the_page_on_python_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(tmp_path)
    trades_and_quotes(tmp_path)
    readme = blocks(ROOT / "README.md")
    manifest = next(block for block in readme if block.kind == "yaml")
    (tmp_path / "near.yaml").write_text(manifest.text)
    shell = [block.text for block in readme if block.kind == "sh" and ".venv/bin/streamjoin" in block.text]
    assert len(shell) == 2
    for line in "".join(shell).splitlines():
        without_end = line.startswith(".venv/bin/streamjoin run near.yaml")
        reader.run(line.split("#")[0] + (" --until-idle" if without_end else ""))
    assert (tmp_path / "scheme.png").stat().st_size > 10_000
    monkeypatch.chdir(tmp_path)
    near = "abs(t.price - CAST(q.price AS DECIMAL(8, 2))) <= 0.05"
    expected = duckdb.sql(f"SELECT count(*) FROM 'data/trades/*.parquet' t, 'data/quotes/*.json' q WHERE {near}").fetchall()
    block, of_streams = [block for block in readme if block.kind == "python"]
    assert "from streamjoin.spark import join" in of_streams.text, "as on the page whose lines test_spark_stream_join runs"
    run(block, {})
    assert capsys.readouterr().out
    assert streamjoin.Join.read("near.yaml").results().read_all().num_rows == expected[0][0]
    names: dict[str, Any] = {}
    first, of, plan, spark = python(DOCS / "python.md")
    run(first, names)
    run(of, names)
    run(plan, names)
    assert names["later"].moved_tuples >= 0
    from_spark(spark, tmp_path)


def from_spark(block: Block, root: Path) -> None:
    """The block for a Spark session, over a join that keeps snapshots, as the page says it must."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import streamjoin.spark

    sink = "out/near, format: parquet}}\n"
    text = (root / "near.yaml").read_text().replace(sink, f"{sink}        snapshots: {{size: 10}}\n")
    assert "snapshots" in text
    (root / "near.yaml").write_text(text.replace("out/near", "out/again").replace("state/near", "state/again"))
    with streamjoin.Join.read("near.yaml").run(runner="inline", until_idle=True) as run_:
        output = sum(epoch.output for epoch in run_)
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        names: dict[str, Any] = {"spark": session, "streamjoin": streamjoin}
        run(block, names, **{"SELECT ad, count(*) AS n FROM clicked GROUP BY ad": SQL})
        assert names["matches"].count() == output
        assert names["counts"].collect()[0]["rows"] == output
        assert names["held"].count() >= 0
        for query in session.streams.active:
            query.processAllAvailable()
            query.stop()
        assert session.read.parquet("out/spark").count() == output
    finally:
        session.stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        gateway.shutdown()  # other tests start a Java with settings of their own


def test_the_page_on_tables_prints_what_it_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow(DOCS / "howto" / "tables.md") == 5


def test_a_page_on_queries_shows_the_examples_own_answer(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.run(".venv/bin/streamjoin run examples/snapshots.yaml --until-idle")
    shown = [step for block in blocks(DOCS / "query.md") if block.kind == "console" for step in steps(block.text)]
    [step] = [step for step in shown if "examples/snapshots.yaml" in step.command and "--follow" not in step.command]
    *table, _ = step.output
    printed = reader.run(f".venv/bin/{step.command}")
    assert differences((*table, "…"), printed) is None, printed
    assert list(commands(step.command))
