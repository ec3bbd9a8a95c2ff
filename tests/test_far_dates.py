"""Dates and times of years above 9999 and below 1, which Python has not, in tables: they are rows, and in a partition dead letters."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from harness import Crash
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.io.base import SinkError, Staged
from streamjoin.io.delta_sink import DeltaSink, DeltaSinkConfig
from streamjoin.io.iceberg_sink import IcebergSink, IcebergSinkConfig
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.io.table_sink import TableSink
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from tables import delta_rows
from test_delta_sink import STEPS, die_at

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
DAYS = [0, 2_932_897, -719_163, None, 2**31 - 1, -(2**31), 2_932_896, -719_162]
"""By row: 1970, 10000, the year 0, none, the last and the first of all, 9999-12-31, 0001-01-01."""
MICROS = [0, 253_402_300_800_000_000, 1, None, 2**63 - 1, -(2**63) + 1, 2, 3]
FAR = [1, 2, 4, 5]
KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def rows() -> pa.RecordBatch:
    days, at = pa.array(DAYS, pa.int32()).cast(pa.date32()), pa.array(MICROS, pa.int64()).cast(SCHEMA.field("at").type)
    return pa.record_batch([pa.array(range(len(DAYS)), pa.int64()), days, at], schema=SCHEMA)


def sink_of(kind: str, root: Path, partition_by: tuple[str, ...], *, fails: bool = False) -> TableSink:
    refused = None if fails else RefusedResults(str(root / "dead"), "j")
    if kind == "delta":
        return DeltaSink(DeltaSinkConfig(str(root / "out"), "pairs", partition_by), SCHEMA, refused)
    catalog = {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}", "warehouse": f"file://{root / 'out'}"}
    return IcebergSink(IcebergSinkConfig("n.t", tuple(catalog.items()), partition_by=partition_by), SCHEMA, refused=refused)


def staged_by(sink: TableSink, batch: pa.RecordBatch, *, small: bool) -> list[Staged]:
    writer = sink.writer("c0ffee00-000001-000000000000-00000-x", "c0ffee00-000000000000-00000", small_bytes=1 << 20 if small else 0)
    writer.write(batch)
    closed = writer.close()
    kept = [each for each in closed if not each.data]
    return kept + sink.gather([each for each in closed if each.data], "c0ffee00-000001-000000000000-small-x", "c0ffee00-000000000000-small")


def found(kind: str, root: Path, sink: TableSink) -> list[int]:
    if kind == "delta":
        return sorted(delta_rows(root / "out").column("id").to_pylist())
    paths = [file["file_path"].removeprefix("file://") for file in sink._opened._table.inspect.files().to_pylist()]  # type: ignore[union-attr]
    return sorted(number for path in paths for number in pq.read_table(path, partitioning=None).column("id").to_pylist())


@KINDS
@pytest.mark.parametrize("few", [False, True])
def test_a_table_without_partitions_has_every_date(few: bool, kind: str, tmp_path: Path) -> None:
    sink = sink_of(kind, tmp_path, ())
    sink.publish([], again=True)
    sink.publish(staged_by(sink, rows(), small=few))
    files = [path for path in (tmp_path / "out").rglob("*.parquet") if "_delta_log" not in path.parts]
    written = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
    assert written.column("day").cast(pa.int32()).to_pylist() == DAYS
    assert written.column("at").cast(pa.int64()).to_pylist() == MICROS
    if kind == "iceberg":
        assert found(kind, tmp_path, sink) == list(range(len(DAYS)))


@KINDS
def test_a_date_that_is_no_partition_is_a_letter_once(kind: str, tmp_path: Path) -> None:
    sink = sink_of(kind, tmp_path, ("day",))
    sink.publish([], again=True)
    staged = staged_by(sink, rows(), small=True)
    sink.publish(staged)
    again = sink_of(kind, tmp_path, ("day",))
    again.publish(staged, again=True)
    assert found(kind, tmp_path, again) == [at for at in range(len(DAYS)) if at not in FAR]
    (file,) = (tmp_path / "dead").iterdir()
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [json.loads(letter["raw"])["id"] for letter in letters] == FAR
    assert "year is not from 1 to 9999" in letters[0]["error"]
    for each in (sink, again):
        assert each.refused is not None
        assert each.refused.take()[0] == len(FAR)


@KINDS
def test_where_onbad_is_fail_the_date_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"partitionBy: day: \+10000-01-01 is no partition .* leave it out \(output.where\)"):
        staged_by(sink_of(kind, tmp_path, ("day",), fails=True), rows(), small=False)


MANIFEST = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: far}}
spec:
  streams:
    - {{name: l, source: {{files: {{path: {root}/l, format: json, settle: 0s}}}}, schema: "k BIGINT, day DATE"}}
    - {{name: r, source: {{files: {{path: {root}/r, format: json, settle: 0s}}}}, schema: "k BIGINT"}}
  joins:
    - condition: "l.k = r.k"
      window: {{rows: 1000}}
      output:
        select: ["l.k AS id", "l.day AS day"]
        sink: {{delta: {{path: {root}/out, partitionBy: [day], gather: {gather}}}}}
  epoch: {{maxTuples: 8}}
  checkpoint: {{location: "{root}/state"}}
"""


@pytest.mark.parametrize("gather", ["0s", "10s"])
@pytest.mark.parametrize(
    ("where", "visit"), [*((step, 1) for step in STEPS), ("keep", 0), ("kept", 0), ("take", 0), ("taken", 0), ("taken", 1)]
)
def test_a_join_whose_driver_dies_has_each_result_in_the_table_or_as_a_letter(where: str, visit: int, gather: str, tmp_path: Path) -> None:
    for name in "lr":
        (tmp_path / name).mkdir()
        lines = [{"k": k, "day": "+12345-01-01" if k % 3 == 0 else "2026-01-01"} for k in range(20)]
        (tmp_path / name / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = compile_job(load(MANIFEST.format(root=tmp_path, gather=gather)))
    visits = iter(range(1000))

    def die(at: str) -> None:
        if at == where and next(visits) == visit:
            raise Crash(at)

    def run(at: Callable[[str], None]) -> Any:
        driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), at=at)
        driver.start()
        while driver.step(final=True) is not None:
            pass
        driver.stop()
        return driver.checkpoint.totals

    calls = {"keep": ("keep", False), "kept": ("keep", True), "take": ("take", False), "taken": ("take", True)}
    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(Crash):
        if where in calls:
            name, after = calls[where]
            die_at(patched, Refused if name == "keep" else RefusedResults, name, after=after, visit=visit)
        run(die)
    totals = run(lambda _: None)
    assert sorted(delta_rows(tmp_path / "out").column("id").to_pylist()) == [k for k in range(20) if k % 3]
    files = Path(job.dead_letter).glob("results-*.json")
    letters = [json.loads(json.loads(line)["raw"]) for file in files for line in file.read_text().splitlines()]
    assert sorted(letter["id"] for letter in letters) == [k for k in range(20) if k % 3 == 0]
    assert totals["refused"] == [7]


def test_a_run_says_how_many_results_were_refused_and_letters_shows_them(tmp_path: Path) -> None:
    for name in "lr":
        (tmp_path / name).mkdir()
        lines = [{"k": k, "day": "+12345-01-01" if k % 3 == 0 else "2026-01-01"} for k in range(20)]
        (tmp_path / name / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = tmp_path / "far.yaml"
    manifest.write_text(MANIFEST.format(root=tmp_path, gather="0s"))
    done = CliRunner().invoke(main, ["run", str(manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.DONE, done.output
    assert re.search(r"epoch \d+: .*refused \d results?,", done.output)
    assert "join join: the sink refuses results, which are dead letters (partitionBy day: a date is no partition" in done.output
    assert f"refused 7 results by the sink (in {tmp_path}/state/dead-letters)" in done.output
    shown = CliRunner().invoke(main, ["letters", str(manifest), "--json"])
    (group,) = [json.loads(line) for line in shown.output.splitlines()]
    assert (group["stream"], group["count"]) == ("join join", 7)


def test_a_run_whose_results_are_all_refused_is_no_success(tmp_path: Path) -> None:
    for name in "lr":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text("".join(json.dumps({"k": k, "day": "+12345-01-01"}) + "\n" for k in range(3)))
    manifest = tmp_path / "far.yaml"
    manifest.write_text(MANIFEST.format(root=tmp_path, gather="0s"))
    done = CliRunner().invoke(main, ["run", str(manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.UNUSABLE, done.output
    assert "the sinks refused all of the first 3 results" in done.output
