"""``streamjoin trace``: from what could be seen of a join to a trace; against made-up joins, a join that runs, and a real Prometheus."""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from http_stub import Handler, Served
from prometheus_server import needs_prometheus, process, prometheus
from streamjoin.cli import main
from streamjoin.simulation.recording import Observation, record
from streamjoin.simulation.run import imbalance
from streamjoin.simulation.traffic import TraceError, generate, read_trace
from waiting import PATIENCE_SECONDS, wait_for


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["trace", *arguments], input=stdin)


# From observations to a trace.


def test_a_trace_has_as_many_tuples_as_came_and_follows_the_rates() -> None:
    traffic = generate("random", days=1, step_seconds=5, seed=3, rates=(200.0, 900.0))
    came = np.cumsum(np.array(traffic.rates) * 5, axis=1)
    seen = [Observation(at=1e9 + 5 * at, taken=(came[0, at], came[1, at])) for at in range(0, traffic.steps, 2)]
    recorded = record(seen, 60.0)
    again = read_trace(recorded.text(), 5.0)
    for side in (0, 1):
        assert again.rates[side].sum() * 5 == pytest.approx(came[side, -2] - came[side, 0], rel=0.01)
        hourly, was = (rates[:17_000].reshape(-1, 500).mean(axis=1) for rates in (again.rates[side], traffic.rates[side]))
        assert hourly == pytest.approx(was, rel=0.05)


def test_what_waits_has_come_and_is_not_counted_again_when_it_is_taken() -> None:
    # 100/s come all the time, half of them late; nothing is taken from 100 s to 200 s, and all of it by 220 s.
    seen = []
    for at in range(0, 400, 10):
        waiting = 100.0 * (min(at, 200) - 100) if 100 < at < 220 else 0.0
        read = 100.0 * at - waiting
        seen.append(Observation(at=at, taken=(read / 2, read / 2), read=(read, read), waiting=(waiting, waiting)))
    assert record(seen, 10.0).rates[0] == pytest.approx(50, rel=0.3)
    assert record(seen, 10.0).rates[0][[5, 12, 15, 30]].tolist() == pytest.approx([50] * 4)
    taken_in = record(seen, 10.0, taken_in=True).rates[0]
    assert taken_in[15] == 0
    assert taken_in.max() > 200


def test_a_counter_that_begins_anew_goes_on() -> None:
    seen = [Observation(at=at, taken=(float(at % 300), 7.0 * at)) for at in range(0, 600, 10)]
    recorded = record(seen, 60.0)
    assert recorded.rates[0] == pytest.approx(1, rel=0.2)
    assert recorded.rates[1] == pytest.approx(7)


def test_each_recorded_plan_has_the_imbalance_that_it_had() -> None:
    """Sixty plans, under each of which the fullest worker grows to its own multiple of the mean."""
    rng = np.random.default_rng(5)
    seen, plans = [], []
    for generation in range(60):
        begin, largest = len(seen), rng.uniform(1.2, 4)
        for part in np.linspace(0, 1, 20):
            tau = {"fullest": 0.5 * largest**part, "mean": 0.5}
            seen.append(Observation(at=len(seen) * 60.0, taken=(float(len(seen)), 1.0), generation=generation, **tau))
        plans.append((begin, largest))
    traffic = read_trace(record(seen, 60.0).text(), 60.0)
    assert traffic.hot.min() >= 0
    assert traffic.hot.max() <= 1
    for begin, largest in plans:
        planned = float(traffic.skew[begin]), float(traffic.hot[begin])
        for at, part in enumerate(np.linspace(0, 1, 20)):
            if begin + at < traffic.steps:
                now = float(traffic.skew[begin + at]), float(traffic.hot[begin + at])
                assert imbalance(planned, now) == pytest.approx(largest**part, rel=1e-3), (begin, at)
    # A plan that never looked again would be as uneven as the keys are skewed.
    first = float(traffic.skew[0]), float(traffic.hot[0])
    assert imbalance(first, (float(traffic.skew[300]), float(traffic.hot[300]))) > 1.5


def test_hardly_filled_workers_say_nothing_about_skew() -> None:
    seen = [Observation(at=at, taken=(at, at), fullest=0.004, mean=0.001, generation=1) for at in map(float, range(10))]
    assert set(record(seen, 1.0).skew) == {1.0}
    even = [Observation(at=at, taken=(at, at), fullest=0.51, mean=0.5, generation=1) for at in map(float, range(10))]
    assert set(record(even, 1.0).skew) == {1.0}


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([], "0 observations"),
        ([Observation(at=0, taken=(0, 0))], "1 observations"),
        ([Observation(at=5, taken=(0, 0)), Observation(at=5, taken=(1, 1))], "go back or stand still"),
        ([Observation(at=0, taken=(9, 9)), Observation(at=5, taken=(9, 9))], "give --taken-in"),
        ([Observation(at=0, taken=(0, 0)), Observation(at=1e12, taken=(9, 9))], "must be at most 10,000,000"),
    ],
)
def test_what_makes_no_trace_is_refused(seen: list[Observation], message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        record(seen, 1.0)


# The JSON lines of a run.


def epoch(at: float, accepted: tuple[int, ...] = (100, 50), **other: Any) -> str:
    streams = [
        {"name": f"s{side}", "input": tuples + 10, "accepted": tuples - 5, "shed": 5, "backlog": 0} for side, tuples in enumerate(accepted)
    ]
    started = datetime.fromtimestamp(1.8e9 + at, UTC).isoformat()
    workers = [{"utilization": 0.3}, {"utilization": 0.1}]
    return json.dumps({"event": "epoch", "startedAt": started, "streams": streams, "generation": 1, "workers": workers} | other)


def test_the_json_lines_of_a_run_become_a_trace(tmp_path: Path) -> None:
    lines = "\n".join([*(epoch(at) for at in range(100)), json.dumps({"event": "summary"})]) + "\n"
    file, out = tmp_path / "run.jsonl", tmp_path / "traces" / "run.csv"
    file.write_text(lines)
    done = run(str(file), "--step", "10s", "--output", str(out))
    assert done.exit_code == 0, done.output
    assert "recorded: 1 min 39 s, 11 rows, 100 and 50 tuples/s on average, skew up to 1.5" in done.stderr
    traffic = read_trace(out.read_text(), 1.0)
    assert traffic.rates[0] == pytest.approx(100)
    assert traffic.rates[1] == pytest.approx(50)
    piped = run("-", "--step", "10s", stdin=lines + epoch(100)[:-30])
    assert (piped.exit_code, piped.stdout) == (0, out.read_text()), "the last line may be cut"
    assert [path.name for path in out.parent.iterdir()] == ["run.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input: has 0 epochs"),
        (epoch(0), "standard input: has 1 epochs"),
        ("streamjoin: hello\n", "line 1: is no JSON line of a run"),
        (epoch(0) + "\n" + epoch(1, workers=3) + "\n" + epoch(2), "line 2: is no JSON line of a run"),
        (epoch(1) + "\n" + epoch(0) + "\n", "the times go back"),
        (epoch(0, (6, 6, 6)), "has 3 streams (s0, s1 and s2); a trace, as simulate reads it, is of two"),
    ],
)
def test_lines_that_make_no_trace_are_refused(text: str, message: str) -> None:
    done = run("-", stdin=text)
    assert done.exit_code in (2, 3)
    assert message in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one source"),
        (["x.jsonl", "--prometheus", "http://localhost"], "name one source"),
        (["--prometheus", "http://localhost"], "give --name"),
        (["x.jsonl", "--name", "near"], "are for --prometheus"),
        (["x.jsonl", "--for", "5s"], "--for is for a join that runs"),
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--prometheus", "localhost:9090", "--name", "near"], "--prometheus: 'localhost:9090' must be a URL"),
        (["--prometheus", "http://localhost:1", "--name", "near", "--from", "yesterday"], "--from: 'yesterday' must be a time such as"),
        (["--prometheus", "http://localhost:1", "--name", "near", "--from", "1h", "--to", "2020-01-01T00:00:00"], "localhost:1: "),
        (["--prometheus", "http://x:1", "--name", "n", "--from", "2026-01-02", "--to", "2026-01-01"], "must be before --to (2026-01-01)"),
        (["http://localhost:1", "--token-file", "nowhere"], "--token-file: nowhere: No such file"),
        (["http://localhost:1"], "http://localhost:1/metrics: "),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code in (1, 2, 3)
    assert message in done.output


# What servers lack.


@pytest.fixture
def served() -> Iterator[list[Served]]:
    servers: list[Served] = []
    yield servers
    for server in servers:
        server.close()


def test_a_port_that_is_no_joins_is_told_of(served: list[Served]) -> None:
    class Other(Handler):
        def do_GET(self) -> None:
            self.answer(200, b"process_cpu_seconds_total 1\n")

    served.append(Served(Other))
    done = run(served[0].url + "/metrics", "--for", "1s")
    assert done.exit_code == 1
    assert "streamjoin_stream_info and streamjoin_accepted_tuples_total missing; is it a StreamJoin driver" in done.output


class Scripted(Handler):
    """Range queries, answered by a table: the metric in the query -> series as (labels, rate a second)."""

    series: dict[str, list[tuple[dict[str, str], float]]]
    asked: list[dict[str, list[str]]]
    token = ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        parameters = parse_qs(parts.query)
        type(self).asked.append(parameters)
        if self.token and self.headers["Authorization"] != f"Bearer {self.token}":
            return self.answer(401, b"no")
        if parts.path == "/at/api/v1/label/name/values":
            return self.data(["far", "near"])
        assert parts.path == "/at/api/v1/query_range"
        query, begin, end, step = (parameters[name][0] for name in ("query", "start", "end", "step"))
        times = np.arange(float(begin), float(end) + 1e-6, float(step))
        assert len(times) <= 11_000, "Prometheus refuses more"
        found = next((series for metric, series in self.series.items() if metric in query), [])
        wanted = re.search(r"by \(([^)]*)\)", query)
        kept = wanted[1].replace(" ", "").split(",") if wanted else []
        result = [
            {"metric": {label: labels[label] for label in kept if label in labels}, "values": [[at, str(rate * at)] for at in times]}
            for labels, rate in found
        ]
        return self.data({"resultType": "matrix", "result": result})

    def data(self, data: Any) -> None:
        self.answer(200, json.dumps({"status": "success", "data": data}).encode())


WHOLE = {
    "stream_info": [({"stream": "b", "side": "left"}, 1), ({"stream": "a", "side": "right"}, 1)],
    "accepted_tuples": [({"stream": "a", "namespace": "x"}, 30.0), ({"stream": "b", "namespace": "x"}, 5.0)],
    "shed_tuples": [({"stream": "a"}, 1.0), ({"stream": "b"}, 0.0)],
    "backlog": [({"stream": "a"}, 0.0), ({"stream": "b"}, 0.0)],
    "max(streamjoin_worker_utilization": [({}, 0.3)],
    "avg(streamjoin_worker_utilization": [({}, 0.1)],
}
PAST = ("--name", "near", "--from", "2026-01-01", "--to", "2026-01-15", "--step", "60s")


def scripted(served: list[Served], series: dict[str, Any], token: str = "") -> tuple[str, list[dict[str, list[str]]]]:
    asked: list[dict[str, list[str]]] = []
    served.append(Served(type("Some", (Scripted,), {"series": series, "asked": asked, "token": token})))
    return served[-1].url + "/at/", asked


def test_two_weeks_are_asked_for_in_parts_that_prometheus_answers(served: list[Served]) -> None:
    url, asked = scripted(served, WHOLE)
    done = run("--prometheus", url, *PAST, "--namespace", 'a"b')
    assert done.exit_code == 0, done.output
    traffic = read_trace(done.stdout, 60.0)
    assert traffic.seconds == 14 * 86400
    assert traffic.rates[0] == pytest.approx(5), "the left stream is the one that stream_info says"
    assert traffic.rates[1] == pytest.approx(31)
    assert set(traffic.skew) == {3.0}
    assert {parameters["start"][0] for parameters in asked} == {str(1767225600.0 + part * 10_000 * 60) for part in range(3)}
    assert all('{name="near",namespace="a\\"b"}' in parameters["query"][0] for parameters in asked)


def test_what_prometheus_lacks_is_named(served: list[Served], tmp_path: Path) -> None:
    url, _ = scripted(served, {key: WHOLE[key] for key in ("stream_info", "accepted_tuples")})
    done = run("--prometheus", url, *PAST)
    assert done.exit_code == 0, done.output
    for missing in ("streamjoin_shed_tuples_total", "streamjoin_backlog_records", "streamjoin_worker_utilization_ratio"):
        assert f"{missing} is missing" in done.stderr
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "it has the join at other times or in another namespace"),
        ({key: WHOLE[key] for key in ("accepted_tuples",)}, "streamjoin_stream_info is missing, which says on which side"),
        (
            {"accepted_tuples": [({"stream": "a", "namespace": name}, 1.0) for name in ("x", "y")]},
            "has joins of the name near in x and y; choose one with --namespace",
        ),
        ({"accepted_tuples": [({"stream": name}, 1.0) for name in "abc"]}, "the join has 3 streams (a, b and c)"),
    ]
    for series, message in refusals:
        url, _ = scripted(served, series)
        done = run("--prometheus", url, *PAST)
        assert done.exit_code in (2, 3)
        assert message in done.stderr
    url, _ = scripted(served, {})
    assert "it has far and near: give one as --name" in run("--prometheus", url, "--name", "nearby", *PAST[2:]).stderr
    url, _ = scripted(served, WHOLE, token="open")
    assert "answers 401; give a token that it takes with --token-file" in run("--prometheus", url, *PAST).stderr
    (tmp_path / "token").write_text("open\n")
    assert run("--prometheus", url, *PAST, "--token-file", str(tmp_path / "token")).exit_code == 0
    url = url.replace("/at/", "/elsewhere")
    assert run("--prometheus", url.replace(":", "s:", 1), *PAST).exit_code == 3


# The three ways, of one join that runs.


def manifest(root: Path) -> Path:
    def stream(name: str, seed: int, rate: int) -> dict[str, Any]:
        columns = {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 5000}}}
        return {
            "name": name,
            "source": {"generator": {"seed": seed, "rate": {"constant": rate}, "columns": columns}},
            "schema": "id BIGINT, k INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
            "expectedRate": rate,
        }

    spec = {
        "streams": [stream("z", 1, 2000), stream("a", 2, 500)],
        "joins": [
            {
                "condition": "abs(z.k - a.k) <= 1",
                "window": {"within": "20s"},
                "output": {"select": ["z.id AS x", "a.id AS y"], "sink": {"files": {"path": str(root / "out")}}},
            }
        ],
        "workers": {"min": 2, "max": 2, "capacityTuples": 100_000},
        "epoch": {"interval": "250ms"},
        "checkpoint": {"location": str(root / "state")},
    }
    path = root / "join.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "seen"}, "spec": spec})
    )
    return path


@pytest.mark.prometheus
@needs_prometheus
def test_prometheus_a_running_join_and_its_json_lines_give_the_same_rates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamjoin", "run", str(manifest(tmp_path)), "--runner", "inline", "--json", "--metrics-port", "0"]
    out = tmp_path / "live.csv"

    def epochs() -> int:
        return (tmp_path / "run" / "stdout").read_text().count('"event": "epoch"')

    with process(tmp_path / "run", *command) as running:
        address = wait_for("the address", lambda: re.search(r"metrics: (http://\S+)/metrics", (tmp_path / "run/stderr").read_text()))[1]
        wait_for("epochs", lambda: epochs() >= 4)
        config = {
            "job_name": "streamjoin",
            "scrape_interval": "250ms",
            "static_configs": [{"targets": [address.removeprefix("http://")]}],
        }
        with prometheus(tmp_path / "prometheus", {"scrape_configs": [config]}) as server:
            began = time.time()
            recorder = [sys.executable, "-m", "streamjoin", "trace", address, "--step", "500ms", "-o", str(out)]
            with process(tmp_path / "recorder", *recorder) as recording:
                seen = epochs()
                wait_for("more epochs", lambda: epochs() >= seen + 24)
                recording.send_signal(signal.SIGINT)
                assert recording.wait(PATIENCE_SECONDS) == 0, (tmp_path / "recorder" / "stderr").read_text()
            ended = time.time()
            begin, end = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in (began, ended))
            past = run("--prometheus", server._url, "--name", "seen", "--from", begin, "--to", end, "--step", "500ms")
            other = run("--prometheus", server._url, "--name", "other", "--step", "10s")
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_SECONDS) == 0
    assert past.exit_code == 0, past.output
    assert (other.exit_code, "it has seen: give one as --name" in other.stderr) == (3, True)
    lines = run(str(tmp_path / "run" / "stdout"), "--step", "500ms")
    assert lines.exit_code == 0, lines.output
    printed = [json.loads(line) for line in (tmp_path / "run" / "stdout").read_text().splitlines()]
    accepted = [line["streams"][0]["accepted"] for line in printed if line["event"] == "epoch"]
    for text in (out.read_text(), past.stdout, lines.stdout):
        header, *rows = [line.split(",") for line in text.splitlines()]
        assert header == ["time_s", "left_rate", "right_rate", "skew", "hot"]
        assert all(float(before[0]) < float(after[0]) for before, after in itertools.pairwise(rows))
        times = np.array([float(row[0]) for row in rows])
        left, right = (float(np.trapezoid([float(row[column]) for row in rows], times)) for column in (1, 2))
        # Both streams are counted by the same commits, however late these are; how many tuples a time has depends on when they come.
        assert left / right == pytest.approx(4, rel=0.1)
        assert left < 1.1 * sum(accepted)
    # The last trace is that of the lines: all that came after the first epoch.
    assert left == pytest.approx(sum(accepted[1:]), rel=0.1)
