"""``streamjoin query URL --follow``: each result once, whatever servers come and go meanwhile, until the join has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

from harness import driver_for, join_of, make_job, manifest_text
from joins import BAND, band_inputs
from patient import STREAMJOIN
from ports import free_ports
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.cli.following import Event, parsed
from streamjoin.controlplane.driver import Driver
from streamjoin.query.catalog import Catalog
from streamjoin.query.continuous import Continuous
from streamjoin.query.errors import QueryError
from streamjoin.query.following import read_select
from streamjoin.query.pool import Pool
from streamjoin.results.reader import list_snapshots
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.queries import QueryApi
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage
from streamjoin_operator import plugin
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.xdist_group("follow")  # one server for all
OUTPUT = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"size": 40, "key": "a"}}


def options(root: Path) -> dict[str, Any]:
    return {"joins": [join_of(root, name="found", on=BAND, window={"within": "3s"}, output=OUTPUT)], "watermark": "2s", "workers": 2}


def started(root: Path) -> Driver:
    driver = driver_for(make_job(root, **options(root)), band_inputs(), ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    return driver


def stored(root: Path) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as database:
        return Counter(database.execute(f"SELECT a, b FROM read_parquet('{root}/out/*.parquet')").fetchall())


def row_of(line: str) -> tuple[Any, ...]:
    return tuple(json.loads(line).values())


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [*STREAMJOIN, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextlib.contextmanager
def serving(manifest: Path, port: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server, and its URL."""
    with process("serve", str(manifest), "--port", port) as server:
        assert server.stderr is not None
        yield server, server.stderr.readline().removeprefix("queries: ").strip().removesuffix("/v1/query")


def test_servers_and_drivers_come_and_go_and_each_result_is_printed_once(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    manifest = tmp_path / "found.yaml"
    manifest.write_text(manifest_text(tmp_path, **options(tmp_path)))
    for name in "lr":
        (tmp_path / f"in-{name}").mkdir(exist_ok=True)
    driver, found = started(tmp_path), Counter[tuple[Any, ...]]()
    with contextlib.ExitStack() as stack:
        server, _ = stack.enter_context(serving(manifest, port))
        sql = "SELECT a, b FROM found WHERE a >= 0"
        client = stack.enter_context(process("query", f"http://127.0.0.1:{port}", sql, "--follow", "--after", "-1", "--json"))
        assert client.stdout is not None
        while driver.checkpoint.epoch < 4:
            driver.step()
        found[row_of(client.stdout.readline())] += 1
        server.kill()
        driver = started(tmp_path)  # the other one is no more
        while driver.step() is not None:
            pass
        stack.enter_context(serving(manifest, port))
        found[row_of(client.stdout.readline())] += 1
        driver.step(final=True)
        driver.stop()
        found += Counter(map(row_of, client.stdout))
        assert client.stderr is not None
        said = client.stderr.read()
        assert client.wait(PATIENCE_SECONDS) == Exit.DONE, said
    assert found == stored(tmp_path) != Counter()
    assert said.splitlines()[-1] == "the join has ended"
    assert "up to snapshot " in said
    local = CliRunner().invoke(main, ["query", str(manifest), sql, "--follow", "--after", "-1", "--json"])
    assert Counter(map(row_of, local.stdout.splitlines())) == found
    assert (local.exit_code, local.stderr.splitlines()[-1]) == (Exit.DONE, "the join has ended")


def test_it_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    manifest = tmp_path / "found.yaml"
    manifest.write_text(manifest_text(tmp_path, **options(tmp_path)))
    driver = started(tmp_path)
    while driver.step() is not None:
        pass
    driver.stop()
    with serving(manifest, "0") as (_, url), contextlib.ExitStack() as stack:
        for target in (url, str(manifest)):
            client = stack.enter_context(process("query", target, "SELECT a FROM found", "--follow", "--after", "-1", "--json"))
            assert client.stdout is not None
            assert client.stdout.readline()
            client.send_signal(signal.SIGINT)
            _, said = client.communicate(timeout=PATIENCE_SECONDS)
            assert client.returncode == Exit.DONE, said


def test_it_ends_when_the_join_has_ended(tmp_path: Path) -> None:
    manifest = tmp_path / "found.yaml"
    columns = {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 50}}}
    # It takes long enough for the command to start meanwhile, on a busy machine, too.
    source = {"generator": {"rows": 160, "rate": {"constant": 16}, "columns": columns}}
    streams = [{"name": name, "source": source, "schema": "id BIGINT, k INT, at TIMESTAMP", "eventTime": "at"} for name in "lr"]
    output = {"select": ["l.id AS a", "r.id AS b"], "snapshots": {"size": 50, "key": "a"}}
    joins = [join_of(tmp_path, name="found", on="l.k = r.k", window={"unbounded": True}, output=output)]
    manifest.write_text(manifest_text(tmp_path, streams=streams, joins=joins, workers=2))
    with process("run", str(manifest), "--runner", "inline", "--until-idle", "--metrics-port", "0") as run:
        assert run.stderr is not None
        line = next(line for line in run.stderr if line.startswith("metrics: "))
        url = line.removeprefix("metrics: ").strip().removesuffix("/metrics")
        draining = threading.Thread(target=run.stderr.read, daemon=True)
        draining.start()
        told = wait_for("the join has begun", lambda: followed(url), every=0.2)
        assert run.wait(timeout=PATIENCE_SECONDS) == 0
    assert told.exit_code == Exit.DONE
    assert told.stderr.splitlines()[-1] == "the join has ended"
    assert Counter(map(row_of, told.stdout.splitlines())) == stored(tmp_path) != Counter()


def followed(url: str) -> Result | None:
    """None: there is no join yet. Ctrl-C and a reader that goes away are for a process of its own, above."""
    done = CliRunner().invoke(main, ["query", url, "SELECT a, b FROM found", "--follow", "--after", "-1", "--json"])
    return None if "look whether the join" in done.stderr else done


KUBECTL = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if "get" in words:
    print('{{"status": {{"queries": {{"ready": 1}}}}}}')
    raise SystemExit
with open(sys.argv[0] + ".words", "a") as file:
    print(*words, file=file)
inside = [word for word in words[words.index("--") + 1:] if not word.startswith("--token-file")]
inside = [word.replace("http://localhost:8080", "{url}") for word in inside]
child = subprocess.Popen([sys.executable, "-m", *inside], stdin=0, stdout=subprocess.PIPE, text=True)
told, begun = 0, "--after=-1" not in words
for line in child.stdout:
    sys.stdout.write(line)
    sys.stdout.flush()
    told += line.startswith("\x1e")
    if told == 3 and not begun:  # in the middle of rows whose position is yet to come
        sys.stdout.write(child.stdout.readline())
        child.kill()
        raise SystemExit("the connection is lost")
raise SystemExit(child.wait())
"""


def test_kubectl_follows_in_a_pod_and_begins_again_where_it_was_cut_off(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = started(tmp_path)
    while driver.step() is not None:
        pass
    driver.step(final=True)
    driver.stop()
    with (
        contextlib.closing(Pool(Catalog.of(make_job(tmp_path, **options(tmp_path))))) as pool,
        DriverServer(None, api=(api := QueryApi(pool))) as server,
    ):
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable, url=server.url))
        kubectl.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr("streamjoin_operator.following.FIRST_PAUSE_SECONDS", 0.1)
        words = tmp_path / "kubectl.words"

        last, said = list_snapshots(ObjectStorage(str(tmp_path / "state")), "found")[-1].id, list[str]()

        def tell(text: str) -> None:
            said.append(text)
            if text == f"up to snapshot {last}":
                threading.Thread(target=api.followers.finish, kwargs={"is_over": True}).start()

        monkeypatch.setattr(plugin, "tell_now", tell)
        assert plugin.main(["query", "one", "SELECT a, b FROM found", "--follow", "--after=-1", "--json"]) == 0
    told = capsys.readouterr()
    assert Counter(map(row_of, told.out.splitlines())) == stored(tmp_path) != Counter()
    assert said[-1] == "the join has ended"
    assert "the connection is lost; asking again" in said
    first, second = words.read_text().splitlines()
    assert first.startswith("exec --stdin deployment/sj-one-queries --container=queries -- streamjoin query http://localhost:8080")
    assert "--follow --relayed --after=-1" in first
    assert "--after=-1" not in second
    assert "--follow --relayed --after=" in second
    assert plugin.main(["query", "one", "SELECT 1", "--after=3"]) == 1
    assert "--after: is for --follow" in capsys.readouterr().err


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("idle")
    driver = started(root)
    while driver.checkpoint.epoch < 2:
        driver.step()
    driver.stop()
    with (
        contextlib.closing(Pool(Catalog.of(make_job(root, **options(root))))) as pool,
        DriverServer(None, api=QueryApi(pool)) as server,
    ):
        yield server.url


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--after", "3"], "--after without --follow: is for the storage"),
        (["--follow", "--limit", "3"], "--limit: is for the storage"),
        (["--follow", "--after", "x"], "--after: 'x' must be a snapshot's number"),
        (["--follow", "--after", "99999"], "after: 99999 is not there yet"),
        (["--follow", "--arrow", "file"], "a file needs one"),
    ],
)
def test_what_cannot_be_followed_is_said(idle: str, options: list[str], expected: str) -> None:
    told = CliRunner().invoke(main, ["query", idle, "SELECT a FROM found", *options])
    assert (told.exit_code, expected in told.output) == (Exit.USAGE, True), told.output


def test_a_server_that_is_not_there_is_said_at_once(idle: str) -> None:
    (port,) = free_ports(1)
    told = CliRunner().invoke(main, ["query", f"http://127.0.0.1:{port}", "SELECT a FROM found", "--follow"])
    assert (told.exit_code, "look whether the join, or streamjoin serve, runs there" in told.output) == (Exit.FAILED, True)
    told = CliRunner().invoke(main, ["query", idle, "SELECT a FROM lost", "--follow"])
    assert (told.exit_code, "there is no such join" in told.output) == (Exit.FAILED, True)


def test_tables_have_numbers_as_the_server_wrote_them(idle: str) -> None:
    sql = "SELECT 1 AS n, CAST(1.50 AS DECIMAL(6, 2)) AS d, NULL AS z, repeat('x', 200) AS t FROM found WHERE a = (a)"
    with process("query", idle, sql, "--follow", "--after", "-1") as client:
        assert client.stdout is not None
        lines = [client.stdout.readline().rstrip("\n") for _ in range(3)]
    assert lines[0].split() == ["n", "┃", "d", "┃", "z", "┃", "t"]
    assert [cell.strip() for cell in lines[2].split("│")] == ["1", "1.50", "null", "x" * 200]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM found", ("found", "*", None)),
        (
            "select a, extract(year FROM b) y from found where a > 1 and b is distinct from 3;",
            ("found", "a, extract(year FROM b) y", "a > 1 and b is distinct from 3"),
        ),
        ('SELECT a FROM "found" WHERE (a) = 1', ("found", "a", "(a) = 1")),
        ("SELECT a IS DISTINCT FROM b FROM found", ("found", "a IS DISTINCT FROM b", None)),
    ],
)
def test_a_select_is_read_as_what_is_followed(sql: str, expected: tuple[Any, ...]) -> None:
    assert read_select(sql) == Continuous(*expected)


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "SELECT a FROM found f", "SELECT a FROM found, l", "SELECT a FROM found LIMIT 3", "WITH x AS (SELECT 1) FROM x"]
)
def test_what_is_no_select_of_one_join_cannot_be_followed_at_a_server(sql: str) -> None:
    with pytest.raises(QueryError, match=r"only SELECT \.\.\. FROM join \[WHERE \.\.\.\] can be followed"):
        read_select(sql)


def test_events_are_parsed_whatever_pieces_they_come_in() -> None:
    sent = 'id: 3\n\n:\n\nid: 4.17\ndata: {"a":"é"}\ndata: {}\n\nevent: end\ndata: {}\n\nid: 5\ndata: cut sh'.encode()
    wanted = [Event(id="3"), Event(id="4.17", data='{"a":"é"}\n{}'), Event(kind="end", data="{}")]
    for size in (1, 2, 7, len(sent)):
        assert list(parsed(iter([sent[at : at + size] for at in range(0, len(sent), size)]))) == wanted
