"""What every store of snapshots does, asked of each by its own client: embedded files, PostgreSQL, Cassandra, as they are.

A snapshot is there whole or not at all, and each of its rows once, however often storing it broke off; the join goes on while a store is
down, as long as there is room, says so, and catches up.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from cable import Cable
from harness import driver_for
from streamjoin.cli import main
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.job import Job
from streamjoin.results import publisher, reader
from streamjoin.results.reader import KEY, ROW, SNAPSHOT, Snapshot
from streamjoin.results.store import SnapshotStore, StoreError
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.state.log import Superseded
from streamjoin.state.storage import ObjectStorage
from test_snapshots import Clock, expected, job_with, make_inputs
from waiting import PATIENCE_SECONDS, wait_for

NAMES = iter(range(1_000_000))
"""Of tables: no two tests share one."""
pytestmark = pytest.mark.xdist_group("stores")  # one server of each kind
Row = tuple[Any, ...]


class World(Protocol):
    """A kind of store, with a cable that leads to it."""

    cable: Cable

    def model(self) -> dict[str, Any]:
        """``output.snapshots.store``, with a table of its own."""

    def store(self, table: str, checkpoint: str = "one", **options: Any) -> SnapshotStore:
        """What the engine makes of such a model."""

    def listed(self, table: str) -> Counter[int]:
        """Snapshots in the table, by identifier, with the rows that they are said to have; by the store's own client."""

    def rows(self, table: str, columns: Sequence[str]) -> list[Row]:
        """All rows in the table of snapshots that are listed."""

    def found(self, table: str, key: Any, columns: Sequence[str], checkpoint: str = "one") -> list[Row]:
        """A checkpoint's rows of one key, as its index finds them."""


class Postgres:
    def __init__(self, target: str, cable: Cable) -> None:
        self._target, self.cable = target, cable

    def model(self) -> dict[str, Any]:
        host, port = self.cable.address.split(":")
        fields = {"host": host, "port": int(port), "database": "postgres", "table": f"t{next(NAMES)}", "timeout": "5s"}
        return {"postgres": fields | {"options": {"user": "streamjoin"}}}

    def store(self, table: str, checkpoint: str = "one", **options: Any) -> SnapshotStore:
        from streamjoin.io.postgres_sink import Place
        from streamjoin.results.postgres import PostgresStore

        host, port = self.cable.address.split(":")
        given = options.get("options", {"user": "streamjoin"})  # keep_seconds: it is asked to let go
        seconds = options.get("timeout_seconds", 5.0)
        return PostgresStore(Place(host, int(port), "postgres", "public", table, seconds, tuple(given.items())), checkpoint)

    def listed(self, table: str) -> Counter[int]:
        if not self._asked("SELECT 1 FROM pg_class WHERE relname = %s", [f"{table}_snapshots"]):
            return Counter()
        return Counter(dict(self._asked(f"SELECT id, rows FROM {table}_snapshots")))

    def rows(self, table: str, columns: Sequence[str]) -> list[Row]:
        return self._asked(f"SELECT {', '.join(columns)} FROM {table}") if self.listed(table) else []

    def found(self, table: str, key: Any, columns: Sequence[str], checkpoint: str = "one") -> list[Row]:
        return self._asked(f"SELECT {', '.join(columns)} FROM {table} WHERE _checkpoint = %s AND _key = %s", [checkpoint, key])

    def _asked(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        import psycopg

        host, port = self._target.split(":")
        with psycopg.connect(host=host, port=port, dbname="postgres", user="streamjoin") as connection:
            return connection.execute(query, values).fetchall()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A server's address."""
    from postgres_server import NoPostgres, PostgresServer

    try:
        server = PostgresServer()
    except NoPostgres as missing:
        pytest.skip(str(missing))
    with server:
        yield server.target


class Cassandra:
    def __init__(self, target: str, cable: Cable) -> None:
        self._target, self.cable = target, cable

    def model(self) -> dict[str, Any]:
        host, port = self.cable.address.split(":")
        return {"cassandra": {"hosts": host, "port": int(port), "keyspace": "test", "table": f"t{next(NAMES)}", "timeout": "5s"}}

    def store(self, table: str, checkpoint: str = "one", **options: Any) -> SnapshotStore:
        from streamjoin.manifest.snapshots import CassandraStore as Model
        from streamjoin.results.cassandra import CassandraStore

        given = {"options": options.get("options", {}), "timeout": f"{options.get('timeout_seconds', 5):g}s"}
        model = Model.model_validate(self.model()["cassandra"] | given)
        return CassandraStore(model, table, checkpoint, options.get("keep_seconds"))

    def listed(self, table: str) -> Counter[int]:
        names = _session(self._target).execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'test'")
        if f"{table}_snapshots" not in {name for (name,) in names}:
            return Counter()
        return Counter(dict(_session(self._target).execute(f"SELECT id, rows FROM test.{table}_snapshots")))

    def rows(self, table: str, columns: Sequence[str]) -> list[Row]:
        known = self.listed(table)
        names = ", ".join(f'"{name}"' for name in (SNAPSHOT, *columns))
        found = _session(self._target).execute(f"SELECT {names} FROM test.{table}") if known else []
        return [tuple(row[1:]) for row in found if row[0] in known]

    def found(self, table: str, key: Any, columns: Sequence[str], checkpoint: str = "one") -> list[Row]:
        names = ", ".join(f'"{name}"' for name in columns)
        query = f'SELECT {names} FROM test.{table} WHERE "_checkpoint" = %s AND "_has_key" = true AND "_key" = %s'
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        written = (key - epoch) // datetime.timedelta(microseconds=1) if isinstance(key, datetime.datetime) else key
        return [tuple(row) for row in _session(self._target).execute(query, (checkpoint, written))]


@functools.cache
def _session(target: str) -> Any:
    from cassandra.cluster import Cluster

    host, port = target.split(":")
    session = Cluster([host], port=int(port)).connect()
    session.execute("CREATE KEYSPACE IF NOT EXISTS test WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    return session


@pytest.fixture(scope="module")
def cassandra() -> Iterator[str]:
    """A server's address."""
    from cassandra_server import CassandraServer, NoCassandra

    try:
        server = CassandraServer()
    except NoCassandra as missing:
        pytest.skip(str(missing))
    with server:
        _session(server.target)
        yield server.target
        _session(server.target).cluster.shutdown()


@pytest.fixture(params=["postgres", "cassandra"], scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(kind: str, request: pytest.FixtureRequest) -> Iterator[World]:
    target = request.getfixturevalue(kind)
    with Cable(target) as cable:
        yield {"postgres": Postgres, "cassandra": Cassandra}[kind](target, cable)


def batches_of(snapshot: int, rows: int, seed: int = 0, *, most: int = 7) -> list[pa.RecordBatch]:
    """A snapshot's rows, of keys 0 to 9, in batches of at most so many."""
    rng = random.Random(f"{snapshot} {seed}")
    keys = sorted(rng.randrange(10) for _ in range(rows))
    table = pa.table(
        {
            KEY: pa.array(keys, pa.int64()),
            "a": pa.array([rng.randrange(1000) for _ in keys], pa.int32()),
            "b": pa.array([f"text {rng.randrange(1000)}" for _ in keys]),
            SNAPSHOT: pa.array([snapshot] * rows, pa.int64()),
            ROW: pa.array(range(rows), pa.int64()),
        }
    )
    return table.to_batches(max_chunksize=most)


def publish(store: SnapshotStore, snapshot: int, batches: Sequence[pa.RecordBatch], committed_at: float = 1.8e9) -> None:
    store.publish(Snapshot(snapshot, snapshot, committed_at, sum(batch.num_rows for batch in batches)), iter(batches))


def rows_in(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> list[Row]:
    return [tuple(row[name] for name in columns) for batch in batches for row in batch.to_pylist()]


COLUMNS = (KEY, "a", "b", SNAPSHOT, ROW)


def test_what_is_stored_is_there_once_and_found_by_key(world: World) -> None:
    table = f"t{next(NAMES)}"
    store, other = world.store(table), world.store(table)
    stored = {number: batches_of(number, 40 + number) for number in range(3)}
    for number, batches in stored.items():
        for writer in (store, other, store):
            publish(writer, number, batches)
    assert world.listed(table) == Counter({0: 40, 1: 41, 2: 42})
    wanted = [row for batches in stored.values() for row in rows_in(batches, COLUMNS)]
    assert sorted(world.rows(table, COLUMNS)) == sorted(wanted)
    for key in range(10):
        assert sorted(world.found(table, key, COLUMNS)) == sorted(row for row in wanted if row[0] == key)
    store.close()
    other.close()


@pytest.mark.parametrize("seed", range(2))
def test_wherever_storing_breaks_off_a_snapshot_is_there_whole_or_not_and_then_once(world: World, seed: int) -> None:
    """The cable is cut after some bytes, at points all over what is sent, then mended, and the snapshot is stored again."""
    table, rng = f"t{next(NAMES)}", random.Random(seed)
    store = world.store(table)
    publish(store, 0, batches_of(0, 30, seed))
    before = world.cable.carried
    publish(store, 1, batches_of(1, 30, seed))
    sent = world.cable.carried - before
    wanted = Counter(rows_in([*batches_of(0, 30, seed), *batches_of(1, 30, seed)], COLUMNS))
    broken = 0
    for number in range(2, 12):
        batches = batches_of(number, 30, seed)
        world.cable.cut_after = world.cable.carried + rng.randrange(1, sent)
        try:
            publish(store, number, batches)
        except StoreError:
            broken += 1
            found = Counter(world.rows(table, COLUMNS))
            assert found in (wanted, wanted + Counter(rows_in(batches, COLUMNS)))
        world.cable.cut_after = None
        world.cable.mend()
        publish(store, number, batches)
        wanted += Counter(rows_in(batches, COLUMNS))
        assert Counter(world.rows(table, COLUMNS)) == wanted
        assert world.listed(table)[number] == 30
    assert broken > 3
    store.close()


def test_two_drivers_that_store_the_same_at_once_store_it_once(world: World) -> None:
    table = f"t{next(NAMES)}"
    failed: list[BaseException] = []

    def write() -> None:
        store = world.store(table)
        try:
            for number in range(8):
                publish(store, number, batches_of(number, 50))
        except BaseException as error:
            failed.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert failed == []
    assert Counter(world.rows(table, COLUMNS)) == Counter(row for number in range(8) for row in rows_in(batches_of(number, 50), COLUMNS))


def test_values_of_every_type_are_stored_as_they_are(world: World) -> None:
    at = datetime.datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=datetime.UTC)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        KEY: (pa.string(), ["", "a,b", 'q"\\', "x\ny", None, "ä€😀"]),
        "t": (pa.string(), ["", None, "NULL", "\\N", '""', "\t"]),
        "d": (pa.decimal128(20, 4), [decimal.Decimal("1.5000"), None, *[decimal.Decimal("-12345678901234.5678")] * 4]),
        "f": (pa.float64(), [0.1, None, float("inf"), -0.0, 1e300, 5e-324]),
        "g": (pa.float32(), [0.5, None, 1.5, -2.25, float("-inf"), 0.0]),
        "z": (pa.bool_(), [True, None, False, True, True, False]),
        "i": (pa.int8(), [-128, None, 127, 0, 1, 2]),
        "s": (pa.int16(), [-(2**15), None, 2**15 - 1, 0, 1, 2]),
        "l": (pa.int64(), [-(2**63), None, 2**63 - 1, 0, 1, 2]),
        "x": (pa.binary(), [b"", None, b"\x00\xff", b"\\x41", b"'", b"\n"]),
        "y": (pa.date32(), [at.date(), None, datetime.date(1969, 12, 31), datetime.date(1, 1, 1), at.date(), at.date()]),
    }
    names = list(values)
    table = pa.table({name: pa.array(of_column, kind) for name, (kind, of_column) in values.items()})
    table = table.append_column(SNAPSHOT, pa.array([0] * 6)).append_column(ROW, pa.array(range(6)))
    name = f"t{next(NAMES)}"
    store = world.store(name)
    publish(store, 0, table.to_batches())
    found = sorted(world.rows(name, [ROW, *names[1:]]), key=lambda row: int(row[0]))
    assert [tuple(_plain(value) for value in row[1:]) for row in found] == rows_in(table.to_batches(), names[1:])
    for row, key in enumerate(values[KEY][1]):
        if key is not None:
            assert [int(one) for (one,) in world.found(name, key, [ROW])] == [row]
    assert world.listed(name) == Counter({0: 6})
    store.close()


def _plain(value: Any) -> Any:
    """A value of a store's client as Arrow has it."""
    if isinstance(value, memoryview):
        return bytes(value)
    return value.date() if type(value).__module__ == "cassandra.util" else value


def test_times_are_exact_to_the_microsecond(world: World) -> None:
    at = datetime.datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=datetime.UTC)
    times = [at, at + datetime.timedelta(microseconds=1), datetime.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=datetime.UTC)]
    table = pa.table(
        {KEY: pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array([one.replace(tzinfo=None) for one in times], pa.timestamp("us"))}
    )
    table = table.append_column(SNAPSHOT, pa.array([0] * 3)).append_column(ROW, pa.array(range(3)))
    name = f"t{next(NAMES)}"
    store = world.store(name)
    publish(store, 0, table.to_batches())
    for row, one in enumerate(times):
        assert world.found(name, one, [ROW]) == [(row,)]
    store.close()


def test_a_column_that_is_new_is_added_and_one_of_another_type_is_refused(world: World) -> None:
    name = f"t{next(NAMES)}"
    store = world.store(name)
    publish(store, 0, batches_of(0, 5))
    wider = [batch.append_column("c", pa.array([1.5] * batch.num_rows)) for batch in batches_of(1, 5)]
    publish(store, 1, wider)
    assert Counter(row[0] for row in world.rows(name, ["c"])) == Counter({None: 5, 1.5: 5})
    other = [batch.set_column(1, "a", pa.array(["text"] * batch.num_rows)) for batch in batches_of(2, 5)]
    with pytest.raises(StoreError, match=r"column a is int.*, and results have text; give .*table another name"):
        publish(store, 2, other)
    assert world.listed(name) == Counter({0: 5, 1: 5})
    store.close()


def test_snapshots_of_another_checkpoint_in_the_same_table_are_others(world: World) -> None:
    name = f"t{next(NAMES)}"
    one, two = world.store(name, "one"), world.store(name, "two")
    publish(one, 0, batches_of(0, 5, 1))
    publish(two, 0, batches_of(0, 6, 2))
    of_one, of_two = (batches_of(0, rows, seed) for rows, seed in ((5, 1), (6, 2)))
    for key in range(10):
        for checkpoint, batches in (("one", of_one), ("two", of_two)):
            found = world.found(name, key, COLUMNS, checkpoint)
            assert sorted(found) == sorted(row for row in rows_in(batches, COLUMNS) if row[0] == key)
    assert len(world.rows(name, ["a"])) == 11
    one.close()
    two.close()


def test_a_store_that_is_not_there_or_refuses_says_what_to_do(world: World) -> None:
    store = world.store(f"t{next(NAMES)}")
    world.cable.cut()
    with pytest.raises(StoreError, match=r"cannot be reached \(.*\); see whether it is up"):
        publish(store, 0, batches_of(0, 5))
    world.cable.mend()
    publish(store, 0, batches_of(0, 5))
    store.close()
    secret = world.store(f"t{next(NAMES)}", options={"password": "env:NO_SUCH_VARIABLE"})
    with pytest.raises(StoreError, match=r"options\[password\]: the variable NO_SUCH_VARIABLE is not set"):
        publish(secret, 0, batches_of(0, 5))


def test_snapshots_are_let_go_when_they_are_old(world: World) -> None:
    """By the store, once it is asked, or by itself."""
    name, now = f"t{next(NAMES)}", time.time()
    store = world.store(name, keep_seconds=10_000.0)
    for number, age in enumerate((9_998.0, 9_997.5, 50.0, 1.0)):
        publish(store, number, batches_of(number, 20), committed_at=now - age)

    def is_gone() -> bool:
        store.let_go(time.time() - 10_000.0)
        return world.listed(name) == Counter({2: 20, 3: 20})

    wait_for("the old ones are gone", is_gone)
    assert Counter(row[0] for row in world.rows(name, [SNAPSHOT])) == Counter({2: 20, 3: 20})
    store.close()


def test_a_store_that_hangs_is_not_waited_for_without_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.postgres_client.MARGIN_SECONDS", 0.5)
    name = f"t{next(NAMES)}"
    store = world.store(name, timeout_seconds=1.0)

    def is_published(number: int) -> bool:
        with contextlib.suppress(StoreError):  # which a busy machine has, too
            publish(store, number, batches_of(number, 5))
            return True
        return False

    wait_for("the first is there", lambda: is_published(0))
    world.cable.freeze()
    with pytest.raises(StoreError, match="cannot be reached"):
        publish(store, 1, batches_of(1, 5))
    world.cable.mend()
    wait_for("the second is there", lambda: is_published(1))
    assert world.listed(name) == Counter({0: 5, 1: 5})
    store.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores are asked again soon, and an epoch does not wait long for room."""
    monkeypatch.setattr(publisher, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(publisher, "MOST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("streamjoin.controlplane.timelines.ROOM_SECONDS", 0.2)


def with_buffer(job: Job, nbytes: int) -> Job:
    snapshots = job.joins[0].snapshots
    assert snapshots is not None
    return replace(job, joins=(replace(job.joins[0], snapshots=replace(snapshots, buffer_bytes=nbytes)),))


def test_the_example_for_a_store_ends_with_all_results_in_it(
    world: World, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = yaml.safe_load((Path(__file__).parents[1] / "examples" / "stores" / f"{kind}.yaml").read_text())
    (join,) = manifest["spec"]["joins"]
    model = world.model()
    table = f"{manifest['metadata']['name']}_{join['name']}"  # which the example's commands name
    del model[kind]["table"]
    join["output"]["snapshots"]["store"] = model
    (tmp_path / "join.yaml").write_text(yaml.safe_dump(manifest))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "join.yaml", "--runner", "inline", "--until-idle"])
    assert done.exit_code == 0, done.output
    columns = {"postgres": ("trade_id", "quote_id", "price"), "cassandra": ("impression_id", "click_id", "ad")}[kind]
    names = ", ".join(columns)
    wanted = duckdb.sql(f"SELECT {names} FROM read_parquet('out/{kind}/matches/*.parquet')").fetchall()
    assert len(wanted) > 1000
    assert Counter(world.rows(table, columns)) == Counter(wanted)


@pytest.mark.usefixtures("quick")
def test_while_a_store_is_down_the_join_goes_on_as_long_as_there_is_room_says_so_and_catches_up(world: World, tmp_path: Path) -> None:
    inputs, model = make_inputs(epochs=16), world.model()
    (table,) = (fields["table"] for fields in model.values())
    job = with_buffer(job_with(tmp_path, {"size": 1, "key": "a", "store": model}), 4000)
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    metrics = Metrics(job, snapshots=driver.snapshots)
    driver.start()
    for _ in range(3):
        driver.step()
    wait_for("three snapshots are stored", lambda: driver.snapshots()["j"].waiting == 0)
    world.cable.cut()
    epochs = _steps_until_it_waits(driver)
    assert epochs >= 3
    wait_for("the store's failure is counted", lambda: driver.snapshots()["j"].store.failures > 0)  # its client asks on for a while first
    state = driver.snapshots()["j"]
    assert state.waiting_bytes > 4000
    assert state.failing_seconds > 0
    waits = metrics.health()[1]["snapshotsWait"]
    assert f"{state.waiting} snapshots of j wait" in waits
    assert "cannot be reached" in waits
    wait_for("the files have all that waits", lambda: len(_sizes(tmp_path)) == driver.snapshots()["j"].next_id)
    assert sum(world.listed(table).values()) == sum(_sizes(tmp_path)[:3])
    world.cable.mend()
    while _stepped(driver):
        pass
    wait_for("all is stored", lambda: driver.snapshots()["j"].waiting == 0)
    assert metrics.health()[1]["snapshotsWait"] is None
    driver.stop()
    assert Counter(world.rows(table, ["a", "b"])) == expected(inputs)
    assert [world.listed(table)[number] for number in range(len(_sizes(tmp_path)))] == _sizes(tmp_path)


def _sizes(root: Path) -> list[int]:
    return [snapshot.rows for snapshot in reader.list_snapshots(ObjectStorage(str(root / "state")), "j")]


def _steps_until_it_waits(driver: Driver) -> int:
    for epochs in range(100):
        try:
            assert driver.step() is not None
        except EpochFailed as error:
            if "the store of j's snapshots does not keep up" not in str(error):
                raise
            return epochs
    raise AssertionError("it never waited")


def _stepped(driver: Driver) -> bool:
    for _ in range(100):
        try:
            return driver.step(final=True) is not None
        except EpochFailed:
            continue
    raise AssertionError("there was never room")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(2))
def test_a_store_that_is_lost_again_and_again_and_drivers_that_are_replaced_lose_and_repeat_nothing(
    world: World, tmp_path: Path, seed: int
) -> None:
    rng, inputs, model, clock = random.Random(seed), make_inputs(seed, epochs=20), world.model(), Clock()
    (table,) = (fields["table"] for fields in model.values())
    job = job_with(tmp_path, {"every": "2s", "key": "b", "store": model})
    driver: Driver | None = None
    older: list[Driver] = []
    more = True
    while more:
        if driver is None:
            driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner(), clock=clock)
            driver.start()
        more = _stepped(driver)
        clock.now += 1
        match rng.choice(["nothing", "cut", "cut soon", "mend", "another driver"]):
            case "cut":
                world.cable.cut()
            case "cut soon":
                world.cable.mend()
                world.cable.cut_after = world.cable.carried + rng.randrange(4000)
            case "mend":
                world.cable.mend()
            case "another driver":
                older.append(driver)  # goes on with what it had begun
                driver = None
    world.cable.cut_after = None
    world.cable.mend()
    last = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner(), clock=clock)
    last.start()
    while _stepped(last):
        pass
    wait_for("all is stored", lambda: last.snapshots()["j"].waiting == 0)
    for one in (last, *older):
        with contextlib.suppress(Superseded):
            one.stop()
    assert Counter(world.rows(table, ["a", "b"])) == expected(inputs)
    storage = ObjectStorage(str(tmp_path / "state"))
    paths = [str(storage.local_path(file.path)) for file in reader.files(storage, "j")]
    rows = duckdb.sql(f"SELECT a, b, _snapshot, _row FROM read_parquet({paths})").fetchall()
    assert Counter(world.rows(table, ["a", "b", SNAPSHOT, ROW])) == Counter(rows)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(1))
def test_a_server_that_is_killed_and_started_again_has_each_result_once(tmp_path: Path, seed: int) -> None:
    from postgres_server import NoPostgres, PostgresServer

    rng, inputs = random.Random(seed), make_inputs(seed, epochs=20, rows=(30, 60))
    try:
        server = PostgresServer()
    except NoPostgres as missing:
        pytest.skip(str(missing))
    with server, Cable(server.target) as cable:
        world = Postgres(server.target, cable)
        model = world.model()
        job = job_with(tmp_path, {"size": 1, "key": "a", "store": model})
        driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        more, is_up, kills = True, True, 0
        while more:
            more = _stepped(driver)
            if is_up and rng.random() < 0.4:
                server.kill()  # while what the epoch has closed is being stored, or just before or after
                is_up, kills = False, kills + 1
            elif not is_up:
                server.start()
                is_up = True
        if not is_up:
            server.start()
        wait_for("all is stored", lambda: driver.snapshots()["j"].waiting == 0)
        driver.stop()
        assert kills > 2
        table = model["postgres"]["table"]
        assert Counter(world.rows(table, ["a", "b"])) == expected(inputs)
        assert [world.listed(table)[number] for number in range(len(_sizes(tmp_path)))] == _sizes(tmp_path)
