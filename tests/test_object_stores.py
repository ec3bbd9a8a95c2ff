"""State, sources and sinks in an object store: what they rest on, whole joins against the oracle while the store misbehaves, crashes."""

from __future__ import annotations

import concurrent.futures
import gzip
import itertools
import json
import logging
import pickle
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import some
from harness import (
    SECOND,
    START,
    Crash,
    FaultyStorage,
    Input,
    MemorySnapshots,
    Remote,
    Root,
    driver_for,
    manifest_text,
    oracle,
    output_of,
    run_all,
    staged_of,
)
from s3 import Request, S3Server
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.replan import PlanPhase
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.io.base import Rejected, SinkError, SourceError, Split, Staged
from streamjoin.io.deadletter import DeadLetters
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.io.sinks import FilesSink, FilesSinkConfig
from streamjoin.manifest.quantity import Duration
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state import log, storage
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, Superseded, read_latest
from streamjoin.state.storage import AlreadyExists, Missing, ObjectStorage, StorageError
from test_crashes import CASES, FAULTS, ONCE, OPTIONS, WITHIN, check, count_storage_calls, exhaust, finish, job_at, make_inputs, nth
from test_spark import run_victim
from waiting import PATIENCE_SECONDS, Sleepless

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few tuples are written in parts, too."""
    for name in ("WHOLE_BYTES", "ROOT_BYTES", "CELL_BYTES"):
        monkeypatch.setattr(f"streamjoin.state.blocks.{name}", 20)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return tmp_path if request.param == "local" else request.getfixturevalue("s3").bucket()


# What storage promises


def test_an_object_is_what_was_put_last(root: Root) -> None:
    store = pickle.loads(pickle.dumps(ObjectStorage(str(root / "a b"))))
    with pytest.raises(Missing, match="x/1: not there"):
        store.get("x/1")
    store.put("x/1", b"one")
    store.put("x/1", memoryview(b"two"))
    store.put("x/y/ü %20#.json", b"")
    store.put("xx", b"12345")
    assert (store.get("x/1"), store.get("x/y/ü %20#.json"), store.get("xx")) == (b"two", b"", b"12345")
    assert store.list("x") == ["x/1", "x/y/ü %20#.json"]
    assert store.list("nothing") == []
    assert [(item.name, item.size) for item in store.list_folder()] == [("xx", 5)]
    assert sorted(item.name for item in store.list_folder(is_deep=True)) == ["x/1", "x/y/ü %20#.json", "xx"]
    assert next(iter(store.list_folder())).modified_ns / 1e9 == pytest.approx(time.time(), abs=PATIENCE_SECONDS)
    assert (store.size("xx"), store.size("nothing")) == (5, None)
    assert [store.get_range("xx", *ends) for ends in ((1, 3), (3, 9), (9, 12), (2, 2))] == [b"23", b"45", b"", b""]
    store.copy("x/1", "copied")
    assert store.get("copied") == b"two"
    with pytest.raises(Missing):
        store.copy("nothing", "copied")
    store.delete("nothing")
    store.delete("xx")
    store.delete_many(["x/1", "nothing", "x/y/ü %20#.json"])
    assert (store.list("x"), store.size("xx"), store.get("copied")) == ([], None, b"two")
    assert ObjectStorage(str(root)).list("a b") == ["a b/copied"]


def test_one_of_those_who_race_creates(root: Root) -> None:
    for round_ in range(10):
        path = f"log/{round_}"

        def create(number: int, path: str = path) -> bool:
            try:
                ObjectStorage(str(root)).create(path, b"%d" % number)
            except AlreadyExists:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = [number for number, is_first in enumerate(pool.map(create, range(8))) if is_first]
        assert [b"%d" % number for number in won] == [ObjectStorage(str(root)).get(path)]


@pytest.mark.parametrize(
    ("url", "condition"),
    [
        ("s3://box/a", ("If-None-Match", "*")),
        ("gs://box/a", ("x-goog-if-generation-match", "0")),
        ("az://box/a", ("If-None-Match", "*")),
        ("abfss://box@account.dfs.core.windows.net/a", ("If-None-Match", "*")),
    ],
)
def test_each_store_is_told_that_nothing_may_be_there(url: str, condition: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a create rests on, as it goes over the wire; 412 is each store's answer where something is."""
    requests: list[tuple[str, str | None]] = []
    answers = iter([(201, {}), (412, {}), (200, {"Content-Length": "1"})])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append((self.command, self.headers.get(condition[0])))
            status, headers = next(answers)
            self.send_response(status)
            standard = {"ETag": '"x"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "x-goog-generation": "1", "Content-Length": "0"}
            for name, value in (standard | headers).items():
                self.send_header(name, value)
            self.end_headers()

        def do_PUT(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        service = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(service),
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        store = ObjectStorage(url)
        store.create("x", b"1")
        with pytest.raises(AlreadyExists):
            store.create("x", b"1")
        server.shutdown()
    assert requests == [("PUT", condition[1]), ("PUT", condition[1]), ("HEAD", None)]


def test_large_objects_go_in_parts(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MULTIPART_BYTES", 1 << 20)
    monkeypatch.setattr(storage, "PART_BYTES", 5 << 20)
    store, data = ObjectStorage(str(s3.bucket())), random.Random(1).randbytes(12 << 20)
    with s3.faulty(0.3, seed=3, kinds=("503", "500")):
        store.put("large", data)
    assert store.get("large") == data
    assert sum(request.query.startswith("partNumber") and not request.fault for request in s3.requests) >= 3


# What is repeated, and what not


def test_what_a_store_refuses_for_the_moment_is_repeated_logged_and_counted(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    store = ObjectStorage(str(s3.bucket()))
    before = storage.retries()
    with s3.faulty(0.4, seed=5), caplog.at_level(logging.WARNING, "streamjoin.storage"):
        for number in range(20):
            store.put(f"x/{number}", b"%d" % number)
        assert [store.get(f"x/{number}") for number in range(20)] == [b"%d" % number for number in range(20)]
        assert len(store.list("x")) == 20
        store.delete_many(store.list("x"))
        assert store.list("x") == []
    assert s3.faults() > 20
    assert 10 < storage.retries() - before <= s3.faults()
    assert len(caplog.records) == storage.retries() - before
    assert any("503 SlowDown" in message and "attempt 2 follows in" in message for message in caplog.messages)


def test_a_create_whose_answer_is_lost_is_found_to_be_there(s3: S3Server) -> None:
    store = ObjectStorage(str(s3.bucket()))
    for fault in ("500-after", "drop-after"):
        faults = iter([fault])
        s3.choose = lambda request, faults=faults: next(faults, None)
        with pytest.raises(AlreadyExists):
            store.create(fault, b"mine")
        assert store.get(fault) == b"mine"
    commits = CommitLog(store)
    commits.claim()
    faults = iter(["drop-after"])
    s3.choose = lambda request: next(faults, None)
    commits.commit(Checkpoint(epoch=0))
    latest = read_latest(store)
    assert latest is not None
    assert (latest.writer, latest.checkpoint.epoch) == (commits.writer, 0)


def test_a_create_that_another_s_only_hinders_goes_on(s3: S3Server) -> None:
    """S3 answers 409 while another create of the object is under way, and that one may fail."""
    store = ObjectStorage(str(s3.bucket()))
    faults = iter(["409"])
    s3.choose = lambda request: next(faults, None)
    store.create("x", b"mine")
    assert store.get("x") == b"mine"
    assert s3.kinds() == Counter({"create": 2, "head": 1, "get": 1})


def test_storage_that_stays_away_is_given_up_on_in_time(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 1.0)
    clock = Sleepless()
    monkeypatch.setattr(storage, "time", clock)
    store = ObjectStorage(str(s3.bucket()))
    with s3.faulty(1, seed=1, kinds=("503",)), pytest.raises(StorageError, match=r"/x: cannot write it \(503 SlowDown\); check the n"):
        store.put("x", b"")
    assert storage.RETRY_SECONDS - storage.LONGEST_PAUSE_SECONDS <= clock.now <= storage.RETRY_SECONDS
    assert len(s3.requests) > 6


def test_an_answer_that_takes_too_long_is_asked_for_again(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request is not answered before the second one has been."""
    store = ObjectStorage(str(s3.bucket()))
    store.put("x", b"there")
    monkeypatch.setenv("AWS_TIMEOUT", "1s")
    store, answered, held = ObjectStorage(store.url), threading.Event(), iter([True])

    def choose(request: Request) -> None:
        if next(held, False):
            answered.wait(PATIENCE_SECONDS)

    s3.choose = choose
    try:
        assert store.get("x") == b"there"
    finally:
        answered.set()
        s3.choose = lambda request: None


@pytest.mark.parametrize(
    ("variables", "url", "sentence"),
    [
        ({}, "s3://nowhere/a", r"nowhere/a/x: cannot write it: the bucket does not exist \(404 NoSuchBucket\); create it"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "s3://b/a", r"http://127\.0\.0\.1:1 cannot be reached.*; check the network"),
        ({"AWS_ALLOW_HTTP": "false"}, "s3://b/a", r"the endpoint is http, not https \(.*\); set AWS_ALLOW_HTTP=true"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"},
            "s3://b/a",
            r"there are no credentials \(.*\); set them in the environment",
        ),
        ({}, "az://box/a", r"az://box/a: cannot open it: the account is not known \(.*\); set AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_what_no_waiting_mends_is_one_line_that_says_what_to_do(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, sentence: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setattr(storage, "RETRY_SECONDS", 0.2)
    with pytest.raises(StorageError, match=sentence) as failure:
        ObjectStorage(url).put("x", b"")
    assert "\n" not in str(failure.value)


def test_access_that_is_refused_is_not_asked_for_again(s3: S3Server) -> None:
    store = ObjectStorage(str(s3.bucket()))
    with s3.faulty(1, seed=1, kinds=("403",)), pytest.raises(StorageError, match=r"access is refused \(403 AccessDenied\); grant it"):
        store.put("x", b"")
    assert len(s3.requests) == 1


def test_a_store_that_creates_twice_is_refused(s3: S3Server) -> None:
    s3.knows_conditions = False
    with pytest.raises(StorageError, match="this store creates an object that exists already"):
        CommitLog(ObjectStorage(str(s3.bucket()))).claim()


# The files sink and dead letters


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [f"n{number}" for number in numbers]], schema=SCHEMA)


def stage(target: FilesSink, name: str, *batches: pa.RecordBatch) -> list[Staged]:
    writer = target.writer(name, name)
    for part in batches:
        writer.write(part)
    return [Staged.from_json(json.loads(json.dumps(staged.to_json()))) for staged in writer.close()]


def sink_at(root: Remote, kind: str = "parquet", **config: Any) -> FilesSink:
    return pickle.loads(pickle.dumps(FilesSink(FilesSinkConfig(str(root / "out"), kind, **config), SCHEMA)))


def test_results_appear_when_they_are_published_once(s3: S3Server) -> None:
    root = s3.bucket()
    target, store = sink_at(root), ObjectStorage(str(root / "out"))
    writer = target.writer("e1-t0-a0", "e1-t0")
    writer.write(batch(1, 2))
    staged = writer.close() + stage(target, "b", batch(3))
    assert list(store.list_folder()) == []
    assert staged[0].nbytes == store.size(staged[0].path)
    target.publish(staged[:1])
    for _ in range(2):
        target.publish(staged)
        assert sorted(output_of(root)) == [(1, "n1"), (2, "n2"), (3, "n3")]
        assert staged_of(root) == []
    kinds = s3.kinds()
    s3.requests.clear()
    target.publish(stage(target, "c", batch(4)) + stage(target, "d", batch(5)))
    assert s3.kinds() == Counter({"put": 2, "copy": 2, "delete": 1}), kinds


def test_committed_results_that_are_lost_are_named(s3: S3Server) -> None:
    root = s3.bucket()
    target = sink_at(root)
    staged = stage(target, "a", batch(1, 2, 3))
    ObjectStorage(str(root / "out")).delete(staged[0].path)
    with pytest.raises(SinkError, match=r"s3://.*/out/_staging/a-000\.parquet: this committed file is gone and .*its 3 rows are lost"):
        target.publish(staged)


def test_an_aborted_writer_and_a_sweep_leave_nothing(s3: S3Server) -> None:
    root = s3.bucket()
    target = sink_at(root, roll_bytes=1)
    writer = target.writer("a", "a")
    for number in range(3):
        writer.write(pa.record_batch([range(150_000), [str(number)] * 150_000], schema=SCHEMA))
    assert len(staged_of(root)) >= 2
    writer.abort()
    assert staged_of(root) == []
    kept = stage(target, "kept", batch(1))
    stage(target, "left", batch(2), batch(3))
    assert target.sweep(lambda name: name.startswith("left")) == 1
    target.publish(kept)
    assert sorted(output_of(root)) == [(1, "n1")]


def test_dead_letters_are_kept_there_too(s3: S3Server) -> None:
    root = s3.bucket()
    letters = pickle.loads(pickle.dumps(DeadLetters(str(root / "dead"))))
    writer = letters.writer("e1-0-a0", "e1-0", "orders")
    writer.write(Split(first_record=100, records=10), [Rejected(3, "{", "is not JSON", "a.json byte 17")])
    letters.publish(writer.close())
    line = json.loads(ObjectStorage(str(root / "dead")).get("part-e1-0-000.json"))
    assert (line["stream"], line["split"], line["position"], line["raw"]) == ("orders", "a.json byte 17", 3, "{")


# The files source


def source_at(root: Remote, kind: str, *, exact: bool = False, schema: pa.Schema = SCHEMA, **config: Any) -> FilesSource:
    return FilesSource(FilesSourceConfig(str(root / "in"), kind, **config), schema, MemorySnapshots(), exact)


def drain(source: FilesSource, position: Any = None, limit: int = 10**6) -> tuple[list[tuple[Any, ...]], Any]:
    """All records from a position on, with a pickled reader, as in tasks."""
    reader, found = pickle.loads(pickle.dumps(source.reader)), []
    for _ in range(100):
        plan = source.plan(position, limit, 0.0)
        position = json.loads(json.dumps(plan.position))
        for split in pickle.loads(pickle.dumps(plan.splits)):
            for records in reader.read(split):
                found += [tuple(row.values()) for row in records.batch.to_pylist()]
        if plan.exhausted:
            return found, position
    raise AssertionError("the source is never exhausted")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_objects_are_read_once_and_whole(s3: S3Server, kind: str, exact: bool) -> None:
    root = s3.bucket()
    store = ObjectStorage(str(root / "in"))

    def write(name: str, first: int, count: int) -> None:
        rows = [(number, f"n{number}") for number in range(first, first + count)]
        if kind == "parquet":
            out = pa.BufferOutputStream()
            pq.write_table(pa.table({"name": [row[1] for row in rows], "id": [row[0] for row in rows]}), out, row_group_size=100)
            store.put(name, memoryview(out.getvalue()))
        elif kind == "json":
            store.put(name, "\n".join(json.dumps({"id": number, "name": text}) for number, text in rows).encode())
        else:
            store.put(name, ("\ufeffname;ID\r\n" + "\r\n".join(f"{text};{number}" for number, text in rows)).encode())

    write("b", 0, 1000)
    write("a ä", 1000, 7)
    write("_hidden", 5000, 3)
    write("_delta_log/c", 6000, 3)
    write("below/_temporary/0/c", 6000, 3)
    write("below/.c", 6000, 3)
    write("below/deep ü/c", 1007, 3)
    source = source_at(root, kind, exact=exact, delimiter=";")
    with s3.faulty(0.15, seed=7):
        found, position = drain(source, limit=300)
        assert sorted(found) == [(number, f"n{number}") for number in range(1010)]
        assert drain(source, position)[0] == []
        write("0", 2000, 2)
        assert drain(source_at(root, kind, exact=exact, delimiter=";"), position)[0] == [(2000, "n2000"), (2001, "n2001")]


@pytest.mark.parametrize("exact", [True, False])
def test_compressed_objects_are_read_whatever_their_names(s3: S3Server, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is taken without a look into it, one whose name says what it is, one too large to be taken at once, and damaged ones."""
    monkeypatch.setattr("streamjoin.io.files_plan.SPLIT_BYTES", 20_000)
    root = s3.bucket()
    store = ObjectStorage(str(root / "in"))

    def text(first: int, count: int) -> bytes:
        return "".join(f'{{"id": {number}, "name": "n{number}"}}\n' for number in range(first, first + count)).encode()

    store.put("a.json", gzip.compress(text(0, 100)))
    store.put("b.gz", gzip.compress(text(100, 100)))
    store.put("c.gz", text(200, 100))
    store.put("d.json", gzip.compress(text(1000, 20_000)))
    store.put("e.json", text(300, 100).decode().encode("utf-16"))
    store.put("f.json", gzip.compress(b"{}\n")[:-1])
    store.put("g.gz", gzip.compress(b"{}\n")[:-1])
    source, position, letters = source_at(root, "json", exact=exact), None, []
    found: list[int] = []
    for _ in range(100):
        plan = source.plan(position, 7_000, 0.0)
        for split in plan.splits:
            for records in source.reader.read(split):
                found += records.batch.column("id").to_pylist()
                letters += [item.place for item in records.rejected]
        position = json.loads(json.dumps(plan.position))
        if plan.exhausted:
            break
    assert sorted(found) == [*range(400), *range(1000, 21_000)]
    assert sorted(letters) == ["f.json", "g.gz"]


def test_of_a_large_parquet_object_only_what_is_needed_is_fetched(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out, rng = s3.bucket(), pa.BufferOutputStream(), random.Random(1)
    columns = {"id": list(range(100_000)), "name": [f"n{number}" for number in range(100_000)]}
    wide = pa.table(columns | {"unread": [rng.randbytes(100) for _ in range(100_000)]})
    pq.write_table(wide, out, row_group_size=50_000)
    data = out.getvalue()
    ObjectStorage(str(root / "in")).put("large.parquet", memoryview(data))
    read: list[int] = []
    get_range = ObjectStorage.get_range

    def counted(self: ObjectStorage, path: str, start: int, end: int) -> bytes:
        read.append(end - start)
        return get_range(self, path, start, end)

    monkeypatch.setattr(ObjectStorage, "get_range", counted)
    monkeypatch.setattr("streamjoin.io.folder.WHOLE_BYTES", 1 << 20)
    found, _ = drain(source_at(root, "parquet"), limit=50_000)
    assert found == list(zip(columns["id"], columns["name"], strict=True))
    assert sum(read) < data.size / 3
    assert len(read) <= 12


def test_many_small_objects_are_fetched_together(s3: S3Server) -> None:
    """Each footer once, whatever the number of plans, and each object once; several requests are under way at a time."""
    root = s3.bucket()
    for number in range(40):
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [number], "name": [str(number)]}), out)
        ObjectStorage(str(root / "in")).put(f"{number:02d}.parquet", memoryview(out.getvalue()))
    source = source_at(root, "parquet")
    s3.requests.clear()
    together = threading.Barrier(4)

    def choose(request: Request) -> None:
        if request.kind == "get":
            together.wait(PATIENCE_SECONDS)  # until so many are under way

    s3.choose = choose
    plans = [source.plan(None, 1000, 0.0) for _ in range(3)]
    assert s3.kinds() == Counter({"list": 3, "get": 40})
    found = [row["id"] for split in plans[2].splits for records in source.reader.read(split) for row in records.batch.to_pylist()]
    s3.choose = lambda request: None
    assert found == list(range(40))
    assert s3.kinds() == Counter({"list": 3, "get": 80})


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_an_object_that_is_put_again_is_a_new_one_and_others_cost_no_request(s3: S3Server, kind: str) -> None:
    """Whether it is shorter, as long or longer; and an object whose content is the same is the same."""
    root = s3.bucket()
    store = ObjectStorage(str(root / "in"))

    def put(name: str, *numbers: int) -> list[tuple[int, str]]:
        rows = [(number, "n") for number in numbers]
        if kind == "parquet":
            out = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": list(numbers), "name": ["n"] * len(numbers)}), out, compression="none")
            store.put(name, memoryview(out.getvalue()))
        elif kind == "json":
            store.put(name, "".join(json.dumps({"id": number, "name": text}) + "\n" for number, text in rows).encode())
        else:
            store.put(name, ("id,name\n" + "".join(f"{number},{text}\n" for number, text in rows)).encode())
        return rows

    put("x", 11, 12, 13)
    put("y", 14)
    found, position = drain(source_at(root, kind))
    assert len(found) == 4
    put("y", 14)
    for numbers in ((21, 22, 23), (31, 32), (41, 42, 43, 44)):
        source, rows = source_at(root, kind), put("x", *numbers)
        assert source.plan(position, 100, 0.0).warnings[0].startswith("x: has ")
        found, position = drain(source, position)
        assert found == rows
        s3.requests.clear()
        assert drain(source_at(root, kind), position)[0] == []
        assert s3.kinds() == Counter({"list": 1})
    assert position["replaced"] == 3


def test_an_object_that_is_gone_or_not_what_it_says_is_named(s3: S3Server) -> None:
    root = s3.bucket()
    store = ObjectStorage(str(root / "in"))
    store.put("x.parquet", b"this is not Parquet at all")
    plan = source_at(root, "parquet").plan(None, 100, 0.0)
    assert "x.parquet: is a dead letter: it is not a complete Parquet file" in plan.warnings[0]
    store.put("x.json", b'{"id": 1}\n')
    source = source_at(root, "json", pattern="*.json")
    plan = source.plan(None, 100, 0.0)
    store.delete("x.json")
    with pytest.raises(SourceError, match=r"s3://.*/in/x\.json: the file vanished"):
        list(source.reader.read(plan.splits[0]))


# Whole joins


def expected(inputs: tuple[Input, Input]) -> Counter:
    return oracle(inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND)


def put_inputs(root: Remote, inputs: tuple[Input, Input]) -> None:
    """One object an epoch. Names count up, as modification times may not tell seconds apart."""
    for name, one in zip("lr", inputs, strict=True):
        store = ObjectStorage(str(root / f"in-{name}"))
        for number, part in enumerate(one.batches):
            out = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_batches([part]), out)
            store.put(f"{number:03d}.parquet", memoryview(out.getvalue()))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(2))
def test_a_join_in_a_store_that_misbehaves_equals_the_oracle(seed: int, small: str, s3: S3Server) -> None:
    """State, both sources, sink and dead letters in the store."""
    inputs, root = make_inputs(seed, epochs=8), s3.bucket()
    put_inputs(root, inputs)
    job = job_at(root, sources=("parquet", {"maxFilesPerEpoch": 1}))
    with s3.faulty(0.1, seed):
        driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner())
        results = run_all(driver)
    assert len(results) == 8
    assert s3.faults() > 3
    assert sum(result.storage_retries for result in results) > 1
    check(root, inputs, driver, f"seed {seed}", job)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fault", FAULTS)
def test_storage_calls_may_fail_or_kill_the_driver(fault: str, small: str, s3: S3Server, tmp_path: Path) -> None:
    inputs = make_inputs(epochs=4)
    calls = count_storage_calls(tmp_path, inputs)
    for number in some(range(FAULTS.index(fault), len(calls), 9 if small == "in files" else 5), of=3):
        root = s3.bucket()
        faulty = FaultyStorage(ObjectStorage(str(root / "state")), nth(number, fault))
        with s3.faulty(0.03, number):
            driver = finish(root, inputs, faulty, InlineRunner())
        check(root, inputs, driver, f"{fault} at call {number} (locally {calls[number]})")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("step", "small"), CASES, indirect=["small"])
def test_the_driver_may_die_at_any_step(step: str, small: str, s3: S3Server) -> None:
    inputs = make_inputs(epochs=4)
    root, visits = s3.bucket(), iter(range(1000))

    def die(at: str) -> None:
        if at == step and next(visits) == (0 if step in ONCE else 2):
            raise Crash(at)

    state = str(root / "state")
    with s3.faulty(0.05, len(step)):
        driver = driver_for(job_at(root), inputs, ObjectStorage(state), InlineRunner(), at=die)
        with pytest.raises(Crash):
            run_all(driver)
        driver = finish(root, inputs, ObjectStorage(state), InlineRunner())
    check(root, inputs, driver, f"died at {step}")


@pytest.mark.parametrize("step", ["tasks", "commit", "publish"])
def test_an_older_driver_is_superseded(step: str, s3: S3Server) -> None:
    inputs = make_inputs(epochs=4)
    root, visits, second = s3.bucket(), iter(range(1000)), []
    state = str(root / "state")

    def take_over(at: str) -> None:
        if at == step and next(visits) == 1:
            second.append(driver_for(job_at(root), inputs, ObjectStorage(state), InlineRunner()))
            second[0].start()
            second[0].step()

    with s3.faulty(0.05, len(step)):
        first = driver_for(job_at(root), inputs, ObjectStorage(state), InlineRunner(), at=take_over)
        first.start()
        with pytest.raises(Superseded, match=r"s3://.*another driver .* has taken over"):
            exhaust(first)
        first.sweep()
        exhaust(second[0])
    check(root, inputs, second[0], f"second driver at {step}")


@pytest.mark.spark
def test_a_driver_on_spark_that_is_killed_is_resumed_from_the_store(s3: S3Server, tmp_path: Path) -> None:
    """State, sources and sink in the store, and Spark's executors find it by their environment, like the driver."""
    inputs, root = make_inputs(epochs=5), s3.bucket()
    put_inputs(root, inputs)
    options = OPTIONS | {"sources": ("parquet", {"maxFilesPerEpoch": 1}), "workers": 2}
    (tmp_path / "join.yaml").write_text(manifest_text(root, **options))
    with s3.faulty(0.03, 1):
        assert run_victim(tmp_path, "publish", 2).returncode == -signal.SIGKILL
        before = read_latest(ObjectStorage(str(root / "state")))
        assert before is not None
        assert before.checkpoint.epoch == 1
        finished = run_victim(tmp_path, "never", 0)
    assert finished.stdout.strip() == "done", finished.stderr[-2000:]
    assert output_of(root) == expected(inputs)
    assert staged_of(root) == []


def test_drivers_that_race_for_a_log_take_turns(s3: S3Server) -> None:
    """Every commit that succeeded is in the sequence, in the order of incarnations; nobody's is overwritten."""
    root = s3.bucket()

    def drive(number: int) -> list[tuple[int, int]]:
        commits, done = CommitLog(ObjectStorage(str(root)), identity=f"driver {number}"), []
        for _ in range(3):
            commits.claim()
            try:
                for epoch in range(5):
                    commits.commit(Checkpoint(epoch=epoch))
                    done.append((commits.sequence, commits.incarnation))
            except Superseded:
                pass
        return done

    with s3.faulty(0.05, 1), ThreadPoolExecutor(3) as pool:
        committed = sorted(entry for done in pool.map(drive, range(3)) for entry in done)
    store = ObjectStorage(str(root))
    entries = [log.Entry.decode(store.get(path)) for path in store.list("log")]
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    assert committed == [(entry.sequence, entry.incarnation) for entry in entries if entry.kind == "epoch"]
    assert [entry.incarnation for entry in entries] == sorted(entry.incarnation for entry in entries)


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_a_small_epoch_takes_a_commit_and_a_file_of_results_whatever_the_workers(workers: int, s3: S3Server) -> None:
    inputs, root = make_inputs(epochs=40), s3.bucket()
    driver = driver_for(job_at(root, workers=workers), inputs, ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    # The log twice, and once each what a driver before may have left: blocks, parts of snapshots, positions of sources, staged files.
    assert s3.kinds() == Counter({"list": 7, "create": 2, "head": 1, "get": 1})
    driver.step()
    s3.requests.clear()
    epochs = 0
    while driver.step() is not None:
        epochs += 1
    kinds = s3.kinds()
    assert epochs > 30
    assert kinds.pop("create") == epochs
    assert kinds.pop("put") <= epochs
    assert kinds.total() <= epochs / 8
    s3.requests.clear()
    assert driver.step() is None
    assert s3.requests == []


@pytest.mark.parametrize("idle_seconds", [0, 60])
def test_results_that_a_consumer_took_do_not_come_back_after_an_idle_driver_was_killed(idle_seconds: int, s3: S3Server) -> None:
    """If it was killed at once, nobody knows whether they were visible: they are published again."""
    inputs, root, now = make_inputs(epochs=3), s3.bucket(), [START / SECOND + 1000]
    state, out = str(root / "state"), ObjectStorage(str(root / "out"))
    killed = driver_for(job_at(root), inputs, ObjectStorage(state), InlineRunner(), clock=lambda: now[0])
    killed.start()
    while killed.step() is not None:
        now[0] += 1
    taken = [path for path in out.list("") if path.startswith("part-")]
    now[0] += idle_seconds
    s3.requests.clear()
    for _ in range(3):
        assert killed.step() is None
    assert s3.kinds() == Counter({"create": 1} if idle_seconds else {}), "once, and never before that"
    out.delete_many(taken)
    again = driver_for(job_at(root), inputs, ObjectStorage(state), InlineRunner(), clock=lambda: now[0])
    again.start()
    back = [path for path in out.list("") if path.startswith("part-")]
    assert set(back) <= set(taken)
    assert bool(back) == (not idle_seconds)


def test_results_of_many_small_epochs_are_gathered(s3: S3Server) -> None:
    """With nothing but the commit in between; when the input ends all are there."""
    inputs, root, clock = make_inputs(epochs=20), s3.bucket(), itertools.count(START / SECOND + 1000, 0.1)
    job = job_at(root)
    join = replace(job.joins[0], sink=job.joins[0].sink.model_copy(update={"gather": Duration.parse("3s")}))
    job = replace(job, interval_micros=0, joins=(join,))
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), clock=lambda: next(clock))
    exhaust(driver)
    files = ObjectStorage(str(root / "out")).list("")
    assert 2 <= len(files) <= 8
    check(root, inputs, driver, "gathered", job)


@pytest.mark.usefixtures("small_parts")
def test_a_plan_is_prepared_by_fetching_blocks_while_the_old_one_runs(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.controlplane.replan.SMALL_BYTES", 0)
    inputs = make_inputs(epochs=14)
    root = s3.bucket()
    job = replace(job_at(root), max_workers=5)
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    for _ in range(3):
        driver.step()
    assert driver.scheme is not None
    assert driver.layout is not None
    found = driver.statistics()
    scheme, keep = map_tasks(driver.scheme, plan_for_tasks("adsp", found, driver.layout.main, 5), found)
    with s3.faulty(0.05, 3):
        assert driver.put_plan(Plan(2, scheme, keep))
        phases = []
        while driver.checkpoint.plan.generation < 2:
            assert driver.step() is not None, f"the input ended before the switch: {phases}"
            status = driver.plan_status()
            assert status is not None
            phases.append(status.phase)
            if status.phase is PlanPhase.PREPARING:
                wait_for_fetches(driver)
    assert PlanPhase.PREPARING in phases[:-1]
    switched = driver.plan_status().switched  # type: ignore[union-attr]
    assert switched is not None
    assert switched.moved_tuples > 0
    assert switched.kept_tuples > 0
    exhaust(driver)
    check(root, inputs, driver, "plan", job)


def wait_for_fetches(driver: Driver) -> None:
    """Until what the workers have begun to fetch is there, or has failed."""
    for store in driver._runner._stores.values():  # type: ignore[attr-defined]
        concurrent.futures.wait(store._fetching.values(), timeout=PATIENCE_SECONDS)
