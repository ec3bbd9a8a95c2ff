"""Records that are rejected or late: what a run says of them, how it ends where there are no others, and how they are shown by reason."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from streamjoin.api.loop import MANY_LOST
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.cli.letters import MOST_KINDS
from streamjoin.io.deadletter import kind_of

BASE = "2026-03-01T10:{:02d}:{:02d}Z"


def rows(count: int, moment: Any) -> list[dict[str, Any]]:
    return [{"k": number, "ts": moment(number)} for number in range(count)]


def on_time(number: int) -> str:
    return BASE.format(number // 60 % 60, number % 60)


def long_before(number: int) -> str:
    return f"2026-03-01T07:00:{number % 60:02d}Z" if number >= 100 else on_time(number)


def run(root: Path, left: list[dict[str, Any]], right: list[dict[str, Any]], *, options: tuple[str, ...] = (), **spec: Any) -> Result:
    """A join of two files within ten seconds, in epochs of 100 records of each."""
    for name, records in (("l", left), ("r", right)):
        (root / name).mkdir(exist_ok=True)
        (root / name / "a.json").write_text("".join(json.dumps(record) + "\n" for record in records))
    streams = [
        {
            "name": name,
            "source": {"files": {"path": str(root / name), "format": "json"}},
            "schema": "k BIGINT, ts TIMESTAMP",
            "eventTime": "ts",
            "watermark": "10s",
        }
        for name in "lr"
    ]
    sink = {"files": {"path": str(root / "out"), "format": "json"}}
    body = {
        "streams": streams,
        "joins": [{"condition": "l.k = r.k", "window": {"within": "10s"}, "output": {"sink": sink}}],
        "epoch": {"maxTuples": 200},
        "workers": {"capacityTuples": 100000},
        "checkpoint": {"location": str(root / "state")},
    } | spec
    manifest = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "lost"}, "spec": body}
    (root / "join.yaml").write_text(yaml.safe_dump(manifest))
    return CliRunner().invoke(main, ["run", str(root / "join.yaml"), "--runner", "inline", "--until-idle", *options])


def letters(root: Path, *options: str) -> str:
    result = CliRunner().invoke(main, ["letters", str(root / "join.yaml"), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_of_which_every_record_is_rejected_is_no_success(tmp_path: Path) -> None:
    result = run(tmp_path, rows(250, lambda number: f"at {number}"), rows(250, on_time))
    assert result.exit_code == Exit.UNUSABLE
    reason = r'column ts: "at \d+" is not a value of TIMESTAMP'
    assert re.search(rf"rejected 250 of 250: {reason} \(all in {tmp_path}/state/dead-letters\)", result.output)
    said = "l: rejected 250 of its first 250 records, so that nothing was joined (column ts: ... is not a value of TIMESTAMP)"
    assert said in result.output
    assert re.search(rf"epoch 0: .* rejected \d+ \({reason}\)", result.output)


def test_a_run_of_which_every_record_is_late_is_no_success_but_one_of_some_is(tmp_path: Path) -> None:
    some = run(tmp_path, rows(600, on_time), rows(600, long_before))
    assert some.exit_code == 0
    assert re.search(r"late \d+ of 600: up to 3 h 0\d min behind; the watermark is 10s", some.output)


def test_a_single_record_may_be_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, rows(1, lambda number: "never"), rows(5, on_time))
    assert result.exit_code == 0
    assert "rejected 1 of 1: " in result.output


def test_a_run_that_goes_on_ends_when_many_records_were_of_no_use(tmp_path: Path) -> None:
    """Not at the end of the input, which may never come."""
    count = MANY_LOST + 3000
    result = run(tmp_path, rows(count, lambda number: "never"), rows(10, on_time), epoch={"maxTuples": 4000})
    assert result.exit_code == Exit.UNUSABLE
    rejected, first = re.findall(r"l: rejected ([\d,]+) of its first ([\d,]+) records", result.output)[0]
    assert rejected == first
    assert MANY_LOST <= int(first.replace(",", "")) < count
    again = run(tmp_path, rows(count, lambda number: "never"), rows(10, on_time), epoch={"maxTuples": 4000})
    assert again.exit_code == Exit.UNUSABLE, "also of a driver that is started again"


def test_json_has_the_reasons(tmp_path: Path) -> None:
    result = run(tmp_path, rows(10, lambda number: "x" if number == 3 else on_time(number)), rows(600, long_before), options=("--json",))
    records = [json.loads(line) for line in result.stdout.splitlines()]
    left, right = records[-1]["streams"]
    assert (left["rejected"], left["rejection"], left["lateSeconds"]) == (1, 'column ts: "x" is not a value of TIMESTAMP', None)
    assert right["rejection"] is None
    assert right["lateSeconds"] == pytest.approx(3 * 3600 + 99 - 10 + 100 - 100, abs=120)
    assert [record["streams"][0]["rejection"] for record in records[:-1] if record["streams"][0]["rejected"]] == [left["rejection"]]


def test_letters_are_shown_by_stream_and_reason(tmp_path: Path) -> None:
    def moment(number: int) -> Any:
        return {0: "x", 1: "y", 2: None, 3: "z"}.get(number, on_time(number))

    result = run(tmp_path, rows(50, moment), rows(600, long_before), deadLetter={"late": True})
    late = int(re.findall(r"late (\d+) of 600", result.output)[0])
    size = (tmp_path / "l/a.json").stat().st_size
    assert letters(tmp_path).splitlines()[:9] == [
        f"l: 4 dead letters, in {tmp_path}/state/dead-letters",
        "          3  column ts: ... is not a value of TIMESTAMP",
        '             a.json byte 0: {"k": 0, "ts": "x"}',
        '               column ts: "x" is not a value of TIMESTAMP',
        '             a.json byte 20: {"k": 1, "ts": "y"}',
        '               column ts: "y" is not a value of TIMESTAMP',
        "          1  ts: the event time is null; every record needs one",
        f'             a.json 0-{size}: {{"k": 2, "ts": null}}',
        f"r: {late} dead letters, in {tmp_path}/state/dead-letters",
    ]
    groups = [json.loads(line) for line in letters(tmp_path, "--json", "--examples", "1").splitlines()]
    assert [(group["stream"], group["count"], len(group["examples"])) for group in groups] == [("l", 3, 1), ("l", 1, 1), ("r", late, 1)]


def test_a_join_without_dead_letters_says_so(tmp_path: Path) -> None:
    run(tmp_path, rows(5, on_time), rows(5, on_time))
    assert letters(tmp_path) == f"no dead letters in {tmp_path}/state/dead-letters\n"


@pytest.mark.parametrize("asked", [None, True, False])
def test_of_many_late_tuples_a_sample_is_kept_unless_the_manifest_says_otherwise(asked: bool | None, tmp_path: Path) -> None:
    letter = {} if asked is None else {"late": asked}
    result = run(tmp_path, rows(5, on_time), rows(1700, long_before), epoch={"maxTuples": 500}, deadLetter=letter)
    late = int(re.findall(r"late ([\d,]+) of 1,700", result.output)[0].replace(",", ""))
    groups = [json.loads(line) for line in letters(tmp_path, "--json").splitlines() if line.startswith("{")]
    kept = sum(group["count"] for group in groups)
    assert kept == late if asked else kept == 0 if asked is False else 100 <= kept < late


def test_letters_of_many_epochs_are_in_few_files(tmp_path: Path) -> None:
    bad = rows(3000, lambda number: "x" if number % 2 else on_time(number))
    result = run(tmp_path, bad, bad)
    assert int(re.findall(r"([\d]+) epochs", result.output)[0]) > 10
    files = list((tmp_path / "state/dead-letters").glob("*.json"))
    assert len(files) == 1
    assert sum(len(path.read_text().splitlines()) for path in files) == 3000


def test_letters_are_kept_for_as_long_as_the_manifest_says(tmp_path: Path) -> None:
    bad = rows(20, lambda number: "x" if number % 2 else on_time(number))
    run(tmp_path, bad, bad, deadLetter={"retention": "1h"})
    (first,) = (tmp_path / "state/dead-letters").glob("*.json")
    other = tmp_path / "state/dead-letters/notes.txt"
    other.write_text("of somebody else")
    for path, age in ((first, 3700), (other, 10**6)):
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    run(tmp_path, bad * 2, bad, deadLetter={"retention": "1h"})
    (second,) = (tmp_path / "state/dead-letters").glob("*.json")
    assert second != first
    assert other.exists()


def test_a_reason_has_no_value_of_a_record() -> None:
    assert kind_of('column ts: "1772355601000" is not a value of TIMESTAMP') == "column ts: ... is not a value of TIMESTAMP"
    assert kind_of("ts: late; the stream's watermark was 2026-03-01T10:00:00Z") == "ts: late; the stream's watermark was ..."
    assert kind_of("column k2: 17 is not a value of INT") == "column k2: ... is not a value of INT"
    assert MOST_KINDS > 1


def test_validate_and_the_first_epochs_say_which_watermark_the_disorder_needs(tmp_path: Path) -> None:
    def moment(number: int) -> str:
        return on_time(number - 400 if number % 50 == 49 and number > 450 else number)

    result = run(tmp_path, rows(900, moment), rows(900, on_time))
    said = "l: event times are out of order by more than the watermark, which is 10s: what comes later than that is dropped; a"
    assert re.findall(rf"{said} watermark of (\w+) would take all that was seen", result.output) == ["10m"]
    assert re.search(r"late \d of 900: up to .* behind; the watermark is 10s, and \d+m would have taken them", result.output)
    checked = CliRunner().invoke(main, ["validate", str(tmp_path / "join.yaml")])
    assert checked.exit_code == 0
    remarks = [line for line in checked.output.splitlines() if "watermark" in line]
    assert len(remarks) == 1
    assert re.search(r'warning: spec.streams\[0\].watermark: "10s" of the first 900 records event times are out of order', remarks[0])
    assert remarks[0].endswith("; 10m would take all of them")
