"""Queries over Arrow Flight, by a client of Arrow's own: answers, and a join's results as they are found, each once."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from pyarrow import flight

from faulty_runs import elastic, run_with_faults
from harness import driver_for, join_of, manifest_text
from joins import BAND, band_inputs
from streamjoin.bearer import TokenFile
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane.driver import Driver
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.pool import Pool
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.flight import FlightPort
from streamjoin.serve.followers import Followers, FollowLimits
from streamjoin.serve.queries import QueryApi
from streamjoin.serve.query_metrics import QueryMetrics, QueryPage
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage
from test_follow_command import process
from test_query_follow import Server as HttpServer
from test_query_follow import job_in, last_of, run, written
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.xdist_group("flight"), pytest.mark.usefixtures("forked_queries")]  # one join and one server for all
QUICK = FollowLimits(heartbeat_seconds=0.2, look_seconds=0.05)


@dataclass
class Server:
    """Answers for a job from its storage."""

    url: str
    api: QueryApi

    @property
    def followers(self) -> Followers:
        return self.api.followers

    @contextlib.contextmanager
    def reader(self, token: str | None = None, **ticket: Any) -> Iterator[flight.FlightStreamReader]:
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        with flight.FlightClient(self.url) as client:
            reader = client.do_get(flight.Ticket(json.dumps(ticket).encode()), flight.FlightCallOptions(headers=headers))
            yield reader
            reader.cancel()

    def follow(self, join: str = "found", **wish: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Positions, each with the rows before it, until the stream or the reader ends."""
        with self.reader(join=join, **wish) as reader:
            for chunk in reader:
                yield chunk.app_metadata.to_pybytes().decode(), chunk.data.to_pylist()

    def refused(self, **ticket: Any) -> flight.FlightError:
        with pytest.raises(flight.FlightError) as error, self.reader(**ticket) as reader:
            reader.read_chunk()
        return error.value

    def metric(self, name: str) -> float:
        family = next(each for each in QueryPage(self.api.metrics).collect() if each.name == f"streamjoin_{name.removesuffix('_total')}")
        return sum(sample.value for sample in family.samples)


@contextlib.contextmanager
def serving(job: Job, limits: FollowLimits = QUICK, token: TokenFile | None = None, address: str = "127.0.0.1") -> Iterator[Server]:
    with contextlib.closing(Pool(Catalog.of(job))) as pool:
        metrics = QueryMetrics(job.name)
        api = QueryApi(pool, metrics=metrics, followers=Followers(pool, metrics, limits))
        with FlightPort(api, address, token=token) as port:
            yield Server(port.url.replace("0.0.0.0", "127.0.0.1"), api)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("done")
    run(job_in(root), root)
    assert last_of(root) > 5
    return root


@pytest.fixture(scope="module")
def idle(done: Path) -> Iterator[Server]:
    with serving(job_in(done)) as server:
        yield server


def pairs(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter((row["a"], row["b"]) for row in rows)


def test_a_query_is_answered_with_its_commit(done: Path) -> None:
    with serving(job_in(done)) as server:
        with server.reader(sql="SELECT a, b FROM found WHERE a % 2 = 0") as reader:
            table = reader.read_all()
        assert pairs(table.to_pylist()) == written(done, "a % 2 = 0")
        metadata = reader.schema.metadata
        assert (metadata[b"streamjoin.truncated"], int(metadata[b"streamjoin.epoch"]) > 0) == (b"false", True)
        with server.reader(sql="SELECT a FROM found", limit=3) as reader:
            assert reader.read_all().num_rows == 3
            assert reader.schema.metadata[b"streamjoin.truncated"] == b"true"
        assert server.metric("queries_total") == 2


def test_who_comes_back_after_every_batch_misses_nothing_and_gets_nothing_twice(done: Path) -> None:
    with serving(job_in(done), FollowLimits(piece_rows=150, look_seconds=0.05)) as server:
        found, last, positions = Counter[tuple[Any, ...]](), "-1", []
        while last != str(last_of(done)):
            batches = server.follow(after=last, select="a, b", where="a % 2 = 0")
            assert next(batches) == (last, []), "where it begins"
            last, rows = next(batches)
            batches.close()
            assert len(rows) <= 150
            found += pairs(rows)
            positions.append(last)
        assert found == written(done, "a % 2 = 0")
        assert any("." in each for each in positions), "in the middle of a snapshot, too"
        wait_for("all have gone", lambda: server.metric("followers") == 0)
        assert server.metric("followed_rows_total") >= found.total()


def test_what_comes_is_followed_through_the_death_of_its_driver_until_the_join_has_ended(tmp_path: Path) -> None:
    counts = Counter[str]()
    for seed in range(2):
        root, rng = tmp_path / str(seed), random.Random(seed)
        root.mkdir()
        job, found = job_in(root), Counter[tuple[Any, ...]]()
        with serving(job) as server:

            def read(server: Server = server, found: Counter[tuple[Any, ...]] = found) -> None:
                last, is_over = "-1", False
                while not is_over:
                    try:
                        for position, rows in server.follow(after=last, select="a, b", where="b > 2"):
                            last = position
                            found.update(pairs(rows))
                        is_over = True
                    except flight.FlightUnavailableError as error:  # it reads more slowly than merged files are removed
                        if "ask again" not in str(error):
                            raise
                found["ended"] += 1

            reader = threading.Thread(target=read)
            reader.start()
            run_with_faults(elastic(job), band_inputs(), root, rng, counts)
            driver = driver_for(job, band_inputs(), ObjectStorage(str(root / "state")), InlineRunner())
            driver.start()
            driver.step(final=True)
            driver.stop()
            server.followers.finish(is_over=True, seconds=PATIENCE_SECONDS)
            reader.join(PATIENCE_SECONDS)
        assert found.pop("ended") == 1
        assert found == written(root, "b > 2") != Counter()
    assert any(key.startswith("died") for key in counts), counts


@pytest.mark.parametrize("seed", range(2))
def test_who_comes_back_by_either_transport_after_every_event_has_each_result_once_whatever_drivers_do(seed: int, tmp_path: Path) -> None:
    rng, job = random.Random(seed), job_in(tmp_path)
    select, where = [("a, b", "true"), ("a + b AS a, a % 3 AS b", "a % 2 = 0 OR b < 30")][seed]

    def started() -> Driver:
        driver = driver_for(job, band_inputs(), ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        return driver

    def by_flight() -> tuple[str, list[dict[str, Any]], bool]:
        with server.reader(join="found", after=last, select=select, where=where) as reader:
            chunks = [reader.read_chunk(), *itertools.islice(reader, 1)]
            is_over = len(chunks) < 2 or (chunks[1].data.num_rows == 0 and next(reader, None) is None)
        return chunks[-1].app_metadata.to_pybytes().decode(), [row for chunk in chunks for row in chunk.data.to_pylist()], is_over

    def by_http() -> tuple[str, list[dict[str, Any]], bool]:
        stream = other.follow(last=last, select=select, where=where)
        assert next(stream).id == last, "where it begins"
        event = next(stream)
        stream.close()
        return event.id or last, event.rows, event.kind == "end"

    driver, found, last, is_over, has_more = started(), Counter[tuple[Any, ...]](), "-1", False, True
    limits = replace(QUICK, piece_rows=rng.choice([100, 10_000]))
    with serving(job, limits) as server, DriverServer(None, api=server.api) as http:
        other = HttpServer(http.url, server.followers)
        while not is_over:
            if has_more and rng.random() < 0.5:
                if rng.random() < 0.3:
                    driver = started()  # and the one before is no more
                has_more = driver.step() is not None
                if not has_more:
                    driver.step(final=True)
                    driver.stop()
            last, rows, is_over = rng.choice([by_flight, by_http])()
            found += pairs(rows)
            is_over = is_over and not has_more
    with duckdb.connect() as database:
        sql = f"SELECT {select} FROM read_parquet('{tmp_path}/out/*.parquet') WHERE {where}"
        assert found == Counter(database.execute(sql).fetchall()) != Counter()


def test_a_server_that_ends_says_where_to_go_on_and_lives_until_then(done: Path) -> None:
    with serving(job_in(done)) as server:
        batches = server.follow(after=str(last_of(done)))
        assert next(batches) == (str(last_of(done)), [])
        assert next(batches) == (str(last_of(done)), []), "nothing has come for a while"
        ending = threading.Thread(target=server.followers.finish, kwargs={"is_over": False})
        ending.start()
        with pytest.raises(flight.FlightUnavailableError) as error:
            list(batches)
        ending.join()
        assert json.loads(error.value.extra_info) == {
            "reason": "busy",
            "error": f"the server is ending; go on with after={last_of(done)}",
            "after": str(last_of(done)),
        }


@pytest.mark.parametrize(
    ("ticket", "reason", "expected"),
    [
        ({"join": "orders"}, "unknown", "orders: there is no such join whose results are kept as snapshots; there are found"),
        ({"join": "found", "select": "c"}, "wrong", "found has the columns"),
        ({"join": "found", "select": "count(*)"}, "wrong", "an aggregate"),
        ({"join": "found", "where": "true) OR (true"}, "wrong", "where"),
        ({"join": "found", "after": "x"}, "wrong", "after: 'x' must be a snapshot's number"),
        ({"join": "found", "after": "77777"}, "wrong", "after: 77777 is not there yet"),
        ({"join": "found", "limit": 3}, "wrong", "limit"),
        ({"join": "found", "sql": "SELECT 1"}, "wrong", "must be an object, of sql or of join"),
        ({"sql": "SELECT c FROM found"}, "wrong", "found has the columns"),
        ({"sql": "SELECT 1 AS OF 7777"}, "absent", "AS OF 7777: cannot be read"),
        ({}, "wrong", "must be an object, of sql or of join"),
    ],
)
def test_what_cannot_be_answered_is_refused(idle: Server, ticket: dict[str, Any], reason: str, expected: str) -> None:
    before = idle.metric("query_failures_total")
    told = json.loads(idle.refused(**ticket).extra_info)
    assert (told["reason"], expected in told["error"]) == (reason, True), told
    assert idle.metric("followers") == 0
    assert idle.metric("query_failures_total") == before + 1


def test_only_so_many_follow_and_only_with_the_token_or_on_this_machine(done: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s" * 32)
    with serving(job_in(done), FollowLimits(most=1), TokenFile(tmp_path / "token")) as server:
        assert isinstance(server.refused(join="found"), flight.FlightUnauthenticatedError)
        assert isinstance(server.refused(join="found", token="t"), flight.FlightUnauthenticatedError)
        with server.reader("s" * 32, join="found") as first:
            first.read_chunk()
            told = json.loads(server.refused(join="found", token="s" * 32).extra_info)
            assert told == {"reason": "busy", "error": "1 follow already, and no more may; ask again when one has ended"}
    with serving(job_in(done), address="0.0.0.0") as server:
        assert isinstance(server.refused(join="found"), flight.FlightUnauthorizedError)


def test_a_client_that_does_not_read_is_cut_off_and_the_join_goes_on(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    limits = FollowLimits(patience_seconds=0.5, look_seconds=0.05, piece_bytes=1 << 19, buffer_bytes=1 << 20)
    run(job, tmp_path, 0)
    with serving(job, limits) as server, server.reader(join="found", after="-1", select="a, b, repeat('x', 20000) AS wide") as stalled:
        position = stalled.read_chunk().app_metadata.to_pybytes().decode()
        with contextlib.ExitStack() as other:
            beside = other.enter_context(server.reader(join="found", after="-1", select="a, b"))
            run(job, tmp_path)
            wait_for("it is cut off", lambda: server.metric("cut_off_followers_total") == 1)
            wait_for("its place is free", lambda: server.metric("followers") == 1)
            found = Counter[tuple[Any, ...]]()
            while position != str(last_of(tmp_path)):
                chunk = beside.read_chunk()
                position = chunk.app_metadata.to_pybytes().decode()
                found += pairs(chunk.data.to_pylist())
        assert found == written(tmp_path)
        with pytest.raises(flight.FlightUnavailableError):
            stalled.read_all()


def test_a_port_that_is_taken_is_said(done: Path) -> None:
    with serving(job_in(done)) as server, pytest.raises(OSError, match="in use"):
        FlightPort(server.api, port=int(server.url.rsplit(":", 1)[1]))


def test_closing_ends_at_once_whatever_clients_do(done: Path) -> None:
    endless = FollowLimits(patience_seconds=1e6, heartbeat_seconds=1e6)
    with serving(job_in(done), endless) as server, server.reader(join="found", after=str(last_of(done))) as reader:
        reader.read_chunk()
        server.followers.finish(is_over=False, seconds=PATIENCE_SECONDS)
        assert server.metric("followers") == 0
    with serving(job_in(done), endless) as server, server.reader(join="found", after=str(last_of(done))) as reader:
        reader.read_chunk()


def test_the_commands_serve_flight_where_they_are_told_to(done: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "found.yaml"
    output = {"select": ["l.rid AS a", "r.rid AS b", "l.k AS k"], "snapshots": {"size": 40, "key": "a"}}
    joins = [join_of(done, name="found", on=BAND, window={"within": "3s"}, output=output)]
    manifest.write_text(manifest_text(done, joins=joins, watermark="2s"))
    ticket = flight.Ticket(json.dumps({"sql": "SELECT a, b FROM found"}).encode())
    with process("serve", str(manifest), "--port", "0", "--flight", "0") as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if line.startswith("flight: "))
        with flight.connect(line.removeprefix("flight: ").strip()) as client:
            assert pairs(client.do_get(ticket).read_all().to_pylist()) == written(done)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_SECONDS) == Exit.DONE
    own = [join_of(tmp_path, name="found", on=BAND, window={"within": "3s"}, output=output)]
    manifest.write_text(manifest_text(tmp_path, joins=own, watermark="2s"))
    for name in "lr":
        (tmp_path / f"in-{name}").mkdir()
    arguments = ("run", str(manifest), "--runner", "inline", "--metrics-port", "0", "--flight")
    with process(*arguments, "0") as driver:
        assert driver.stderr is not None
        line = next(line for line in driver.stderr if line.startswith("flight: "))
        with flight.connect(line.removeprefix("flight: ").strip()) as client, pytest.raises(flight.FlightServerError) as error:
            client.do_get(ticket).read_all()
        assert "nothing is committed yet" in json.loads(error.value.extra_info)["error"]
        taken = line.strip().rpartition(":")[2]
        refused = CliRunner().invoke(main, [*arguments, taken])
        assert (refused.exit_code, f"--flight: port {taken} of 127.0.0.1 cannot be listened on" in refused.output) == (Exit.USAGE, True)
        driver.send_signal(signal.SIGTERM)
        driver.wait(PATIENCE_SECONDS)
    refused = CliRunner().invoke(main, ["run", str(manifest), "--flight", "0"])
    assert (refused.exit_code, "--flight is beside --metrics-port" in refused.output) == (Exit.USAGE, True)
