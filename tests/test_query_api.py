"""Queries over HTTP, by processes of their own, and on the command line: from storage, from a server, and through kubectl."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import ipc

from harness import manifest_text
from ports import free_ports
from streamjoin.bearer import TokenFile
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.query import pool as pooling
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import asked
from streamjoin.query.messages import Form, Limits
from streamjoin.query.pool import Pool
from streamjoin.query.rendering import interval_text, lines
from streamjoin.serve.api import PlanApi
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.queries import QueryApi
from streamjoin.serve.server import DriverServer
from streamjoin_operator import plugin
from test_follow_command import process
from test_query_sql import OPTIONS, Asked
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.xdist_group("query")  # one join and one server for all
ARROW = Form.ARROW.value
ENDLESS = "SELECT count(*) FROM l a, l b, l c, l d WHERE a.rid + b.rid + c.rid <> d.rid"


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("join")).run(4)


@pytest.fixture(scope="module")
def pool(join: Asked) -> Iterator[Pool]:
    with contextlib.closing(Pool(join.catalog)) as made:
        yield made


@pytest.fixture(scope="module")
def server(pool: Pool) -> Iterator[DriverServer]:
    with DriverServer(None, api=QueryApi(pool)) as made:
        yield made


def where(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rsplit(":", 1)[1])


def post(
    url: str, body: Any, *, method: str = "POST", path: str = "/v1/query", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(*where(url), timeout=PATIENCE_SECONDS)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def test_answers_are_json_lines_or_arrow_and_name_their_epoch(join: Asked, server: DriverServer) -> None:
    sql = "SELECT rid, k, _time FROM l WHERE k < 500 ORDER BY rid"
    status, headers, body = post(server.url, {"sql": sql})
    want = join.rows(sql)
    assert (status, headers["Content-Type"], headers["StreamJoin-Epoch"]) == (200, "application/x-ndjson", "3")
    assert headers["StreamJoin-Rows"] == str(len(want))
    assert headers["StreamJoin-Truncated"] == "false"
    assert [json.loads(line)["rid"] for line in body.splitlines()] == [row["rid"] for row in want]
    assert json.loads(body.splitlines()[0])["_time"].startswith("2023-11-14T22:13:20")
    status, headers, body = post(server.url, {"sql": sql, "limit": 7}, Accept=ARROW)
    assert (status, headers["Content-Type"], headers["StreamJoin-Truncated"]) == (200, ARROW, "true")
    assert ipc.open_stream(body).read_all().to_pylist() == want[:7]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({}, 400, "sql: is missing; give it"),
        ({"sql": 3}, 400, "sql: 3 must be a text"),
        ({"sql": "SELECT 1", "limit": 0}, 400, "limit: 0 is refused"),
        ({"sql": "SELECT 1", "timeoutSeconds": 999}, 400, "timeoutSeconds: 999"),
        ({"sql": "SELECT 1", "extra": 1}, 400, "the fields are sql, limit, timeoutSeconds"),
        (b"[]", 400, "must be an object with sql"),
        ({"sql": "SELECT * FROM orders"}, 400, "there is no such relation; there are l, r"),
        ({"sql": "DROP TABLE l"}, 400, "only a single SELECT"),
        ({"sql": "SELECT * FROM l AS OF 77"}, 410, "AS OF 77: cannot be read; epochs 0 to 3 are there"),
        ({"sql": "SELECT list(a.rid), list(b.rid) FROM l a, l b, l c"}, 422, "more than 256 MiB of memory"),
        ({"sql": "SELECT repeat('x', 100000000) FROM l LIMIT 2"}, 422, "more than"),
        ({"sql": ENDLESS, "timeoutSeconds": 0.3}, 504, "took longer than 0."),
    ],
)
def test_what_is_not_answered_says_why(server: DriverServer, body: Any, status: int, expected: str) -> None:
    found, headers, told = post(server.url, body)
    assert expected in json.loads(told)["error"]
    assert (found, headers["Content-Type"]) == (status, "application/json")


def test_only_queries_are_there_and_only_posted(server: DriverServer) -> None:
    assert post(server.url, b"", method="GET")[0] == 405
    assert post(server.url, b"", method="GET", path="/v1/plan")[0] == 404
    assert post(server.url, b"", method="GET", path="/healthz")[0] == 200
    assert post(server.url, b"", method="GET", path="/metrics")[0] == 200
    assert post(server.url, {"sql": "SELECT 1"}, Host="evil.example")[0] == 403


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"Origin": "https://evil.example"}, 403, "Origin: 'https://evil.example' is another site; ask from the page of this server"),
        ({"Origin": "null"}, 403, "Origin: 'null' is another site"),
        ({"Content-Type": "text/plain;charset=UTF-8"}, 415, "Content-Type: 'text/plain' is not read; send application/json"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "Content-Type: 'multipart/form-data' is not read"),
        ({"Content-Type": "application/json; charset=utf-8"}, 200, ""),
    ],
)
def test_what_another_site_has_a_browser_send_is_refused(server: DriverServer, headers: dict[str, str], status: int, error: str) -> None:
    found, _, told = post(server.url, {"sql": "SELECT 1 AS one"}, **{name.replace("-", "_"): value for name, value in headers.items()})
    assert found == status, told
    assert error in told.decode()


def test_the_servers_own_page_may_ask(server: DriverServer) -> None:
    assert post(server.url, {"sql": "SELECT 1 AS one"}, Origin=server.url)[0] == 200


def test_a_token_is_asked_for_where_there_is_one(join: Asked, pool: Pool, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with DriverServer(None, api=QueryApi(pool, TokenFile(token))) as server:
        assert post(server.url, {"sql": "SELECT 1"})[0] == 401
        assert post(server.url, {"sql": "SELECT 1"}, Authorization="Bearer wrong")[0] == 401
        assert post(server.url, {"sql": "SELECT 1 AS one"}, Authorization="Bearer secret")[2] == b'{"one":1}\n'
        shown = invoke("query", server.url, "SELECT count(*) AS n FROM l", "--token-file", str(token), "--json")
        assert (shown.exit_code, shown.stdout) == (Exit.DONE, '{"n":1600}\n')
        refused = invoke("query", server.url, "SELECT 1")
        assert (refused.exit_code, "there is no token" in refused.stderr) == (Exit.USAGE, True)
    with DriverServer(None, "0.0.0.0", api=QueryApi(pool)) as server:
        status, _, body = post(server.url, {"sql": "SELECT 1"})
        assert (status, b"without a token queries are taken from this machine only" in body) == (403, True)


def test_the_drivers_port_answers_queries_beside_the_plan_api(join: Asked, pool: Pool) -> None:
    metrics = Metrics(join.job)
    with DriverServer(metrics, api=PlanApi(join.driver, metrics.health, queries=QueryApi(pool))) as server:
        assert post(server.url, {"sql": "SELECT count(*) AS n FROM l"})[2] == b'{"n":1600}\n'
        assert post(server.url, b"", method="GET", path="/v1/plan")[0] == 200
        assert post(server.url, b"", method="GET", path="/v1/query")[0] == 405
        assert b"/v1/query" in post(server.url, b"", method="GET", path="/")[2]


MOST_NICE = 19


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "streamjoin.query.worker" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def test_queries_are_answered_by_a_modest_process_of_their_own_which_is_replaced_when_it_dies(join: Asked) -> None:
    others = {child.pid for child in workers()}
    with contextlib.closing(Pool(join.catalog, memory_bytes=128 << 20)) as own:
        for _ in range(3):
            assert own.ask("SELECT count(*) AS n FROM r", Form.JSON, rows=9, seconds=30).body == b'{"n":1600}\n'
        (worker,) = [child for child in workers() if child.pid not in others]
        assert worker.nice() > psutil.Process().nice() or worker.nice() == MOST_NICE
        worker.kill()
        # NB: the state of a zombie comes before the end of its other threads, and only that can be waited for.
        wait_for("the worker is dead", lambda: os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        assert own.ask("SELECT 1 AS one", Form.JSON, rows=9, seconds=30).body == b'{"one":1}\n'
        (worker,) = [child for child in workers() if child.pid not in others]
        before = worker.cpu_times().user
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(own.ask, ENDLESS, Form.JSON, rows=9, seconds=60)
            wait_for("the query runs", lambda: worker.cpu_times().user > before + 0.05 and not asking.done())  # others go before it
            worker.kill()
            with pytest.raises(QueryError, match="the query's process ended with -9"):
                asking.result(PATIENCE_SECONDS)
        assert own.ask("SELECT 2 AS two", Form.JSON, rows=9, seconds=30).body == b'{"two":2}\n'
    assert {child.pid for child in workers()} <= others


def test_a_process_that_nobody_asks_ends_and_the_next_query_has_another(join: Asked) -> None:
    others = {child.pid for child in workers()}
    with contextlib.closing(Pool(join.catalog, idle_seconds=0.2)) as own:
        for _ in range(2):
            assert own.ask("SELECT 1 AS one", Form.JSON, rows=9, seconds=30).body == b'{"one":1}\n'
            wait_for("the process ends", lambda: not [child for child in workers() if child.pid not in others])


def test_a_client_that_goes_away_ends_its_query(join: Asked) -> None:
    others = {child.pid for child in workers()}
    with contextlib.closing(Pool(join.catalog)) as own, DriverServer(None, api=QueryApi(own)) as server:
        post(server.url, {"sql": "SELECT 1"})
        (worker,) = [child for child in workers() if child.pid not in others]
        before = worker.cpu_times().user
        body = json.dumps({"sql": ENDLESS, "timeoutSeconds": 50}).encode()
        with socket.create_connection(where(server.url)) as client:
            client.sendall(b"POST /v1/query HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_for("the query runs", lambda: worker.cpu_times().user > before + 0.05)
        wait_for("the query has ended", lambda: worker.pid not in {child.pid for child in workers()})
        assert post(server.url, {"sql": "SELECT 1"})[0] == 200


def test_queries_wait_for_a_process_and_too_many_are_turned_away(join: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "WAITING", 2)
    with contextlib.closing(Pool(join.catalog)) as own, ThreadPoolExecutor(8) as threads:
        own.ask("SELECT 1", Form.JSON, rows=9, seconds=30)
        asking = [threads.submit(own.ask, ENDLESS, Form.JSON, rows=9, seconds=2) for _ in range(8)]
        errors = [error for one in asking if isinstance(error := one.exception(60), QueryError)]
        assert len(errors) == 8
        assert {error.why for error in errors} == {Why.SLOW, Why.BUSY}
        assert any("queries wait already" in str(error) for error in errors)
        answers = [threads.submit(own.ask, f"SELECT {number} AS n", Form.JSON, rows=9, seconds=30) for number in range(3)]
        assert [json.loads(one.result(PATIENCE_SECONDS).body)["n"] for one in answers] == [0, 1, 2]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def manifest(join: Asked) -> Path:
    path = join.root / "join.yaml"
    path.write_text(manifest_text(join.root, **OPTIONS))
    return path


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_command_prints_tables_json_and_arrow_files(manifest: Path, server: DriverServer, tmp_path: Path, is_remote: bool) -> None:
    target = server.url if is_remote else str(manifest)
    sql = "SELECT rid, k, _time, NULL AS nothing FROM l WHERE rid < 3 ORDER BY rid"
    table = invoke("query", target, sql)
    assert table.exit_code == Exit.DONE, table.output
    assert re.search(r"rid.*k.*_time.*nothing", table.stdout)
    assert re.search(r"0 .* 2023-11-14 22:13:20.000000Z .* null", table.stdout)
    assert re.match(r"epoch 3, committed 20.*: 3 rows", table.stderr)
    shown = invoke("query", target, sql, "--json", "--limit", "2")
    assert [json.loads(line)["rid"] for line in shown.stdout.splitlines()] == [0, 1]
    assert "2 rows; there are more, see --limit" in shown.stderr
    file = tmp_path / "rows.arrow"
    written = invoke("query", target, "SELECT * FROM l AS OF 2", "--arrow", str(file))
    assert written.exit_code == Exit.DONE, written.output
    table_of = ipc.open_file(pa.memory_map(str(file))).read_all()
    assert (table_of.num_rows, table_of.schema.metadata[b"streamjoin.epoch"]) == (1200, b"2")
    for wrong in ("SELECT * FROM orders", "SELECT * FROM l AS OF 99"):
        refused = invoke("query", target, wrong, "--arrow", str(tmp_path / "none.arrow"))
        assert refused.exit_code != Exit.DONE
    assert [path.name for path in tmp_path.iterdir()] == ["rows.arrow"]


def test_the_command_says_what_is_wrong_with_its_target(tmp_path: Path, server: DriverServer) -> None:
    (port,) = free_ports(1)
    gone = invoke("query", f"http://127.0.0.1:{port}", "SELECT 1")
    assert (gone.exit_code, "look whether the join, or streamjoin serve, runs there" in gone.stderr) == (Exit.FAILED, True)
    missing = invoke("query", str(tmp_path / "none.yaml"), "SELECT 1")
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (Exit.USAGE, True)
    other = invoke("query", f"{server.url}/nowhere", "SELECT 1")
    assert other.exit_code == Exit.FAILED
    both = invoke("query", server.url, "SELECT 1", "--json", "--arrow", "x")
    assert (both.exit_code, "exclude each other" in both.output) == (Exit.USAGE, True)


def test_ctrl_c_ends_a_query_at_once(manifest: Path) -> None:
    with process("query", str(manifest), ENDLESS) as query:
        wait_for("the query runs", lambda: psutil.Process(query.pid).cpu_times().user > 2)
        query.send_signal(signal.SIGINT)
        _, said = query.communicate(timeout=PATIENCE_SECONDS)
    assert (query.returncode, said) == (Exit.INTERRUPTED, "streamjoin: stopped; what is above is not the whole answer\n")


def test_the_command_bounds_what_duckdb_does_not(manifest: Path) -> None:
    """One function's value of 1.6 GB, which DuckDB neither counts nor lets itself be interrupted in."""
    sql = "SELECT list_sum(range(200000000))"
    with process("query", str(manifest), sql, "--memory", "256Mi", "--timeout", "1h") as query:
        _, said = query.communicate(timeout=PATIENCE_SECONDS)
    assert (query.returncode, said) == (Exit.FAILED, "the query needs more than 256 MiB of memory; ask for fewer rows or columns\n")


def test_serve_answers_from_the_storage_alone_until_it_is_told_to_end(manifest: Path) -> None:
    with process("serve", str(manifest), "--port", "0", "--memory", "128Mi") as server:
        assert server.stderr is not None
        url = server.stderr.readline().removeprefix("queries: ").strip().removesuffix("/v1/query")
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda number: post(url, {"sql": f"SELECT count(*) + {number} AS n FROM l"}), range(8)))
        assert [json.loads(body)["n"] for _, _, body in answers] == [1600 + number for number in range(8)]
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_SECONDS) == Exit.DONE
    refused = invoke("serve", str(manifest), "--address", "203.0.113.1", "--port", "1")
    assert (refused.exit_code, "cannot be listened on" in refused.stderr) == (Exit.USAGE, True)


@pytest.mark.parametrize(("ready", "deployment", "container"), [(0, "sj-one", "driver"), (1, "sj-one-queries", "queries")])
def test_kubectl_asks_in_the_drivers_pod_or_in_a_query_servers_that_is_ready(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: int, deployment: str, container: str
) -> None:
    kubectl = tmp_path / "kubectl"
    status = json.dumps({"status": {"queries": {"ready": ready}}})
    told = f'case "$*" in *" get "*) echo \'{status}\'; exit;; esac'
    kubectl.write_text(f'#!/bin/sh\n{told}\necho "$@" > "$0.words"\necho "epoch 3: 1 row" >&2\necho "{{}}"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert plugin.main(["query", "one", "SELECT 1", "-n", "shop", "--json", "--limit", "5"]) == 0
    words = f"--namespace=shop exec deployment/{deployment} --container={container} -- streamjoin query http://localhost:8080 SELECT 1"
    more = "--token-file=/etc/streamjoin-token/token --limit=5 --json"
    assert (tmp_path / "kubectl.words").read_text() == f"{words} {more}\n"
    assert capsys.readouterr() == ("{}\n", "epoch 3: 1 row\n")


def test_every_type_that_a_query_can_give_is_written_as_json(join: Asked) -> None:
    sql = (
        "SELECT 1::HUGEINT AS h, TIME '10:00' AS t, INTERVAL 5 MINUTE AS i, [1, 2] AS l, {'a': 'x', 'n': 1.5::DECIMAL(9, 2)} AS s, "
        "MAP {'k': 1} AS m, 'x'::ENUM ('x', 'y') AS e, NULL AS n, 'nan'::DOUBLE AS d, '\\xAA'::BLOB AS b, 1 AS h"
    )
    for columns in (sql, "SELECT 1::HUGEINT AS h, TIME '10:00' AS t, 'x'::ENUM ('x', 'y') AS e, NULL AS n, 'nan'::DOUBLE AS d, 2 AS h"):
        with_types = join.ask(columns)[0]
        assert len(with_types) == 1
    with asked(join.storage, join.catalog, sql, Limits()) as answer:
        (text,) = [lines(batch) for batch in answer.batches]
    row = json.loads(text)
    assert (row["h"], row["l"], row["s"], row["n"]) == (1, [1, 2], {"a": "x", "n": "1.50"}, None)
    assert (row["d"], row["e"], row["h_1"]) == ("NaN", "x", 1)
    assert (row["t"], row["i"], row["b"]) == ("10:00:00.000000", "00:05:00", "qg=="), "as without columns that are nested"
    with asked(join.storage, join.catalog, "SELECT sum(k)::HUGEINT AS s, TIME '10:00' AS t, 'nan'::DOUBLE AS d FROM l", Limits()) as answer:
        (text,) = [lines(batch) for batch in answer.batches]
    row = json.loads(text)
    assert (isinstance(row["s"], int), row["t"], row["d"]) == (True, "10:00:00.000000", "NaN")


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ("INTERVAL 0 SECOND", "00:00:00"),
        ("INTERVAL 90 SECOND", "00:01:30"),
        ("INTERVAL '1 day 2 hours 3.5 seconds'", "1 day 02:00:03.5"),
        ("-INTERVAL 1500 MILLISECOND", "-00:00:01.5"),
        ("INTERVAL '14 months 2 days'", "1 year 2 months 2 days"),
        ("-INTERVAL '14 months'", "-1 year -2 months"),
        ("INTERVAL 100 HOUR", "100:00:00"),
    ],
)
def test_intervals_are_written_as_duckdb_writes_them(interval: str, text: str) -> None:
    value, cast = duckdb.sql(f"SELECT {interval} AS i, CAST({interval} AS VARCHAR) AS t").to_arrow_table().to_batches()[0].columns
    assert interval_text(value[0].as_py()) == text == cast[0].as_py().removesuffix("00000")


def test_values_within_others_are_written_as_those_of_columns(join: Asked) -> None:
    values = {
        "t": "TIMESTAMPTZ '2026-01-02 03:04:05.5+00'",
        "d": "DATE '2026-01-02'",
        "x": "'\\xAA'::BLOB",
        "f": "'-inf'::DOUBLE",
        "n": "'nan'::DOUBLE",
        "p": "1.50::DECIMAL(9, 2)",
        "i": "INTERVAL 5 MINUTE",
    }
    plain = ", ".join(f"{value} AS {name}" for name, value in values.items())
    nested = ", ".join(f"[{value}] AS {name}" for name, value in values.items())
    found = []
    for columns in (plain, nested):
        with asked(join.storage, join.catalog, f"SELECT {columns}", Limits()) as answer:
            found.append(next(json.loads(lines(batch)) for batch in answer.batches))
    assert found[1] == {name: [value] for name, value in found[0].items()}
