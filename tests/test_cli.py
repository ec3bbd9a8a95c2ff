"""The command line as users and machines meet it: exit codes, sentences, JSON lines, pictures, stopping and going on.

Everything runs with the inline runner; ``tests/test_spark.py`` starts Spark.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from forked_queries import PROCESSES
from ports import free_ports
from streamjoin.api import loop
from streamjoin.api.loop import Asked, Done, Ended, Entering, Event, Loop, Notice, Reason, Retrying, Starting, Stopping, Waiting
from streamjoin.api.machine import shortage
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.cli.history import MOST_SAMPLES, RATE_SECONDS, Durations, History
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject
from streamjoin.cli.view import Screen
from streamjoin.compilation import compile_job
from streamjoin.elastic.completeness import JoinLosses, Losses, Sums
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.job import Job
from streamjoin.manifest.validate import load
from streamjoin.results.reader import files, list_snapshots
from streamjoin.runner import java
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("cli")  # one process forks those of all
GIB = 1 << 30


def manifest_at(root: Path, *, rows: int | None = 2000, real_time: bool = False, **changes: Any) -> Path:
    """A small band join of two generated streams, in a file; ``changes`` replace fields of its spec."""

    def stream(name: str, seed: int) -> dict[str, Any]:
        generator: dict[str, Any] = {
            "seed": seed,
            "rate": {"constant": 1000},
            "realTime": real_time,
            "columns": {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 200}}},
        }
        if rows is not None:
            generator["rows"] = rows
        return {
            "name": name,
            "source": {"generator": generator},
            "schema": "id BIGINT, k INT, at TIMESTAMP",
            "eventTime": "at",
            "expectedRate": 1000,
        }

    spec = {
        "streams": [stream("l", 1), stream("r", 2)],
        "joins": [
            {
                "condition": "abs(l.k - r.k) <= 1",
                "window": {"within": "1s"},
                "output": {"select": ["l.id AS a", "r.id AS b"], "sink": {"files": {"path": str(root / "out")}}},
            }
        ],
        "workers": {"min": 2, "max": 2},
        "epoch": {"interval": "50ms", "maxTuples": 1000},
        "checkpoint": {"location": str(root / "state")},
    } | changes
    document = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "small"}, "spec": spec}
    path = root / "join.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_inline(path: Path, *arguments: object) -> Result:
    return invoke("run", path, "--runner", "inline", *arguments)


def rows_in(root: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in (root / "out").glob("*.parquet"))


def streamjoin(arguments: list[str], out: str, error: str, before: Callable[[], None] | None) -> None:
    """What a process of the command does, its standard streams being those files."""
    for path, descriptor in ((out, 1), (error, 2)):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout, sys.stderr = (open(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))  # noqa: SIM115
    if before is not None:
        before()
    main(arguments, prog_name="streamjoin")


class Process:
    """A ``streamjoin`` process, whose lines are waited for. Forked from one that has all modules, so that it starts at once."""

    def __init__(self, root: Path, *arguments: object, before: Callable[[], None] | None = None) -> None:
        pipes = [str(root / name) for name in ("stdout.pipe", "stderr.pipe")]
        for pipe in pipes:
            os.mkfifo(pipe)
        self.process = PROCESSES.Process(target=streamjoin, args=([str(argument) for argument in arguments], *pipes, before))
        self.process.start()
        self._watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        self._watchdog.start()
        self.stdout, self.stderr = (open(pipe, encoding="utf-8") for pipe in pipes)  # noqa: SIM115 - closed in end()

    def line_with(self, text: str) -> str:
        """The next line of standard output that has the text."""
        for line in self.stdout:
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}; standard error: {self.stderr.read()}")

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int | None, str, str]:
        """Exit code, the rest of standard output, and standard error."""
        out = "" if self.stdout.closed else self.stdout.read()
        error = self.stderr.read()
        self.process.join()
        self._watchdog.cancel()
        self.stdout.close()
        self.stderr.close()
        return self.process.exitcode, out, error


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["--help"], {"pydantic", "yaml", "numpy", "pyarrow", "pyspark", "matplotlib", "rich", "numba"}),
        (["run", "--help"], {"pydantic", "yaml", "numpy", "pyarrow", "pyspark", "matplotlib", "rich", "numba"}),
        (["validate", "MANIFEST"], {"pyarrow", "pyspark", "matplotlib", "rich", "numba", "obstore"}),
    ],
    ids=["help", "run help", "validate"],
)
def test_what_answers_at_once_imports_nothing_heavy(tmp_path: Path, arguments: list[str], forbidden: set[str]) -> None:
    manifest = manifest_at(tmp_path)
    script = (
        "import sys\nfrom streamjoin.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print(' '.join(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, *(word.replace("MANIFEST", str(manifest)) for word in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert not forbidden & set(done.stderr.split())


def test_validate_reports_every_problem_of_every_file_with_its_line(tmp_path: Path) -> None:
    good = manifest_at(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("min: 2", "min: 3").replace("within: 1s", "within: soon").replace("schema: id", "schema: l.id"))
    result = invoke("validate", good, bad, tmp_path / "none.yaml")
    assert result.exit_code == Exit.USAGE
    lines = result.stdout.splitlines()
    assert lines[0] == f"{good}: ok"
    fields = [match[2] for line in lines if (match := re.match(rf"{re.escape(str(bad))}:(\d+): ([\w.\[\]]+): ", line))]
    assert {"spec.streams[0].schema", "spec.streams[1].schema", "spec.joins[0].window.within", "spec.workers.min"} <= set(fields)
    assert lines[-1] == f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory"


def test_validate_reads_standard_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["validate", "-"], input=manifest_at(tmp_path).read_bytes())
    assert (result.exit_code, result.stdout) == (Exit.DONE, "-: ok\n")


def test_a_finite_join_runs_until_idle_and_a_second_run_finds_nothing_new(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    first = run_inline(path, "--until-idle")
    assert first.exit_code == Exit.DONE, first.output
    assert "all input has been joined" in first.stdout
    rows = rows_in(tmp_path)
    assert rows > 0
    assert f"{rows:,} rows" in first.stdout
    second = run_inline(path, "--until-idle")
    assert second.exit_code == Exit.DONE
    assert "Nothing was joined: all input has been joined" in second.stdout
    assert rows_in(tmp_path) == rows


def test_until_idle_waits_for_a_generator_that_follows_the_clock(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, rows=400, real_time=True)
    result = run_inline(path, "--until-idle", "--json")
    assert result.exit_code == Exit.DONE
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["reason"] == "idle"
    assert [stream["input"] for stream in summary["streams"]] == [400, 400]
    assert summary["seconds"] > 0.39


def test_a_join_whose_results_are_snapshots_alone_says_where_they_are(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["spec"]["joins"][0]["output"] = {"select": ["l.id AS a", "r.id AS b"], "snapshots": {"size": 1}}
    path.write_text(yaml.safe_dump(document))
    done = run_inline(path, "--until-idle")
    assert done.exit_code == Exit.DONE, done.output
    assert "snapshots in the checkpoint" in done.output


def test_json_is_all_that_standard_output_has_even_with_a_console_sink(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["spec"]["joins"][0]["output"]["sink"] = {"console": {"limit": 3}}
    path.write_text(yaml.safe_dump(document))
    code, out, error = Process(tmp_path, "run", path, "--runner", "inline", "--until-idle", "--json").end()
    assert code == Exit.DONE, error
    *epochs, summary = [json.loads(line) for line in out.splitlines()]
    assert summary["event"] == "summary"
    assert [epoch["epoch"] for epoch in epochs] == list(range(4))
    assert summary["epochs"] == 4
    assert sum(epoch["output"] for epoch in epochs) == summary["output"] == summary["totals"]["output"][0] > 0
    for side in (0, 1):
        assert sum(epoch["streams"][side]["input"] for epoch in epochs) == summary["streams"][side]["input"] == 2000
    assert {worker["task"] for epoch in epochs for worker in epoch["workers"]} == {0, 1}
    assert epochs[-1]["streams"][0]["watermark"] == "2026-01-01T00:00:01.999000Z"
    assert error.count('{"a":') == 12


@pytest.mark.parametrize("arguments", [["paper"], ["paper", "--figure", "002:4"]])
def test_the_papers_comparison_says_which_package_it_needs(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints([]))
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert "paper: the package streamjoin-research has this command and is not installed; in a clone: make setup-research" in done.stderr
    assert "streamjoin-research" in " ".join(CliRunner().invoke(main, ["bench", "--help"]).output.split()).replace("- ", "-")


def test_json_fields_are_those_that_the_documentation_lists(tmp_path: Path) -> None:
    result = run_inline(manifest_at(tmp_path, rows=10), "--until-idle", "--json")
    text = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    _, epoch_table, summary_table = text.split("| Field of")
    for line, table in zip((result.stdout.splitlines()[0], result.stdout.splitlines()[-1]), (epoch_table, summary_table), strict=True):
        named = set(re.findall(r"`(\w+)(?:\[\])?`", "".join(row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|"))))
        assert named == set(json.loads(line)) - {"event"}


def test_the_time_can_be_limited(tmp_path: Path) -> None:
    result = run_inline(manifest_at(tmp_path, rows=None, real_time=True), "--for", "200ms", "--json")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert (result.exit_code, summary["reason"]) == (Exit.DONE, "time")


@pytest.mark.parametrize("value", ["soon", "0s", "5"])
def test_a_duration_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    result = run_inline(manifest_at(tmp_path), "--for", value)
    assert result.exit_code == Exit.USAGE
    assert value in result.stderr


def test_the_summary_is_a_table_whatever_the_streams_are_called(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, rows=100)
    path.write_text(path.read_text().replace("l.", "impressions.").replace("name: l\n", "name: impressions\n"))
    lines = run_inline(path, "--until-idle").stdout.splitlines()
    labels = ("impressions", "r", "output", "epochs", "tau")
    columns = {line[: len("  impressions  ")] for line in lines if line.startswith(tuple(f"  {label} " for label in labels))}
    assert columns == {f"  {label:<11}  " for label in labels}


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_of_the_run_is_drawn(tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / "deep" / f"run.{suffix}"
    result = run_inline(manifest_at(tmp_path), "--until-idle", "--picture", picture)
    assert result.exit_code == Exit.DONE
    assert str(picture) in result.stdout
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert len(data) > 20_000


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    result = run_inline(manifest_at(tmp_path), "--picture", tmp_path / "run.txt")
    assert result.exit_code == Exit.USAGE
    assert "must end in" in result.stderr
    assert not (tmp_path / "state").exists()


def test_an_invalid_manifest_is_a_wrong_use_with_all_its_problems(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, workers={"min": 3, "max": 2}, scheme={"model": "magic"})
    result = run_inline(path)
    assert result.exit_code == Exit.USAGE
    assert "spec.workers.min: 3" in result.stderr
    assert 'spec.scheme.model: "magic"' in result.stderr


def test_a_suspended_join_is_not_run(tmp_path: Path) -> None:
    result = run_inline(manifest_at(tmp_path, suspend=True))
    assert result.exit_code == Exit.DONE
    assert "spec.suspend" in result.stderr
    assert not (tmp_path / "state").exists()


def test_a_checkpoint_of_another_join_is_refused_naming_what_differs(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    run_inline(path, "--until-idle")
    path.write_text(path.read_text().replace("<= 1", "<= 2"))
    result = run_inline(path, "--until-idle")
    assert result.exit_code == Exit.MISMATCH
    assert "spec.joins[0].condition" in result.stderr
    assert "checkpoint.location" in result.stderr
    assert "go on" not in result.stderr, "the same command would be refused again"


def test_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a directory should be")
    result = run_inline(manifest_at(tmp_path), "--until-idle", "--log-dir", tmp_path / "logs")
    assert result.exit_code == Exit.STORAGE
    assert str(tmp_path / "state") in result.stderr
    assert "Traceback" not in result.stderr
    assert "StorageError" in (tmp_path / "logs" / "failure.txt").read_text()


def test_input_that_cannot_be_read_ends_the_run_at_once_with_its_name(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    document = yaml.safe_load(path.read_text())
    source = tmp_path / "in"
    document["spec"]["streams"][0] |= {"source": {"files": {"path": str(source), "format": "parquet"}}, "onBad": "fail", "watermark": "0s"}
    path.write_text(yaml.safe_dump(document))
    source.mkdir()
    pq.write_table(pa.table({"id": ["text"], "k": ["text"], "at": ["text"]}), source / "wrong.parquet")
    result = run_inline(path, "--until-idle", "--json")
    assert result.exit_code == Exit.SOURCE, result.output
    assert "wrong.parquet" in result.stderr
    assert "mend the input and run the same command" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["exitCode"] == Exit.SOURCE


def test_without_java_the_sentence_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise java.JavaNotFound("Spark needs Java 17 or newer: none was found; install one")

    monkeypatch.setattr(java, "find_java", missing)
    result = invoke("run", manifest_at(tmp_path))
    assert result.exit_code == Exit.JAVA
    assert "--runner inline" in result.stderr


def test_an_epoch_that_keeps_failing_is_one_sentence_and_a_trace_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamjoin.runner import inline

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("one by nought")

    monkeypatch.setattr(inline, "route", fail)
    monkeypatch.setattr(loop.Loop.__init__, "__kwdefaults__", {**(Loop.__init__.__kwdefaults__ or {}), "pauses": (0.0, 0.0, 0.0)})
    result = run_inline(manifest_at(tmp_path), "--until-idle")
    assert result.exit_code == Exit.FAILED
    sentence = result.stderr.strip()
    assert "\n" not in sentence
    assert "epoch 0: ZeroDivisionError: one by nought" in sentence
    trace = re.search(r"trace: (\S+)\)", sentence)
    assert trace is not None
    assert "Traceback" in Path(trace[1]).read_text()
    assert result.stdout.count("trying again") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_epoch_and_the_next_run_goes_on(tmp_path: Path, number: int) -> None:
    path = manifest_at(tmp_path, rows=None, real_time=True)
    running = Process(tmp_path, "run", path, "--runner", "inline", "--json")
    first = json.loads(running.line_with('"epoch": 2'))
    running.signal(number)
    code, out, error = running.end()
    assert code == Exit.DONE, error
    summary = json.loads(out.splitlines()[-1])
    assert summary["reason"] == "stopped"
    assert summary["lastEpoch"] >= first["epoch"]
    assert "stopping after the running epoch" in error
    resumed = run_inline(path, "--for", "100ms", "--json")
    following = json.loads(resumed.stdout.splitlines()[0])
    assert following["epoch"] == summary["lastEpoch"] + 1
    for side in (0, 1):
        assert following["totals"]["input"][side] == summary["totals"]["input"][side] + following["streams"][side]["input"]


def hang_in_epochs() -> None:
    def hang(*arguments: object) -> list[Any]:
        print("hanging", flush=True)
        while True:
            threading.Event().wait()

    InlineRunner.submit = hang  # type: ignore[method-assign, assignment]


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    running = Process(tmp_path, "run", manifest_at(tmp_path), "--runner", "inline", before=hang_in_epochs)
    running.line_with("hanging")
    running.signal(signal.SIGINT)
    running.line_with("stopping after the running epoch")
    running.signal(signal.SIGINT)
    code, _, error = running.end()
    assert code == Exit.INTERRUPTED
    assert "done again by the next run" in error


def test_a_run_that_does_not_come_back_ends_itself_with_a_code_of_its_own(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, epoch={"deadline": "10s"})
    running = Process(tmp_path, "run", path, "--runner", "inline", before=hang_in_epochs)
    running.line_with("hanging")
    code, _, error = running.end()
    assert code == Exit.STALLED
    assert "epoch 0: stalled in step tasks: nothing of it has moved for " in error
    trace = re.search(r"\(trace: (.+?)\)", error)
    assert trace is not None
    assert "in hang" in Path(trace[1]).read_text(), "it says where each thread is"


def test_a_driver_whose_checkpoint_was_taken_over_says_so(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, rows=None, real_time=True)
    running = Process(tmp_path, "run", path, "--runner", "inline", "--json")
    running.line_with('"epoch": 0')
    assert run_inline(path, "--for", "50ms").exit_code == Exit.DONE
    code, out, error = running.end()
    assert code == Exit.SUPERSEDED
    assert "another driver" in error
    assert json.loads(out.splitlines()[-1])["exitCode"] == Exit.SUPERSEDED


def test_a_reader_that_goes_away_stops_the_run(tmp_path: Path) -> None:
    running = Process(tmp_path, "run", manifest_at(tmp_path, rows=None, real_time=True), "--runner", "inline", "--json")
    running.line_with('"epoch": 0')
    running.stdout.close()
    code, _, error = running.end()
    assert code == Exit.DONE, error
    assert "Traceback" not in error
    assert "Exception" not in error


def test_on_a_terminal_the_view_is_live_and_control_c_leaves_a_summary(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, rows=None, real_time=True)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, [sys.executable, "-m", "streamjoin", "run", str(path), "--runner", "inline"])
    watchdog = threading.Timer(PATIENCE_SECONDS, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    shown, asked = b"", False
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # how Linux tells that the other end of a terminal is closed
            break
        if not data:
            break
        shown += data
        if not asked and b"epoch 2" in shown:
            os.write(terminal, b"\x03")
            asked = True
    _, status = os.waitpid(child, 0)
    watchdog.cancel()
    os.close(terminal)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == Exit.DONE, text
    assert "starting 2 workers in this process" in text
    assert "Stopping after the running epoch" in text
    assert "streamjoin run" in text.splitlines()[-1]
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is hidden"


def test_plan_prints_the_scheme_of_the_first_deployment_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "scheme.svg"
    result = invoke("plan", manifest_at(tmp_path), "--output", picture)
    assert result.exit_code == Exit.DONE, result.output
    assert "2 tasks" in result.stdout
    assert "abs(l.k - r.k) <= 1" in result.stdout
    assert "<svg" in picture.read_text()


def test_plan_obeys_statistics_tasks_and_capacity(tmp_path: Path) -> None:
    path = manifest_at(tmp_path)
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps({"l": {"tuples": 5000, "keys": list(range(100))}, "r": {"tuples": 5000}, "capacity": 2000}))
    assert re.search(r"fullest is \d+ % full", invoke("plan", path, "--stats", stats).stdout)
    assert "3 tasks" in invoke("plan", path, "--stats", stats, "--tasks", 3).stdout
    assert "1 task," in invoke("plan", path, "--stats", stats, "--capacity", 20000).stdout
    both = invoke("plan", path, "--tasks", 3, "--capacity", 20000)
    assert both.exit_code == Exit.USAGE
    assert "--tasks and --capacity" in both.stderr


def test_plan_and_validate_say_what_the_workers_that_may_be_cannot_hold(tmp_path: Path) -> None:
    tight = manifest_at(tmp_path, workers={"min": 1, "max": 2, "capacityTuples": 4000})
    warned = invoke("plan", tight)
    assert warned.exit_code == Exit.DONE
    expected = r"warning: spec.workers.max: 2 is too small: .* above tau1 \(0.4\), which takes \d workers by adsp; raise it"
    assert re.match(expected, warned.stderr)
    told = invoke("validate", tight)
    assert (told.exit_code, told.stdout) == (Exit.DONE, f"{tight}: ok\n")
    assert told.stderr.startswith(f"{tight}: warning: spec.workers.max: 2 is too small")
    full = manifest_at(tmp_path, workers={"min": 1, "max": 2, "capacityTuples": 500})
    refused = invoke("plan", full)
    assert refused.exit_code == Exit.FAILED
    assert refused.stderr.startswith("no plan can be made: spec.workers.max: 2 is too small")
    over = invoke("plan", full, "--tasks", 2)
    assert over.exit_code == Exit.DONE, "who asks for a number gets a plan, and is told"
    assert "warning: spec.workers.capacityTuples: task " in over.stdout
    assert "more than 500; raise it, or ask for more workers" in over.stdout
    assert "warning" not in invoke("validate", manifest_at(tmp_path)).stderr


def test_plan_goes_on_from_a_saved_plan_and_draws_both(tmp_path: Path) -> None:
    path, saved, picture = manifest_at(tmp_path), tmp_path / "plan.json", tmp_path / "change.svg"
    assert f"saved: {saved}" in invoke("plan", path, "--tasks", 3, "--save", saved).stdout
    result = invoke("plan", path, "--tasks", 4, "--from", saved, "--output", picture)
    assert result.exit_code == Exit.DONE, result.output
    assert "from plan 1, 3 tasks, to plan 2:" in result.stdout
    assert "4 tasks" in picture.read_text()
    assert "3 tasks" in picture.read_text()
    assert "nothing moves" in invoke("plan", path, "--tasks", 3, "--from", saved).stdout
    saved.write_text('{"generation": 1}')
    refused = invoke("plan", path, "--from", saved)
    assert refused.exit_code == Exit.USAGE
    assert f"{saved}: plan.scheme: is missing" in refused.stderr


def test_plan_needs_no_place_for_state_and_names_what_is_wrong_with_statistics(tmp_path: Path) -> None:
    path = manifest_at(tmp_path, checkpoint={"persistentVolumeClaim": "claim"})
    assert invoke("plan", path).exit_code == Exit.DONE
    stats = tmp_path / "stats.json"
    stats.write_text('{"l": {"tuples": -1}, "r": {"tuples": 1}}')
    result = invoke("plan", path, "--stats", stats)
    assert result.exit_code == Exit.USAGE
    assert "left.tuples: -1" in result.stderr
    undrawable = invoke("plan", path, "--output", tmp_path / "scheme.txt")
    assert undrawable.exit_code == Exit.USAGE
    assert "--output: scheme.txt: its suffix must be one of .svg, .png" in undrawable.stderr
    for option, name in (("--output", "scheme.svg"), ("--save", "plan.json")):
        unwritable = invoke("plan", path, option, stats / name)
        assert unwritable.exit_code == Exit.USAGE
        assert f"{option}: {stats / name}: {stats} is not a directory; choose a file that you may write" in unwritable.stderr


def chain_at(root: Path, *, streams: int = 3, rows: int = 1000, **changes: Any) -> Path:
    """A manifest of so many streams a, b, c ..., each joined with the next: by ``id`` and, every second time, by a band of ``k``."""
    names = "abcdef"[:streams]
    path = manifest_at(root, rows=rows)
    document = yaml.safe_load(path.read_text())
    spec = document["spec"]
    first, _ = spec["streams"]
    spec["streams"] = [first | {"name": name, "watermark": "100ms"} for name in names]
    spec["joins"][0] |= {
        "condition": " AND ".join(
            f"abs({one}.k - {other}.k) <= 1" if number % 2 else f"{one}.id = {other}.id"
            for number, (one, other) in enumerate(itertools.pairwise(names))
        ),
        "output": {"select": [f"{name}.id AS {name}" for name in names], "sink": {"files": {"path": str(root / "out")}}},
    }
    spec |= changes
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def of_three(epoch: int = 0, streams: int = 3, **changes: Any) -> EpochResult:
    """An epoch of :func:`chain_at`."""
    each = tuple(10 * (number + 1) for number in range(streams))
    counts = make_result().counts | dict.fromkeys(("rejected", "filtered", "late", "unmatchable", "shed", "would_shed"), (0,) * streams)
    counts |= dict.fromkeys(("input", "accepted", "routed"), each)
    held = tuple(100 * (number + 1) for number in range(streams))
    totals = {name: list(of_streams) for name, of_streams in counts.items()} | {"output": [5], "candidates": [7]}
    totals |= {"partial": [1234], "partial_bytes": [56789]}
    return make_result(
        epoch,
        counts=counts,
        totals=totals,
        held={0: held, 1: held},
        watermarks=(None,) * streams,
        lag=(1.0,) * streams,
        backlog=(0,) * streams,
        **changes,
    )


def test_a_join_of_three_streams_is_told_of_by_line_summary_and_picture(tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    result = run_inline(chain_at(tmp_path), "--until-idle", "--picture", picture)
    assert result.exit_code == Exit.DONE, result.output
    assert re.search(r"^epoch 0: in 333 \+ 333 \+ 333, out [\d,]+, held [\d,]+, ", result.stdout, re.MULTILINE)
    for name in "abc":
        assert re.search(rf"^  {name}  +1,000 tuples, ", result.stdout, re.MULTILINE)
        assert picture.read_text().count(f"<!-- {name} in -->") == 1
    assert f"{rows_in(tmp_path):,} rows" in result.stdout


def test_json_has_what_a_worker_holds_by_stream_where_there_are_three(tmp_path: Path) -> None:
    result = run_inline(chain_at(tmp_path), "--until-idle", "--json")
    *epochs, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(stream["name"], stream["input"]) for stream in summary["streams"]] == [("a", 1000), ("b", 1000), ("c", 1000)]
    assert summary["output"] == rows_in(tmp_path) > 0
    for worker in epochs[-1]["workers"]:
        assert list(worker["held"]) == ["a", "b", "c"]
        assert "heldLeft" not in worker
    held = Counter[str]()
    for worker in epochs[0]["workers"]:
        held.update(worker["held"])
    # b is held by its id and by its k.
    assert held["b"] == 2 * held["a"] == 2 * held["c"]
    assert summary["totals"]["partial"][0] > 0
    assert summary["totals"]["partialBytes"][0] > 0


def test_plan_of_three_streams_cuts_saves_goes_on_and_draws(tmp_path: Path) -> None:
    path, saved, picture = chain_at(tmp_path), tmp_path / "plan.json", tmp_path / "plan.svg"
    first = invoke("plan", path, "--tasks", 3, "--save", saved, "--output", picture)
    assert first.exit_code == Exit.DONE, first.output
    assert "main predicate: a.id = b.id (range)\na by id: " in first.stdout
    assert "\n\nabs(b.k - c.k) <= 1:\ntasks  b by k" in first.stdout
    assert "a ⋈ b ⋈ c by adsp: 3 tasks" in picture.read_text()
    stats = tmp_path / "stats.json"
    keys = {"keys": list(range(200))}
    stats.write_text(json.dumps({"a": {"tuples": 500}, "b": {"tuples": 400, "by": {"k": keys}}, "c": {"tuples": 300} | keys}))
    again = invoke("plan", path, "--stats", stats, "--tasks", 4, "--from", saved, "--output", picture)
    assert again.exit_code == Exit.DONE, again.output
    assert "b by k: 400 tuples (" in again.stdout
    assert re.search(r"^\d  +from \d+(?: to \d+)? +", again.stdout, re.MULTILINE), "cut along k"
    assert "from plan 1, 3 tasks, to plan 2:" in again.stdout
    assert "4 tasks" in picture.read_text()
    stats.write_text('{"left": {"tuples": 1}, "right": {"tuples": 1}}')
    refused = invoke("plan", path, "--stats", stats)
    assert refused.exit_code == Exit.USAGE
    assert refused.stderr == f"{stats}: left, right: must be an object of a, b, c and capacity\n"


def test_validate_and_plan_expect_the_same_of_three_streams(tmp_path: Path) -> None:
    path = chain_at(tmp_path, workers={"min": 1, "max": 3, "capacityTuples": 4000})
    document = yaml.safe_load(path.read_text())
    document["spec"]["joins"][0]["condition"] = "a.id = b.id AND a.id = c.id"
    path.write_text(yaml.safe_dump(document))
    planned, told = invoke("plan", path), invoke("validate", path)
    # Tuples of one key, which is hashed: nothing is held twice.
    assert planned.exit_code == told.exit_code == Exit.DONE
    assert "warning" not in planned.stderr + told.stderr
    path.write_text(path.read_text().replace("4000", "1500"))
    (warning,) = [line for line in invoke("plan", path).stderr.splitlines() if "warning" in line]
    assert "spec.workers.max: 3 is too small" in warning
    assert invoke("validate", path).stderr == f"{path}: {warning}\n"


def test_simulate_is_for_two_streams_and_validate_takes_three(tmp_path: Path) -> None:
    path = chain_at(tmp_path)
    assert invoke("validate", path).stdout == f"{path}: ok\n"
    refused = invoke("simulate", path, "--days", 1)
    assert refused.exit_code == Exit.USAGE
    assert refused.stderr.startswith(f"{path}: spec.streams: simulate is for joins of two streams, and this one has 3; ")


# The loop alone, with a driver that does as it is told.


def make_result(epoch: int = 0, **changes: Any) -> EpochResult:
    counts = dict.fromkeys(("rejected", "filtered", "late", "unmatchable", "shed", "would_shed"), (0, 0))
    counts |= dict.fromkeys(("input", "accepted", "routed"), (10, 20))
    result = EpochResult(
        epoch=epoch,
        started_at=1000.0 + epoch,
        seconds={"plan": 0.1, "tasks": 0.2, "deploy": 8.0, "task.join": 0.1},
        counts=counts,
        output=5,
        candidates=7,
        held={0: (10, 20), 1: (1, 2)},
        utilization={0: 0.3, 1: 0.03},
        watermarks=(None, None),
        lag=(1.0, 2.0),
        backlog=(0, 0),
        shed=(0.0, 0.0),
        read_back=0,
        totals={name: list(pair) for name, pair in counts.items()} | {"output": [5], "candidates": [7]},
        generation=1,
        blocks=4,
    )
    return replace(result, **changes)


class ScriptedDriver:
    """Plays answers: a result, None, an error to raise, or a function to call for one of them."""

    def __init__(self, *answers: Any, exhausted: bool = True) -> None:
        self.exhausted = exhausted
        self.idle_warnings: tuple[str, ...] = ()
        self.calls: list[str] = []
        self.is_hurried = False
        self._answers: Iterator[Any] = iter(answers)

    def start(self) -> None:
        self.calls.append("start")

    def step(self, *, final: bool = False) -> EpochResult | None:
        self.calls.append("final" if final else "step")
        answer = next(self._answers)
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        assert answer is None or isinstance(answer, EpochResult)
        return answer

    def plan_status(self) -> None:
        return None

    def stop(self) -> None:
        self.calls.append("stop")


def play(driver: ScriptedDriver, tmp_path: Path, stop: threading.Event | None = None, **options: Any) -> list[Event]:
    events: list[Event] = []
    settings: dict[str, Any] = {"interval_seconds": 0.0, "pauses": (0.0, 0.0, 0.0)} | options
    Loop(driver, stop=stop or threading.Event(), tell=events.append, log_directory=tmp_path, **settings).run()
    assert [event for event in events if isinstance(event, Ended)] == events[-1:]
    assert isinstance(events[-2], Stopping)
    assert driver.calls.count("stop") == 1
    return events


def ended(events: list[Event]) -> Ended:
    last = events[-1]
    assert isinstance(last, Ended)
    return last


def test_a_failed_epoch_is_tried_again_and_then_goes_on(tmp_path: Path) -> None:
    driver = ScriptedDriver(EpochFailed("epoch 0: lost"), EpochFailed("epoch 0: lost"), make_result(), None, None)
    events = play(driver, tmp_path, until_idle=True)
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [1, 2]
    assert ended(events).reason is Reason.IDLE


def test_what_sources_without_news_warn_of_is_told_once(tmp_path: Path) -> None:
    driver = ScriptedDriver(exhausted=False)
    stop = threading.Event()

    def warn(*warnings: str) -> Callable[[], None]:
        return lambda: setattr(driver, "idle_warnings", warnings)

    none, both = ("no topic",), ("no topic", "a file is gone")
    driver._answers = iter([*(warn(*each) for each in ((), none, none, both, (), none)), stop.set])
    events = play(driver, tmp_path, stop=stop)
    told = [event.text for event in events if isinstance(event, Notice)]
    assert told == ["warning: no topic", "warning: a file is gone", "warning: no topic"]


def test_an_epoch_is_tried_four_times(tmp_path: Path) -> None:
    driver = ScriptedDriver(*[EpochFailed("epoch 0: lost", "its trace")] * 4)
    failure = ended(play(driver, tmp_path)).failure
    assert failure is not None
    assert failure.code is Exit.FAILED
    assert (tmp_path / "failure.txt").read_text() == "its trace"


def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path) -> None:
    driver = ScriptedDriver(EpochFailed("epoch 0: SourceError: a.csv: no such column", permanent=True))
    failure = ended(play(driver, tmp_path)).failure
    assert failure is not None
    assert failure.code is Exit.SOURCE
    assert driver.calls == ["start", "step", "stop"]


def test_an_epoch_that_fails_while_stopping_is_given_up_without_an_error(tmp_path: Path) -> None:
    stop = threading.Event()

    def killed() -> Exception:
        stop.set()
        return EpochFailed("epoch 3: Py4JError: the workers are gone")

    last = ended(play(ScriptedDriver(killed), tmp_path, stop))
    assert (last.reason, last.failure, last.abandoned) == (Reason.STOPPED, None, True)


def test_an_error_that_nobody_foresaw_is_still_one_sentence(tmp_path: Path) -> None:
    failure = ended(play(ScriptedDriver(KeyError("x")), tmp_path)).failure
    assert failure is not None
    assert failure.sentence.startswith("KeyError: ... (trace: ")
    assert "Traceback" in (tmp_path / "failure.txt").read_text()


def test_a_backlog_is_not_waited_for_and_otherwise_the_interval_is_kept(tmp_path: Path) -> None:
    stop = Patient()

    def lasting(seconds: float, result: EpochResult) -> Callable[[], EpochResult]:
        def answer() -> EpochResult:
            stop.now += seconds
            return result

        return answer

    driver = ScriptedDriver(
        *(lasting(0.5, make_result(backlog=(5, 0))), lasting(0.5, make_result(1)), lasting(3.0, make_result(2))), None, None
    )
    play(driver, tmp_path, stop, interval_seconds=2.0, until_idle=True, clock=lambda: stop.now)
    assert stop.waits == [1.5, 0.0]


def test_an_epoch_whose_worker_died_is_tried_again_at_once_and_not_for_ever(tmp_path: Path) -> None:
    stop = Patient()
    died = EpochFailed("epoch 0: the worker died", worker_died=True)
    driver = ScriptedDriver(*[died] * 4, EpochFailed("brokers are away"), make_result(), *[died] * 9)
    events = play(driver, tmp_path, stop, interval_seconds=0.0, pauses=(0.5, 1.0, 2.0))
    assert stop.waits == [0, 0, 0, 0, 0.5, 0, *[0] * 5, 0.5, 1.0, 2.0]
    assert ended(events).reason is Reason.FAILED


@pytest.mark.parametrize(("is_hurried", "waits"), [(False, [5.0, 5.0, 2.0]), (True, [5.0])])
def test_a_long_interval_ends_where_workers_were_told_to_go(is_hurried: bool, waits: list[float], tmp_path: Path) -> None:
    stop = Patient()
    driver = ScriptedDriver(make_result(), make_result(1), None, None)
    driver.is_hurried = is_hurried
    play(driver, tmp_path, stop, interval_seconds=12.0, until_idle=True, clock=lambda: stop.now)
    assert stop.waits == 2 * waits, "after each epoch"


class Patient(threading.Event):
    """Notes how long it is waited for, and lets nobody wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.now = 0.0
        """What a clock shows by which those waits take as long as they are."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        return self.is_set()


def test_without_an_interval_epochs_follow_at_once_and_sources_are_asked_ever_more_rarely(tmp_path: Path) -> None:
    stop = Patient()

    def end() -> None:
        stop.set()

    driver = ScriptedDriver(make_result(), make_result(1), *[None] * 8, make_result(2), None, end)
    play(driver, tmp_path, stop, interval_seconds=0.0)
    assert stop.waits[:2] == [0, 0]
    assert stop.waits[2:10] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]
    assert stop.waits[10:12] == [0, 0.002]


def test_what_waits_for_its_end_is_taken_before_the_run_is_idle(tmp_path: Path) -> None:
    driver = ScriptedDriver(make_result(), None, make_result(1), None, None)
    events = play(driver, tmp_path, until_idle=True)
    assert driver.calls == ["start", "step", "step", "final", "step", "final", "stop"]
    assert [event.result.epoch for event in events if isinstance(event, Done)] == [0, 1]


def test_a_stop_before_the_start_claims_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    driver = ScriptedDriver()
    assert ended(play(driver, tmp_path, stop)).reason is Reason.STOPPED
    assert driver.calls == ["stop"]


def test_workers_that_cannot_be_stopped_do_not_hide_the_end(tmp_path: Path) -> None:
    class Unstoppable(ScriptedDriver):
        def stop(self) -> None:
            raise RuntimeError("the workers are gone")

    driver = Unstoppable(None, None)
    events: list[Event] = []
    Loop(driver, interval_seconds=0, stop=threading.Event(), tell=events.append, log_directory=tmp_path, until_idle=True).run()
    assert ended(events).reason is Reason.IDLE


# What is remembered of a run, and how it looks.


def test_quantiles_of_epoch_times_are_right_to_one_percent() -> None:
    seed = 20
    rng = random.Random(seed)
    durations, seen = Durations(), []
    for _ in range(5000):
        seconds = rng.lognormvariate(-1, 1.5)
        durations.add(seconds)
        seen.append(seconds)
    seen.sort()
    for fraction in (0.01, 0.5, 0.95, 1.0):
        exact = seen[max(0, round(fraction * len(seen)) - 1)]
        assert durations.quantile(fraction) == pytest.approx(exact, rel=0.011), f"seed {seed}, {fraction}"


def test_a_long_run_is_remembered_in_bounded_space_without_losing_counts_or_peaks() -> None:
    history = History(1000.0)
    epochs = 3 * MOST_SAMPLES + 7
    for epoch in range(epochs):
        tau = 0.9 if epoch == 1234 else 0.1
        history.add(make_result(epoch, utilization={0: tau, 1: 0.0}), 1000.5 + epoch)
    assert len(history.samples) <= MOST_SAMPLES
    assert sum(sample.input[1] for sample in history.samples) == history.counts["input"][1] == 20 * epochs
    assert sum(sample.output for sample in history.samples) == history.output == 5 * epochs
    assert max(sample.utilization[0] for sample in history.samples) == history.largest_utilization == 0.9
    assert [sample.end for sample in history.samples] == sorted(sample.end for sample in history.samples)


def test_rates_are_those_of_the_last_seconds_and_fall_when_nothing_comes() -> None:
    history = History(1000.0)
    for epoch in range(20):
        history.add(make_result(epoch, counts=make_result().counts | {"input": (1000 if epoch < 10 else 4000, 0)}), 1000.5 + epoch)
    assert history.rates(1019.6).input[0] == pytest.approx(4000)
    assert history.rates(1019.5 + RATE_SECONDS + 3).input[0] < 2000
    assert history.rates(1100.0).input[0] < 200


def test_every_tuple_is_in_exactly_one_second_of_the_curve() -> None:
    history = History(1000.0)
    for epoch in range(8):
        history.add(make_result(epoch), 1000.4 + epoch * 1.7)
    cells = history.per_second(1013.0, 40)
    whole = sum(cell.input for cell in cells)
    assert len(cells) == 40
    # the second that the last epoch ended in is not over
    assert 0.8 * 8 * 30 < whole <= 8 * 30 + 1e-6


def screen_of(job: Job, *, is_sampled: bool = True, unicode: bool = True) -> Screen:
    """The screen of a run that began at 1000. ``is_sampled``: its driver knows how tuples lie."""
    driver = SimpleNamespace(job=job, layout=job.layouts[0] if is_sampled else None, scheme=None)
    return Screen(RunState(Subject("spark", "streamjoin run x", driver), 1000.0), unicode=unicode)


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (200, 60), (60, 20)])
@pytest.mark.parametrize("workers", [1, 3, 40])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_screen_fits_its_terminal(tmp_path: Path, width: int, height: int, workers: int, unicode: bool) -> None:
    job = compile_job(load(manifest_at(tmp_path).read_text()))
    screen = screen_of(job, unicode=unicode)
    screen.state.see(Starting(workers))
    for epoch in range(30):
        tau = {task: (epoch + task) / 60 for task in range(workers)}
        result = make_result(
            epoch, utilization=tau, held=dict.fromkeys(tau, (1000, 2000)), watermarks=(10**15, 10**15), warnings=("a.csv was replaced",)
        )
        screen.state.see(Done(result, 1000.5 + epoch))
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(1030.6, width, height))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(height, 23)
    text = "\n".join(lines)
    for word in ("small", "abs(l.k - r.k) <= 1", "within 1.0 s", "running", "a.csv was replaced", "epoch 29", "Ctrl-C"):
        assert word in text
    if not unicode:
        assert not set(text) & set("▁▂▃▄▅▆▇█●τ")


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (200, 60)])
@pytest.mark.parametrize("streams", [3, 6])
def test_the_screen_has_a_line_and_a_column_for_each_of_many_streams(tmp_path: Path, width: int, height: int, streams: int) -> None:
    job = compile_job(load(chain_at(tmp_path, streams=streams).read_text()))
    screen = screen_of(job)
    result = of_three(streams=streams, warnings=("a.csv was replaced",))
    screen.state.see(Done(result, 1000.5))
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(1001.6, width, height))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= height
    assert {line.split()[0] for line in lines if line[:2].strip()} >= set("abcdef"[:streams])
    heading = next(index for index, line in enumerate(lines) if line.startswith(" worker has "))
    assert lines[heading].split()[2 : streams + 3] == [*"abcdef"[:streams], "tau"]
    task, *held = lines[heading + 1].split()[: streams + 2]
    assert (task, held[:3], held[-1]) == ("0", ["100", "200", "300"], "0.30")
    assert any("5 in all, 1,234 partial results sent" in line for line in lines)


def with_joins(path: Path, count: int) -> Path:
    """The manifest with so many joins; each after the first is an anti join on the same key, with a sink of its own."""
    document = yaml.safe_load(path.read_text())
    (first,) = document["spec"]["joins"]
    for number in range(1, count):
        sink = {"files": {"path": str(path.parent / f"out-{number}"), "format": "json"}}
        lonely = {"name": f"lonely-{number}", "type": "anti", "output": {"select": ["l.id AS a"], "sink": sink}}
        document["spec"]["joins"].append(first | lonely)
    path.write_text(yaml.safe_dump(document))
    return path


def test_results_of_several_joins_are_told_apart(tmp_path: Path) -> None:
    path = with_joins(manifest_at(tmp_path), 2)
    result = run_inline(path, "--until-idle", "--json")
    *epochs, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert [join["name"] for join in summary["joins"]] == ["join", "lonely-1"]
    assert sum(join["output"] for join in summary["joins"]) == summary["output"]
    for index, join in enumerate(summary["joins"]):
        assert join["output"] == sum(epoch["joins"][index]["output"] for epoch in epochs)
    out = tmp_path / "out-1"
    assert summary["joins"][1]["output"] == sum(len(file.read_text().splitlines()) for file in out.glob("*.json"))
    assert summary["joins"][1]["sink"] == f"{out} (json)"
    assert not [name for name in summary["totals"] if "/" in name]


def test_the_example_of_joins_of_joins_finds_what_was_paid_and_not_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[1] / "examples" / "joins-of-joins.yaml"
    result = run_inline(example, "--until-idle", "--json")
    assert result.exit_code == Exit.DONE
    overdue = [row for file in (tmp_path / "out/joins-of-joins/overdue").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted(row["id"] for row in overdue) == list(range(16_200, 18_000))
    epochs = [json.loads(line) for line in result.stdout.splitlines()][:-1]
    lags = [stream["watermarkLagSeconds"] or 0 for epoch in epochs for stream in epoch["streams"]]
    assert max(lags) < 60, "that of results as well goes by what they are made of"
    planned = invoke("plan", example, "--tasks", 4, "--output", tmp_path / "plan.svg").output
    assert "settle: orders and payments, by orders.id = payments.order_id; paid reads its results" in planned


def test_the_example_of_joins_beside_each_other_finds_what_was_delivered_and_what_nobody_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[1] / "examples" / "joins-beside.yaml"
    assert run_inline(example, "--until-idle").exit_code == Exit.DONE
    files = {name: (tmp_path / "out/joins-beside" / name).glob("*.parquet") for name in ("delivered", "unpaid")}
    rows = {name: sorted(row["id"] for file in of_join for row in pq.read_table(file).to_pylist()) for name, of_join in files.items()}
    assert rows == {"delivered": [order for order in range(20_000) if order % 10], "unpaid": list(range(0, 20_000, 10))}
    planned = invoke("plan", example, "--tasks", 3, "--output", tmp_path / "plan.svg").output
    assert "delivered: orders, payments and shipments, by orders.id = payments.order_id; orders.id = shipments.order_id" in planned
    assert "sequences of delivered, where each equality has one match" in planned
    told = invoke("explain", example).output
    assert told.startswith("delivered:\nnew tuples of  meet, in this order")
    held = invoke("query", example, "SELECT count(*) FROM orders", "--json").output
    assert "15001" in held, "what the join of three streams holds yet, though that of two has ended"


def test_the_example_of_several_joins_puts_every_order_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_inline(Path(__file__).parents[1] / "examples" / "several-joins.yaml", "--until-idle").exit_code == Exit.DONE
    out = tmp_path / "out" / "several-joins"
    rows = {"paid": [row for file in (out / "paid").glob("*.parquet") for row in pq.read_table(file).to_pylist()]}
    for name in ("wrong-amount", "unpaid"):
        rows[name] = [json.loads(line) for file in (out / name).glob("*.json") for line in file.read_text().splitlines()]
    assert all(rows.values())
    assert sorted(row["id"] for each in rows.values() for row in each) == list(range(20_000)), "each order is of one kind"
    assert {row["id"] for row in rows["unpaid"]} == set(range(0, 20_000, 10))
    assert all(float(row["amount"]) != float(row["paid"]) for row in rows["wrong-amount"])


def test_the_example_of_a_chain_gives_what_that_of_the_same_band_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for name in ("band", "handshake"):
        assert run_inline(Path(__file__).parents[1] / "examples" / f"{name}.yaml", "--until-idle").exit_code == Exit.DONE
        files = (tmp_path / "out" / name / "matches").glob("*.parquet")
        found.append(Counter(str(row) for file in files for row in pq.read_table(file).to_pylist()))
    assert found[0] == found[1]
    assert found[0].total() > 1000


def test_lines_and_summary_name_each_of_several_joins(tmp_path: Path) -> None:
    lines = run_inline(with_joins(manifest_at(tmp_path), 3), "--until-idle").stdout.splitlines()
    assert re.search(r"out [\d,]+ \(\w+ [\d,]+, lonely-1 [\d,]+, lonely-2 [\d,]+\)", next(line for line in lines if "epoch 0:" in line))
    place = next(index for index, line in enumerate(lines) if line.startswith("  output "))
    assert lines[place].endswith("of 3 joins")
    assert re.fullmatch(rf"    lonely-2 +[\d,]+ rows?, {re.escape(str(tmp_path))}/out-2 \(json\)", lines[place + 3])


def test_plan_says_how_several_joins_share_their_tuples(tmp_path: Path) -> None:
    path = with_joins(manifest_at(tmp_path), 2)
    shared = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert "joins: join and lonely-1: tuples lie by abs(l.k - r.k) <= 1 once for all of them\n" in shared
    document = yaml.safe_load(path.read_text())
    document["spec"]["joins"][1]["condition"] = "l.id = r.id AND length(concat(l.id, r.id)) > 2"
    path.write_text(yaml.safe_dump(document))
    apart = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert "joins: join and lonely-1 have no keys in common: where every pair of tuples meets a tuple would be held " in apart
    assert "; this plan is where every pair of tuples meets. " in apart
    assert "  lonely-1 finds its pairs by an index of its own: l.id = r.id\n" in apart
    document["spec"]["workers"] = {"min": 16, "max": 16}
    document["spec"]["joins"][0]["condition"] = "l.k = r.k"
    path.write_text(yaml.safe_dump(document))
    many = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert "; this plan is on key spaces of their own. " in many
    assert "  join: on key space 1, by l.k = r.k\n  lonely-1: on key space 2, by l.id = r.id\n" in many
    assert "not indexed in lonely-1: " in apart


@pytest.mark.parametrize("count", [1, 3])
def test_joins_come_and_go_under_a_checkpoint(tmp_path: Path, count: int) -> None:
    path = manifest_at(tmp_path, rows=10)
    alone = path.read_text()
    assert run_inline(with_joins(path, 2), "--until-idle").exit_code == Exit.DONE
    path.write_text(alone)
    assert run_inline(with_joins(path, count), "--until-idle").exit_code == Exit.DONE


@pytest.mark.parametrize(("height", "shown"), [(30, 6), (24, 2)])
@pytest.mark.parametrize("count", [2, 6, 16])
def test_the_screen_has_a_line_for_each_join_as_far_as_there_is_room(tmp_path: Path, height: int, shown: int, count: int) -> None:
    job = compile_job(load(with_joins(manifest_at(tmp_path), count).read_text()))
    screen = screen_of(job)
    screen.state.see(Done(make_result(totals=make_result().totals | {"output/lonely-1": [12_345]}), 1000.5))
    console = Console(width=100, height=height, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(1001.0, 100, height))
    lines = capture.get().splitlines()
    assert len(lines) <= height
    named = [line for line in lines if " rows  " in line]
    assert len(named) == (count if count <= shown else shown - 1)
    assert any(f"and {count - len(named)} more" in line for line in lines) == (count > shown)
    if len(named) > 1:
        assert "lonely-1     12,345 rows  anti: abs(l.k - r.k) <= 1" in named[1]


@pytest.mark.parametrize("width", [80, 100])
def test_the_screen_says_how_complete_results_are_once_some_are_lost(tmp_path: Path, width: int) -> None:
    job = compile_job(load(manifest_at(tmp_path).read_text()))

    def line(found: float) -> str:
        losses = Losses(joins={"lonely": JoinLosses(Sums(0.0)).plus(1000.0, Sums(1000.0, found, 1000.0, 1000.0))})
        screen = screen_of(job)
        screen.state.see(Done(make_result(losses=losses, committed_at=1000.5), 1000.5))
        console = Console(width=width, height=24, color_system=None)
        with console.capture() as capture:
            console.print(screen.render(1001.0, width, 24))
        return next(line for line in capture.get().splitlines() if " backlog " in line)

    assert "complete 86.6 % to 87.6 %" in line(871.0)
    assert "complete" not in line(1000.0)


def test_the_view_says_what_the_run_is_about_and_for_how_long(tmp_path: Path) -> None:
    job = compile_job(load(manifest_at(tmp_path).read_text()))
    screen = screen_of(job, is_sampled=False)

    def shown(*events: Event, at: float) -> str:
        for event in events:
            screen.state.see(event)
        console = Console(width=100, height=30, color_system=None)
        with console.capture() as capture:
            console.print(screen.render(at))
        return capture.get()

    assert "starting  0:01" in shown(at=1001)
    assert "starting workers  0:05" in shown(Starting(3), at=1005)
    assert "waiting for input  0:12" in shown(Waiting(), at=1012)
    assert "running  0:14" in shown(Entering("tasks", 1013.1), Done(make_result(13), 1013.5), Waiting(), at=1014)
    assert "running, tasks for 9.0 s  0:24" in shown(Entering("plan", 1014.9), Entering("tasks", 1015.0), at=1024)
    assert "retrying" in shown(Retrying("epoch 14: lost", 1, 0.5), at=1025)
    assert "stopping  0:26" in shown(Waiting(), Asked(), at=1026)
    assert "stopping workers" in shown(Stopping(), at=1027)
    final = shown(Ended(Reason.STOPPED), at=1028)
    assert "stopped" in final
    assert "Ctrl-C" not in final


def test_the_view_shows_what_was_not_joined_and_why(tmp_path: Path) -> None:
    job = compile_job(load(manifest_at(tmp_path).read_text()))
    screen = screen_of(job, is_sampled=False)
    totals = make_result().totals | {"input": [123_456, 20], "late": [17, 0], "shed": [0, 23], "unmatchable": [41, 0]}
    screen.state.see(Done(make_result(totals=totals), 1000.5))
    console = Console(width=100, height=30, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(1001.0))
    left, right = (next(line for line in capture.get().splitlines() if line.startswith(f" {name} ")) for name in "lr")
    assert {"123,456", "17", "41", "1.0"} <= set(left.split())
    assert {"20", "23", "2.0"} <= set(right.split())


def test_a_machine_with_less_memory_than_the_workers_ask_for_is_told_of() -> None:
    assert shortage(2 * GIB, 3, 24 * GIB) is None
    warning = shortage(8 * GIB, 4, 16 * GIB)
    assert warning is not None
    assert "4 workers of 8,192 MiB (spec.workers.resources.memory) are more than this machine's 16,384 MiB" in warning
    assert "each has about 3,840 MiB" in warning


def test_the_example_of_snapshots_keeps_every_result_also_those_that_another_store_is_yet_to_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = (Path(__file__).parents[1] / "examples" / "snapshots.yaml").read_text()
    (tmp_path / "plain.yaml").write_text(example)
    (port,) = free_ports(1)
    store = f"key: ad, store: {{postgres: {{host: 127.0.0.1, port: {port}, database: d, timeout: 1s}}}}"
    (tmp_path / "stored.yaml").write_text(example.replace("out/snapshots", "out/stored").replace("key: ad", store))
    for name in ("plain", "stored"):
        done = run_inline(tmp_path / f"{name}.yaml", "--until-idle")
        assert done.exit_code == Exit.DONE, done.output
        warning = re.search(r"warning: (\d+) snapshots of clicked wait, .*PostgreSQL at 127.0.0.1.*; the next run stores them", done.output)
        assert (warning is not None) == (name == "stored"), done.output
        root = tmp_path / "out" / ("snapshots" if name == "plain" else name)
        rows = [row for file in (root / "matches").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
        storage = ObjectStorage(str(root / "state"))
        kept = [row for file in files(storage, "clicked") for row in pq.read_table(storage.local_path(file.path)).to_pylist()]
        assert len(rows) > 1000
        assert Counter(row["click_id"] for row in kept) == Counter(row["click_id"] for row in rows)
        assert sum(snapshot.rows for snapshot in list_snapshots(storage, "clicked")) == len(rows)
