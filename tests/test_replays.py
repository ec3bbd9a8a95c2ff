"""Dead letters that are read again after the manifest, or what it reads, was mended: each once, whoever dies, and nothing else twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from cases import some
from harness import Crash
from kafka_broker import KafkaBroker
from kafka_join import Joined, produce
from streamjoin.cli import main
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.io import replays
from streamjoin.io.base import Records, Rejected, Split
from streamjoin.io.files_reader import FileRange, FilesSplit
from streamjoin.io.identity import Known
from streamjoin.io.kafka_records import KafkaSplit
from streamjoin.manifest import load as load_manifest
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage

START = 1772355600000


def write(root: Path, name: str, records: list[dict[str, Any]], file: str = "a.json") -> None:
    (root / name).mkdir(exist_ok=True)
    (root / name / file).write_text("".join(json.dumps(record) + "\n" for record in records))


def manifest(root: Path, left: dict[str, Any], *, right: dict[str, Any] | None = None, **spec: Any) -> Path:
    def stream(name: str, given: dict[str, Any]) -> dict[str, Any]:
        files = {"path": str(root / name), "format": "json"} | given.pop("files", {})
        return {"name": name, "source": {"files": files}} | ({"watermark": "10s"} if "eventTime" in given else {}) | given

    sink = {"files": {"path": str(root / "out"), "format": "json"}}
    window = {"within": "10s"} if "eventTime" in left else {"rows": 100000}
    join = {"name": "j", "condition": "l.k = r.k", "window": window, "output": {"select": ["l.k AS k"], "sink": sink}}
    body = {
        "streams": [stream("l", dict(left)), stream("r", dict(right or {"schema": "k BIGINT, ts TIMESTAMP", "eventTime": "ts"}))],
        "joins": [join],
        "epoch": {"maxTuples": 200},
        "workers": {"capacityTuples": 100000},
        "checkpoint": {"location": str(root / "state")},
    } | spec
    path = root / "join.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "again"}, "spec": body})
    )
    return path


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--until-idle", *options])


def letters(path: Path, *options: str) -> str:
    result = CliRunner().invoke(main, ["letters", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def results(root: Path) -> Counter[int]:
    lines = [line for file in (root / "out").glob("*.json*") for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["k"] for line in lines)


def iso(number: int) -> str:
    return f"2026-03-01T09:{number // 60 % 60:02d}:{number % 60:02d}Z"


TIMES = {"schema": "k BIGINT, ts TIMESTAMP", "eventTime": "ts"}
NUMBERS = {"schema": "k BIGINT, ts BIGINT", "eventTime": {"column": "ts", "unit": "ms"}}


@pytest.fixture(autouse=True)
def _uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "LOOK_SECONDS", 0.0)


def test_a_stream_that_was_rejected_whole_is_read_again_by_another_schema(tmp_path: Path) -> None:
    """The records of the other stream are held meanwhile: nothing of it is read twice."""
    write(tmp_path, "l", [{"k": number, "ts": START + 1000 * number} for number in range(250)])
    write(tmp_path, "r", [{"k": number, "ts": iso(number)} for number in range(250)])
    path = manifest(tmp_path, TIMES)
    assert run(path).exit_code == 9
    assert "250 dead letters will be read again" in letters(path, "--replay")
    assert "250 were asked for before" in letters(path, "--replay"), "nothing twice"

    result = run(manifest(tmp_path, NUMBERS))
    assert result.exit_code == 0, result.output
    assert "read 250 dead letters again" in result.output
    assert results(tmp_path) == Counter(range(250))
    assert "no dead letters" in letters(path)
    assert "no dead letters in" in letters(path, "--replay")
    assert run(path).exit_code == 0, "and with nothing left to read"
    assert results(tmp_path) == Counter(range(250))


def test_what_is_wrong_still_is_a_letter_again_and_can_be_read_again_later(tmp_path: Path) -> None:
    bad = {7, 40, 41, 99}
    write(tmp_path, "l", [{"k": str(number) if number not in bad else f"no {number}"} for number in range(120)])
    write(tmp_path, "r", [{"k": number} for number in range(120)])
    path = manifest(tmp_path, {"schema": "k BIGINT"}, right={"schema": "k BIGINT"})
    assert run(path).exit_code == 0
    shown = letters(path)
    assert "l: 4 dead letters" in shown
    for _ in range(2):
        letters(path, "--replay")
        assert "read 4 dead letters again" in run(path).output
        assert letters(path) == shown, "each as it was, once"
    assert results(tmp_path) == Counter(set(range(120)) - bad)


def test_late_records_stay_letters(tmp_path: Path) -> None:
    write(tmp_path, "l", [{"k": number, "ts": iso(600 * (number < 500))} for number in range(600)])
    write(tmp_path, "r", [{"k": number, "ts": iso(600)} for number in range(600)])
    path = manifest(tmp_path, TIMES, deadLetter={"late": True})
    run(path)
    late = int(re.findall(r"l: ([\d,]+) dead letters", letters(path))[0])
    assert late > 0
    assert f"{late} stay as they are: late" in letters(path, "--replay")


def test_letters_of_which_the_records_are_gone_stay_and_say_so(tmp_path: Path) -> None:
    write(tmp_path, "l", [{"k": "x"}, {"k": 1}])
    write(tmp_path, "r", [{"k": 1}])
    path = manifest(tmp_path, {"schema": "k BIGINT, s STRING"}, right={"schema": "k BIGINT"})
    run(path)
    letters(path, "--replay")
    (tmp_path / "l/a.json").unlink()
    for _ in range(2):
        assert run(path).exit_code == 0
        (group,) = map(json.loads, letters(path, "--json").splitlines())
        (example,) = group["examples"]
        assert (group["count"], example["where"], example["raw"]) == (1, "a.json byte 0", '{"k": "x"}')
        assert re.fullmatch(r'cannot be read again: .*a\.json: the file vanished .*; it was: column k: "x" .* BIGINT', example["error"])
        letters(path, "--replay")


def test_a_file_that_could_not_be_read_is_read_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "l").mkdir()
    (tmp_path / "l/a.csv").write_text("k;s\n" + "".join(f"{number};a\n" for number in range(50)))
    (tmp_path / "l/b.csv").write_text("k,s\n50,b\n")
    write(tmp_path, "r", [{"k": number} for number in range(51)])

    def given(delimiter: str) -> Path:
        left = {"schema": "k BIGINT, s STRING", "files": {"format": "csv", "delimiter": delimiter}}
        return manifest(tmp_path, left, right={"schema": "k BIGINT"})

    path = given(",")
    assert run(path).exit_code == 0
    assert results(tmp_path) == Counter({50: 1})
    assert "1 dead letter will be read again" in letters(path, "--replay")
    result = run(given(";"))
    assert result.exit_code == 0, result.output
    assert results(tmp_path) == Counter(range(51))
    assert "no dead letters" in letters(path)


STEPS = ("claim", "republish", "sweep", "plan", "tasks", "commit", "publish", "clean", "gather", "stop")


@pytest.mark.parametrize("step", some(STEPS, of=4))
def test_a_driver_that_dies_reads_each_letter_again_once(step: str, tmp_path: Path) -> None:
    """At that step of the first, the second and the third time, one after another."""
    count, far = 200, 165

    def moment(number: int) -> str:
        return iso(number) if number < far else iso(number).replace("2026", "2100")

    for name in ("l", "r"):
        write(tmp_path, name, [{"k": number, "ts": moment(number)} for number in range(count)])
    wide = TIMES | {"maxAhead": "36500d"}
    path = manifest(tmp_path, TIMES | {"maxAhead": "1h"}, right=wide, epoch={"maxTuples": 40})
    assert run(path).exit_code == 0
    assert results(tmp_path) == Counter(range(far))
    letters(path, "--replay")
    path = manifest(tmp_path, wide, right=wide, epoch={"maxTuples": 40})
    job = compile_job(load_manifest(path.read_text()))
    for occurrence in (1, 2, 3):
        left = [occurrence]

        def die(now: str, left: list[int] = left) -> None:
            left[0] -= now == step
            if now == step and not left[0]:
                raise Crash

        driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), at=die)
        with contextlib.suppress(Crash):
            driver.start()
            while driver.step(final=True) is not None:
                pass
            driver.stop()
    assert run(path).exit_code == 0
    assert results(tmp_path) == Counter(range(count))
    assert "no dead letters" in letters(path)
    assert not list((tmp_path / "state/replays").glob("*"))


KNOWN = Known([900, 2], "hash", "stamp", 17)
SPLITS = [
    KafkaSplit(first_record=5, records=3, partition=7, topic="t", start=100, end=103, of_topic=2),
    FilesSplit(first_record=0, records=9, ranges=(FileRange("a\udcff", 0, 90, 4, 90, KNOWN), FileRange("b", 0, 50, 5, 50, tag="e"))),
    FilesSplit(first_record=1, records=1, ranges=(FileRange("p=1/f.parquet", 0, 1, 1, 70, partition={"p": "1", "q": None}),)),
]


def told(letter: Rejected, split: Split) -> tuple[str | None, int, str]:
    (origin,) = replays.origins_of([letter], split)
    return origin


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: type(split).__name__)
def test_a_letter_says_how_its_record_is_read_again(split: Split) -> None:
    (letter,) = [Rejected(2, "raw", "wrong")]
    origin, position, name = told(letter, split)
    assert (position, name) == (2, split.name)
    assert origin is not None
    assert replays.split_of(origin) == split
    again = replays.ReplaySplit(
        first_record=70, records=2, partition=None, origin=origin, positions=(2, 4), stream="s", letters="", files=("f.json",)
    )
    assert told(replace(letter, position=1), again) == (origin, 4, split.name), "also of one that is read again"
    assert told(replace(letter, again=None), split)[0] is None
    assert told(replace(letter, origin=(SPLITS[0], 1)), split)[1] == 1, "of the part of the split that was read alone"


class Ten:
    """A reader of ten records, in two batches."""

    schema = pa.schema([("k", pa.int64())])

    def read(self, split: Split) -> Iterator[Records]:
        for first in (0, 5):
            yield Records(pa.record_batch([pa.array(range(first, first + 5))], schema=self.schema), None, [], first)


def test_records_are_read_again_by_their_positions_and_each_is_told_of() -> None:
    origin, _, _ = told(Rejected(0, "", ""), SPLITS[1])
    assert origin is not None
    again = replays.ReplaySplit(first_record=0, records=4, origin=origin, positions=(1, 4, 5, 12), stream="s", letters="/nowhere", files=())
    reader = replays.ReplayReader(Ten(), Ten.schema)
    found = list(reader.read(again))
    assert [(records.batch.column(0).to_pylist(), records.offsets().tolist()) for records in found[:2]] == [([1, 4], [0, 1]), ([5], [2])]
    (lost,) = found[2].rejected
    assert (lost.position, lost.error) == (3, "cannot be read again: there is no such record any more; it was: ")
    first, second = reader.halves(again)
    assert (first.first_record, first.records, second.first_record, second.records) == (0, 2, 2, 2)
    assert reader.halves(reader.halves(first)[0]) == ()


def test_a_parquet_file_that_was_replaced_is_not_read_for_the_letters_of_the_one_before(tmp_path: Path) -> None:
    """It is read as the new file that it is; the letters stay."""
    (tmp_path / "l").mkdir()
    rows = pa.table({"k": [1, 2**40, 3]})
    pq.write_table(rows, tmp_path / "l/a.parquet")
    write(tmp_path, "r", [{"k": number} for number in range(10)])
    left = {"schema": "k INT", "files": {"format": "parquet"}}
    path = manifest(tmp_path, left, right={"schema": "k BIGINT"})
    assert run(path).exit_code == 0
    letters(path, "--replay")
    os.replace(tmp_path / "l/a.parquet", tmp_path / "old")
    pq.write_table(pa.table({"k": [4, 5, 6]}), tmp_path / "l/a.parquet")
    assert run(manifest(tmp_path, left, right={"schema": "k BIGINT"})).exit_code == 0
    assert results(tmp_path) == Counter([1, 3, 4, 5, 6])
    (group,) = map(json.loads, letters(path, "--json").splitlines())
    assert "is gone, or another file has its name; it was: column k" in group["examples"][0]["error"]


def test_a_topic_that_was_made_anew_has_no_records_of_the_one_before() -> None:
    split = replace(SPLITS[0], identity="old")
    origin, _, _ = told(Rejected(0, "", ""), split)
    assert origin is not None
    assert replays.split_of(origin) == split
    again = replays.ReplaySplit(
        first_record=0, records=1, origin=origin, positions=(0,), stream="s", letters="/nowhere", files=(), gone="topic t was deleted"
    )
    (found,) = replays.ReplayReader(Ten(), Ten.schema).read(again)
    assert found.rejected[0].error == "cannot be read again: topic t was deleted; it was: "


@pytest.mark.kafka
def test_records_of_a_topic_are_read_again_from_their_offsets(broker: KafkaBroker, tmp_path: Path) -> None:
    """Those of one partition whose times were too far ahead; what is read meanwhile is not read twice."""
    join = Joined(broker, tmp_path, watermark="1h")
    far = datetime(2100, 1, 1, tzinfo=UTC).isoformat()
    produce(broker, join.topics[0], [{"rid": rid, "k": 1000 * rid, "at": far} for rid in range(1, 6)], 1)
    join.feed(40)
    text = join.manifest.read_text()

    def joined(max_ahead: str) -> None:
        text_now = text.replace("      eventTime: at\n", f"      eventTime: at\n      maxAhead: {max_ahead}\n", 1)
        join.manifest.write_text(text_now)
        assert run(join.manifest).exit_code == 0

    joined("1h")
    assert "l: 5 dead letters" in letters(join.manifest)
    assert "5 dead letters will be read again" in letters(join.manifest, "--replay")
    join.feed(10)
    joined("36500d")
    assert "no dead letters" in letters(join.manifest)
    found, repeats = join.found()
    assert (found, repeats) == (join.expected(), 0)
    latest = read_latest(ObjectStorage(join.job.checkpoint))
    assert latest is not None
    assert latest.checkpoint.totals["replayed"] == [5, 0]
    assert latest.checkpoint.totals["accepted"] == [105, 100]
