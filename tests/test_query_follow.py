"""A join's results as they are found, over HTTP: each once, whatever happens to drivers, servers, clients and connections."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import duckdb
import pytest

from faulty_runs import elastic, run_with_faults
from harness import driver_for, join_of, make_job, manifest_text, output_of
from joins import BAND, band_inputs
from streamjoin.api.join import anchored
from streamjoin.bearer import TokenFile
from streamjoin.cli.serve import Changes
from streamjoin.compilation import compile_job
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.query.catalog import Catalog
from streamjoin.query.pool import Pool
from streamjoin.results.reader import list_snapshots
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.followers import Followers, FollowLimits
from streamjoin.serve.queries import QueryApi
from streamjoin.serve.query_metrics import QueryMetrics
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.xdist_group("follow"), pytest.mark.usefixtures("forked_queries")]  # one join for all
QUICK = FollowLimits(heartbeat_seconds=0.2, look_seconds=0.05)


@dataclass
class Event:
    """One of a stream, as a browser reads it."""

    kind: str
    id: str | None
    data: str | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()] if self.kind == "message" and self.data else []


@dataclass
class Server:
    """Answers for a job from its storage."""

    url: str
    followers: Followers

    def open(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_SECONDS)
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()

    def follow(self, join: str = "found", *, last: str | None = None, **wish: str) -> Iterator[Event]:
        """Events, and None for heartbeats, until the stream or the reader ends."""
        headers = {} if last is None else {"Last_Event_ID": last}
        with self.open(f"/v1/queries/{join}?{urlencode(wish)}", **headers) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream"), answer.read()
            yield from events(answer)

    def refused(self, path: str, **headers: str) -> tuple[int, str]:
        with self.open(path, **headers) as answer:
            return answer.status, json.loads(answer.read())["error"]

    def metric(self, name: str) -> float:
        with self.open("/metrics") as answer:
            page = answer.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"streamjoin_{name}{{"))


def events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    kind, number, data = "message", None, list[str]()
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            number = value
        elif name == "data":
            data.append(value)
        elif not name:
            yield Event(kind, number, "\n".join(data) if data else None)
            kind, number, data = "message", None, []


@contextlib.contextmanager
def serving(job: Job, limits: FollowLimits = QUICK, token: TokenFile | None = None) -> Iterator[Server]:
    with contextlib.closing(Pool(Catalog.of(job))) as pool:
        metrics = QueryMetrics(job.name)
        followers = Followers(pool, metrics, limits)
        with DriverServer(None, api=QueryApi(pool, token, metrics=metrics, followers=followers)) as server:
            yield Server(server.url, followers)


def job_in(root: Path, **snapshots: Any) -> Job:
    output = {"select": ["l.rid AS a", "r.rid AS b", "l.k AS k"], "snapshots": {"size": 40, "key": "a"} | snapshots}
    return make_job(root, joins=[join_of(root, name="found", on=BAND, window={"within": "3s"}, output=output)], watermark="2s")


def run(job: Job, root: Path, until: int | None = None, **options: Any) -> None:
    driver = driver_for(job, band_inputs(), ObjectStorage(str(root / "state")), InlineRunner(), **options)
    driver.start()
    while driver.step() is not None:
        if until is not None and driver.checkpoint.epoch >= until:
            break
    driver.stop()


def written(root: Path, where: str = "true") -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as database:
        sql = f"SELECT a, b FROM read_parquet('{root}/out/*.parquet') WHERE {where}"
        return Counter(database.execute(sql).fetchall())


def pairs(found: list[Event]) -> Counter[tuple[Any, ...]]:
    return Counter((row["a"], row["b"]) for event in found for row in event.rows)


def last_of(root: Path) -> int:
    return list_snapshots(ObjectStorage(str(root / "state")), "found")[-1].id


def up_to(stream: Iterator[Event], snapshot: int) -> list[Event]:
    """Events until all up to a snapshot was there."""
    found = []
    for event in stream:
        found.append(event)
        if event.id is not None and "." not in event.id and int(event.id) >= snapshot:
            break
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("done")
    run(job_in(root), root)
    assert last_of(root) > 5
    return root


def test_who_begins_at_the_first_snapshot_gets_what_the_sink_was_given(done: Path) -> None:
    with serving(job_in(done)) as server:
        found = up_to(server.follow(after="-1", select="a, b, b - a AS c, _snapshot", where="k % 3 = 1 OR k IS NULL"), last_of(done))
        assert pairs(found) == written(done, "k % 3 = 1 OR k IS NULL")
        for event in found:
            assert {row["_snapshot"] for row in event.rows} <= {int(str(event.id).split(".")[0])}
            assert all(row["c"] == row["b"] - row["a"] for row in event.rows)
        assert server.metric("followed_rows_total") >= sum(pairs(found).values())
        assert server.metric("query_read_bytes_total") > 0


def test_who_comes_back_after_every_event_misses_nothing_and_gets_nothing_twice(done: Path) -> None:
    limits = FollowLimits(piece_rows=150, look_seconds=0.05)
    with serving(job_in(done), limits) as server:
        found, last, shown = list[Event](), "-1", 0
        while last != str(last_of(done)):
            stream = server.follow(last=last, after="0", select="a, b", where="a % 2 = 0")
            assert next(stream).id == last, "where it begins"
            found.append(next(stream))
            stream.close()
            last, shown = str(found[-1].id), shown + 1
        assert pairs(found) == written(done, "a % 2 = 0")
        assert max(len(event.rows) for event in found) <= 150
        assert any("." in str(event.id) for event in found), "in the middle of a snapshot, too"
        wait_for("all have gone", lambda: server.metric("followers") == 0)


def test_a_snapshot_of_many_steps_is_not_read_anew_for_each(done: Path) -> None:
    read = {}
    for rows in (10_000, 100):
        with serving(job_in(done), FollowLimits(step_rows=rows, look_seconds=0.05)) as server:
            found = up_to(server.follow(after="-1", select="a, b", where="k % 2 = 0"), last_of(done))
            assert pairs(found) == written(done, "k % 2 = 0")
            read[rows] = server.metric("query_read_bytes_total")
    assert len(found) > pairs(found).total() / 100
    assert 0 < read[100] < read[10_000] * len(found) / 4


def test_what_comes_is_followed_through_the_death_of_its_driver(tmp_path: Path) -> None:
    counts = Counter[str]()
    for seed in range(4):
        root, rng = tmp_path / str(seed), random.Random(seed)
        root.mkdir()
        job = job_in(root)
        found: list[Event] = []
        with serving(job) as server:

            def read(server: Server = server, found: list[Event] = found) -> None:
                found += server.follow(after="-1", select="a, b", where="b > 2")

            reader = threading.Thread(target=read)
            reader.start()
            run_with_faults(elastic(job), band_inputs(), root, rng, counts)
            driver = driver_for(job, band_inputs(), ObjectStorage(str(root / "state")), InlineRunner())
            driver.start()
            driver.step(final=True)
            driver.stop()
            server.followers.finish(is_over=True, seconds=60)
            reader.join(PATIENCE_SECONDS)
        assert found[-1].kind == "end", found[-1]
        assert pairs(found) == written(root, "b > 2") != Counter()
    assert any(key.startswith("died") for key in counts), counts


def test_a_server_that_reads_the_storage_alone_says_that_the_join_has_ended_until_another_driver_goes_on(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    driver = driver_for(job, band_inputs(), ObjectStorage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    with serving(job) as server:
        stream = server.follow(after="-1", select="a, b")
        while driver.step() is not None:
            pass
        driver.step(final=True)
        driver.stop()
        found = list(stream)
        assert found[-1].kind == "end"
        assert pairs(found) == written(tmp_path) != Counter()
        late = list(server.follow(after=found[-1].id or ""))
        assert [event.kind for event in late] == ["message", "end"], "an id, and the end"
        driver = driver_for(job, band_inputs(), ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        driver.stop()
        stream = server.follow(after=found[-1].id or "")
        for _ in range(12):
            assert next(stream).kind == "message", "a heartbeat"
        stream.close()


def test_a_join_that_is_added_is_followed_without_another_start_and_one_that_is_removed_is_told(tmp_path: Path) -> None:
    def described(*names: str) -> dict[str, Any]:
        output = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"size": 40, "key": "a"}}
        joins = [join_of(tmp_path / name, name=name, on=BAND, window={"within": "3s"}, output=output) for name in names]
        return {"joins": joins, "watermark": "2s"}

    manifest = tmp_path / "found.yaml"
    manifest.write_text(manifest_text(tmp_path, **described("found")))
    job = anchored(compile_job(load(manifest.read_text())))
    with contextlib.closing(Pool(Catalog.of(job))) as pool:
        metrics = QueryMetrics(job.name)
        api = QueryApi(pool, metrics=metrics, followers=Followers(pool, metrics, QUICK))
        changes = Changes(manifest, manifest.read_text(), pool.catalog, api.adopt)
        with DriverServer(None, api=api) as made:
            server = Server(made.url, api.followers)
            run(job, tmp_path, 2)
            stays = server.follow(after="-1", select="a, b")
            assert next(stays).id == "-1"
            manifest.write_text("kind: nothing")
            assert not changes.look()
            manifest.write_text(manifest_text(tmp_path, **described("found", "more")))
            assert not changes.look(), "no driver has committed by it"
            assert server.refused("/v1/queries/more")[0] == 404
            job = anchored(compile_job(load(manifest.read_text())))
            run(job, tmp_path, 4)
            assert changes.look()
            assert not changes.look()
            added = server.follow("more", after="-1", select="a, b")
            run(job, tmp_path)
            storage = ObjectStorage(job.checkpoint)
            for name, stream in (("found", stays), ("more", added)):
                found = up_to(stream, list_snapshots(storage, name)[-1].id)
                assert pairs(found) == written(tmp_path / name) != Counter()
            manifest.write_text(manifest_text(tmp_path, **described("found")))
            assert changes.look()
            *_, last = added
            assert (last.kind, json.loads(last.data or "")["reason"]) == ("error", "unknown")
            assert next(stays).kind == "message"
            stays.close()


def test_without_a_place_to_begin_only_what_is_new_comes(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    run(job, tmp_path, 3)
    before = last_of(tmp_path)
    with serving(job) as server:
        stream = server.follow(select="a, b, _snapshot")
        assert next(stream).id == str(before)
        assert next(stream).id is None, "a heartbeat"
        run(job, tmp_path)
        found = up_to(stream, last_of(tmp_path))
        assert {row["_snapshot"] for event in found for row in event.rows} == set(range(before + 1, last_of(tmp_path) + 1))
        stream.close()


def test_snapshots_that_were_let_go_are_said_to_be_missing(tmp_path: Path) -> None:
    now = [1_700_000_000.0]

    def clock() -> float:
        now[0] += 0.1
        return now[0]

    job = job_in(tmp_path, keep="6s")
    with serving(job, FollowLimits(look_seconds=0.05)) as server:
        run(job, tmp_path, 1, clock=clock, in_background=False)
        stream = server.follow(after="-1")
        assert next(stream).id == "-1"
        now[0] += 100
        run(job, tmp_path, clock=clock, in_background=False)
        kept = list_snapshots(ObjectStorage(str(tmp_path / "state")), "found")
        first, last = kept[0].id, kept[-1].id
        assert 0 < first <= last
        status, error = server.refused("/v1/queries/found?after=-1")
        assert status == 410
        gone = "snapshot 0 is" if first == 1 else f"{first:,} snapshots, 0 to {first - 1}, are"
        assert gone in error
        assert f"go on with after={first - 1}" in error
        rest = up_to(server.follow(after=str(first - 1), select="_snapshot"), last)
        assert {row["_snapshot"] for event in rest for row in event.rows} == set(range(first, last + 1))
        # It was being read when they went: it has had all of them, or says that some are missing, and ends.
        assert next(event for event in stream if event.kind == "error" or event.id == str(last))


@pytest.fixture(scope="module")
def refusing(done: Path) -> Iterator[Server]:
    with serving(job_in(done)) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/v1/queries/orders", 404, "orders: there is no such join whose results are kept as snapshots; there are found"),
        ("/v1/queries/found?select=c", 400, "c"),
        ("/v1/queries/found?where=zz%3D1", 400, "zz"),
        ("/v1/queries/found?select=count(*)", 400, "an aggregate"),
        ("/v1/queries/found?select=a%20FROM%20l", 400, "nothing else of a SELECT"),
        ("/v1/queries/found?where=a%3D1%20--", 400, "comment"),
        ("/v1/queries/found?where=true)%20OR%20(true", 400, "where"),
        ("/v1/queries/found?where=a%20IN%20(SELECT%20rid%20FROM%20l)", 400, "a subquery"),
        ("/v1/queries/found?select=row_number()%20OVER%20()", 400, "a window"),
        ("/v1/queries/found?after=x", 400, "after: 'x' must be a snapshot's number"),
        ("/v1/queries/found?after=77777", 400, "after: 77777 is not there yet"),
        ("/v1/queries/found?limit=3", 400, "the fields are select, where, after"),
        ("/v1/queries/found?after=1&after=2", 400, "after"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_sent(refusing: Server, path: str, status: int, expected: str) -> None:
    before = refusing.metric("query_failures_total")
    found, error = refusing.refused(path)
    assert expected in error
    assert found == status
    assert refusing.metric("followers") == 0
    assert refusing.metric("query_failures_total") == before + 1


def test_only_so_many_follow_and_only_with_the_token(done: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s" * 32)
    with serving(job_in(done), FollowLimits(most=1), TokenFile(tmp_path / "token")) as server:
        assert server.refused("/v1/queries/found")[0] == 401
        bearer = f"Bearer {'s' * 32}"
        with server.open("/v1/queries/found", Authorization=bearer) as first:
            assert first.status == 200
            status, error = server.refused("/v1/queries/found", Authorization=bearer)
            assert (status, error) == (503, "1 follow already, and no more may; ask again when one has ended")


def test_a_client_that_does_not_read_is_cut_off_and_the_join_goes_on(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    limits = FollowLimits(patience_seconds=0.3, look_seconds=0.05, piece_bytes=1 << 19, buffer_bytes=1 << 20)
    run(job, tmp_path, 0)
    with serving(job, limits) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = urlsplit(server.url)
        client.connect((address.hostname, address.port))
        wish = urlencode({"after": "-1", "select": "a, b, repeat('x', 5000) AS wide"})
        client.sendall(f"GET /v1/queries/found?{wish} HTTP/1.0\r\n\r\n".encode())
        wait_for("it follows", lambda: server.metric("followers") == 1)
        run(job, tmp_path)
        assert output_of(tmp_path), "the join has come to its end"
        wait_for("it is cut off", lambda: server.metric("cut_off_followers_total") == 1)
        assert server.metric("followed_rows_total") * 5_000 < 16 << 20, "no more was made than it has room for"
        answer = http.client.HTTPResponse(client)
        answer.begin()
        *found, last = events(answer)
        told = json.loads(str(last.data))
        assert (last.kind, told["after"]) == ("behind", found[-1].id)
        assert f"go on with after={found[-1].id}" in told["error"]
        rest = up_to(server.follow(after=told["after"], select="a, b"), last_of(tmp_path))
        assert pairs(found) + pairs(rest) == written(tmp_path)
        assert server.metric("followers") <= 1
