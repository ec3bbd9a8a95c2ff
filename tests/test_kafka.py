"""Kafka as source and as sink, against a real broker that the tests start, kill and start again.

What must hold is checked from outside: see ``kafka_join``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from harness import SECOND, Crash, run_all
from kafka_broker import KafkaBroker
from kafka_join import Joined, consumed, finish, finish_despite_failures, group_offsets, produce, running_broker, way
from ports import free_ports
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec
from streamjoin.io.base import SinkError, SourceError, Staged, UnavailableError
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig
from streamjoin.io.kafka_source import GROUP_SESSION, KafkaSource, KafkaSourceConfig, fair_shares
from streamjoin.io.ownership import OwnedElsewhere, Owner
from streamjoin.io.several import Sinks
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

TESTS = Path(__file__).parent
DECLARED = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
__all__ = ["way"]
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def other_broker() -> Iterator[KafkaBroker]:
    with running_broker() as started:
        yield started


@pytest.fixture
def mortal_broker(other_broker: KafkaBroker) -> KafkaBroker:
    """For a test that may kill it. It has few topics, and is soon there again."""
    if not other_broker.is_running:
        other_broker.start()
    return other_broker


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "k": i % 7, "at": f"2026-01-01T00:00:{i % 60:02d}Z"} for i in range(first, first + count)]


def source_of(
    broker: KafkaBroker,
    name: str,
    schema: pa.Schema = DECLARED,
    *,
    timeout: float = 20.0,
    client: tuple[tuple[str, str], ...] = (),
    **options: Any,
) -> KafkaSource:
    """``client``: options of librdkafka."""
    return KafkaSource(KafkaSourceConfig(KafkaClient(broker.servers, name, client, timeout), f"group-{name}", **options), schema)


def read_plan(source: KafkaSource, plan: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The records of a plan's splits, with their position in the stream as ``n``, and the rejected ones."""
    found, rejected = [], []
    for split in plan.splits:
        for records in source.reader.read(split):
            for offset, row in zip(records.offsets(), records.batch.to_pylist(), strict=True):
                found.append(row | {"n": split.first_record + int(offset)})
            rejected += records.rejected
    return found, rejected


def ids(found: Sequence[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


# --- the source ---


def test_every_record_is_planned_once_within_limits_that_partitions_share(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(3)
    for partition, count in enumerate((1000, 10, 300)):
        produce(broker, name, rows(10_000 * partition, count), partition)
    source = source_of(broker, name)
    position, seen = None, []
    for limit in (100, 600, 600, 600):
        plan = source.plan(position, limit, 0.0)
        assert plan == source_of(broker, name).plan(position, limit, 0.0), "a plan depends on nothing but the position and the topic"
        assert plan.records <= limit
        seen += read_plan(source, plan)[0]
        position = json.loads(json.dumps(plan.position))
        assert plan.end_record == len(seen)
        assert plan.backlog_records == 1310 - len(seen)
        if limit == 100:
            assert {split.partition: split.records for split in plan.splits} == {0: 45, 1: 10, 2: 45}
    assert sorted(ids(seen)) == sorted([*range(1000), *range(10_000, 10_010), *range(20_000, 20_300)])
    assert sorted(row["n"] for row in seen) == list(range(1310))
    assert plan.exhausted
    assert not source.plan(position, 100, 0.0).splits
    assert position.pop("id")
    assert position == {"topic": name, "offsets": {"0": 1000, "1": 10, "2": 300}, "records": 1310, "skipped": 0, "replaced": 0}


def test_shares_are_fair_and_leave_nobody_out() -> None:
    rng = random.Random(5)
    for _ in range(500):
        available = {partition: rng.choice([0, 1, rng.randint(0, 1000)]) for partition in range(rng.randint(1, 9))}
        limit = rng.randint(1, 2000)
        shares = fair_shares(available, limit)
        hungry = [shares[p] for p in available if shares[p] < available[p]]
        assert all(shares[p] >= min(1, available[p]) for p in available)
        assert sum(shares.values()) <= max(limit, sum(count > 0 for count in available.values()))
        assert not hungry or (max(shares.values()) <= min(hungry) + 1 and sum(shares.values()) >= limit - len(available))


def test_what_breaks_the_schema_is_rejected_with_its_offset(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    values: list[Any] = [
        {"id": 0, "k": 1, "at": "2026-01-01T00:00:00Z"},
        b"not json",
        None,
        b"",
        b" \n ",
        b'{"id": 5,\n "k": 2,\n "at": null}\n',
        b'{"id": 6, "k": "a\nb"}',
        b'{"id": 7} {"id": 7}',
        {"id": "x", "k": 1},
        b"\xff\xfe",
        {"id": 10, "k": None, "other": [1, {"a": 2}]},
        b'{"id": 11}\n{"id": 12}',
    ]
    produce(broker, name, values)
    source = source_of(broker, name)
    found, rejected = read_plan(source, source.plan(None, 100, 0.0))
    assert [(row["id"], row["n"]) for row in found] == [(0, 0), (5, 5), (10, 10)]
    assert sorted(r.position for r in rejected) == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    by_position = {r.position: r for r in rejected}
    assert by_position[1].raw == "not json"
    assert by_position[1].place == f"{name} partition 0 offset 1"
    assert by_position[2].error == "has no value (a tombstone)"
    assert by_position[3].error == "is empty"
    assert by_position[6].raw == '{"id": 6, "k": "a\nb"}', "as it was, line break and all"
    assert 'column id: "x" is not a value of BIGINT' in by_position[8].error
    assert by_position[9].raw.startswith("base64:")


def test_few_bad_records_among_many_are_found_with_their_text_and_offset(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name, rng = topic(), random.Random(8)
    bad = {offset: rng.choice([None, b"", b"\n", b"{", b'{"id": "no %d"}' % offset]) for offset in rng.sample(range(30_000), 12)}
    values = [json.dumps({"id": at, "k": at % 7, "at": "2026-01-01T00:00:00Z"}).encode() for at in range(30_000)]
    produce(broker, name, [bad.get(at, value) for at, value in enumerate(values)])
    source = source_of(broker, name)
    found, rejected = read_plan(source, source.plan(None, 100_000, 0.0))
    assert [(row["id"], row["n"]) for row in found] == [(at, at) for at in range(30_000) if at not in bad], "seed 8"
    assert sorted((r.position, r.raw) for r in rejected) == [(at, (value or b"").decode()) for at, value in sorted(bad.items())], "seed 8"
    assert all(r.place == f"{name} partition 0 offset {r.position}" for r in rejected)


def test_raw_records_are_columns(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    before = time.time()
    produce(broker, name, [(b"k0", b"v0"), (None, b"\xff"), (b"k2", None)], 1)
    instant = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", instant),
        ]
    )
    source = source_of(broker, name, schema, format="raw")
    found, rejected = read_plan(source, source.plan(None, 100, 0.0))
    assert not rejected
    assert [(r["key"], r["value"], r["topic"], r["partition"], r["offset"]) for r in found] == [
        ("k0", b"v0", name, 1, 0),
        (None, b"\xff", name, 1, 1),
        ("k2", None, name, 1, 2),
    ]
    assert all(before - 60 < r["timestamp"].timestamp() < time.time() + 60 for r in found)
    as_text = source_of(broker, name, pa.schema([("offset", pa.int64()), ("value", pa.string())]), format="raw")
    found, rejected = read_plan(as_text, as_text.plan(None, 100, 0.0))
    assert [(row["offset"], row["value"]) for row in found] == [(0, "v0"), (2, None)]
    assert [(item.position, item.error) for item in rejected] == [(1, "column value: is not UTF-8 (byte 0)")]


def test_any_range_reads_the_same_also_where_offsets_have_gaps(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    """Transactions leave gaps, aborted ones larger ones; consumers are kept and used again for other ranges."""
    name = topic(2)
    writing = Producer({"bootstrap.servers": broker.servers, "transactional.id": name, "linger.ms": 0})
    writing.init_transactions(PATIENCE_SECONDS)
    for turn in range(6):
        for aborted, part in ((False, rows(turn * 100, 50)), (True, rows(50_000, 20))):
            writing.begin_transaction()
            for row in part:
                writing.produce(name, json.dumps(row).encode(), partition=0)
            writing.flush(PATIENCE_SECONDS)
            if aborted:
                writing.abort_transaction(30)
            else:
                writing.commit_transaction(PATIENCE_SECONDS)
        produce(broker, name, rows(10_000 + turn * 100, 70), 1)
    # Each time that a consumer is sent elsewhere, it waits so long for what it asked before.
    source = source_of(broker, name, client=(("fetch.wait.max.ms", "10"),))
    plan = source.plan(None, 10_000, 0.0)
    found, rejected = read_plan(source, plan)
    committed = [range(turn * 100, turn * 100 + 50) for turn in range(6)] + [range(10_000 + t * 100, 10_070 + t * 100) for t in range(6)]
    assert sorted(ids(found)) == sorted(number for numbers in committed for number in numbers)
    assert not rejected
    assert len({row["n"] for row in found}) == len(found)
    assert plan.end_record == sum(split.end - split.start for split in plan.splits) > len(found)
    by_offset = {}
    for split in plan.splits:
        for records in source.reader.read(split):
            for offset, number in zip(records.offsets(), records.batch.column("id").to_pylist(), strict=True):
                by_offset[split.partition, split.start + int(offset)] = number
    rng = random.Random(11)
    for _ in range(60):
        whole = rng.choice(plan.splits)
        start = rng.randint(whole.start, whole.end - 1)
        end = rng.choice([whole.end, rng.randint(start + 1, whole.end)])
        part = type(whole)(first_record=0, records=end - start, partition=whole.partition, topic=name, start=start, end=end)
        got = [
            (start + int(offset), number)
            for records in source.reader.read(part)
            for offset, number in zip(records.offsets(), records.batch.column("id").to_pylist(), strict=True)
        ]
        assert got == sorted((o, n) for (p, o), n in by_offset.items() if p == whole.partition and start <= o < end), (part, "seed 11")
        if rng.random() < 0.3:
            next(iter(source.reader.read(part)), None)  # a reader that is given up


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts librdkafka's threads as Linux names them")
def test_a_reader_that_is_closed_leaves_no_consumer_and_reads_again(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    def clients() -> int:
        """Of librdkafka in this process: each has one thread of this name."""
        return sum(thread.read_text() == "rdk:main\n" for thread in Path("/proc/self/task").glob("*/comm"))

    name = topic(2)
    for partition in range(2):
        produce(broker, name, rows(100 * partition, 10), partition)
    source = source_of(broker, name)
    plan = source.plan(None, 100, 0.0)
    before = clients()
    for _ in range(2):
        assert len(read_plan(source, plan)[0]) == 20
        assert clients() > before
        source.reader.close()
        wait_for("the consumers' end", lambda: clients() == before)


def test_open_transactions_are_left_for_later(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    produce(broker, name, rows(0, 10))
    writing = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"open-{name}"})
    writing.init_transactions(PATIENCE_SECONDS)
    writing.begin_transaction()
    writing.produce(name, json.dumps(rows(10, 1)[0]).encode())
    writing.flush(PATIENCE_SECONDS)
    produce(broker, name, rows(20, 5))
    source = source_of(broker, name)
    plan = source.plan(None, 100, 0.0)
    assert ids(read_plan(source, plan)[0]) == list(range(10))
    writing.commit_transaction(PATIENCE_SECONDS)
    # The coordinator has decided; the partition's leader is told a moment later.
    wait_for("the end of the transaction", lambda: source.plan(plan.position, 100, 0.0).records > 0)
    rest = source.plan(plan.position, 100, 0.0)
    assert ids(read_plan(source, rest)[0]) == [10, 20, 21, 22, 23, 24]


@pytest.mark.parametrize("form", ["json", "raw"])
def test_a_checkpoint_begins_at_a_time(form: str, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(3)
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    for row in rows(0, 90):  # a record a second in turns, the last of them long ago in partition 2
        if row["id"] % 3 != 2 or row["id"] < 30:
            producer.produce(name, json.dumps(row).encode(), partition=row["id"] % 3, timestamp=1_700_000_000_000 + row["id"] * 1000)
    assert producer.flush(PATIENCE_SECONDS) == 0
    schema = DECLARED if form == "json" else pa.schema([("value", pa.string())])
    source = source_of(broker, name, schema, format=form, starting_millis=1_700_000_040_500)
    plan = source.plan(None, 1000, 0.0)
    found, _ = read_plan(source, plan)
    numbers = [row["id"] if form == "json" else json.loads(row["value"])["id"] for row in found]
    assert sorted(numbers) == [at for at in range(41, 90) if at % 3 != 2]
    produce(broker, name, rows(1000, 1), 2)
    assert source.plan(None, 1000, 0.0).records == plan.records + 1, "where it begins is looked up once"
    assert source.plan(plan.position, 1000, 0.0).records == 1


def test_keys_headers_and_times_are_columns_beside_those_of_the_value(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    headers: list[Any] = [[("trace", b"t0")], None, [("trace", b"no"), ("trace", b"t2"), ("x", b"\xff")], [("trace", b"\xff")], [], []]
    values = [b'{"id": %d}' % at for at in range(5)] + [b"bad"]
    for at, (value, given) in enumerate(zip(values, headers, strict=True)):
        key = None if at == 1 else b"k%d" % at if at < 5 else b"\xff"
        producer.produce(name, value, key, 1, headers=given, timestamp=1_700_000_000_000 + at)
    assert producer.flush(PATIENCE_SECONDS) == 0
    instant = pa.timestamp("us", "UTC")
    columns: dict[str, pa.DataType] = {"k": pa.string(), "id": pa.int64(), "sent": instant, "trace": pa.string(), "x": pa.binary()}
    columns |= {"p": pa.int32(), "o": pa.int64()}
    metadata = {"k": "key", "sent": "timestamp", "trace": "header:trace", "x": "header:x", "p": "partition", "o": "offset"}
    source = source_of(broker, name, pa.schema(list(columns.items())), metadata=tuple(metadata.items()))
    found, rejected = read_plan(source, source.plan(None, 100, 0.0))
    assert [(row["o"], row["p"], row["k"], row["id"], row["trace"], row["x"]) for row in found] == [
        (0, 1, "k0", 0, "t0", None),
        (1, 1, None, 1, None, None),
        (2, 1, "k2", 2, "t2", b"\xff"),
        (4, 1, "k4", 4, None, None),
    ]
    assert [row["sent"].timestamp() for row in found] == pytest.approx([1_700_000_000 + at / 1000 for at in (0, 1, 2, 4)])
    assert sorted((item.position, item.error[:40]) for item in rejected) == [
        (3, "column trace: is not UTF-8 (byte 0)"),
        (5, "is not a JSON object on one line: Expect"),
    ]
    without = {name: kind for name, kind in columns.items() if name not in ("trace", "x")}
    kept = tuple((name, kind) for name, kind in metadata.items() if name in without)
    source = source_of(broker, name, pa.schema(list(without.items())), metadata=kept)
    found, rejected = read_plan(source, source.plan(None, 100, 0.0))
    assert [(row["id"], row["k"]) for row in found] == [(0, "k0"), (1, None), (2, "k2"), (3, "k3"), (4, "k4")]
    assert len(rejected) == 1


def test_latest_begins_with_what_comes_and_new_partitions_are_read_from_their_start(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(1)
    produce(broker, name, rows(0, 10))
    source = source_of(broker, name, starting_offsets="latest")
    assert not source.plan(None, 100, 0.0).splits
    produce(broker, name, rows(100, 3))
    broker.add_partitions(name, 2)
    wait_for("the new partition", lambda: "1" in source.plan(None, 100, 0.0).position["offsets"])
    produce(broker, name, rows(200, 4), 1)
    plan = source.plan(None, 100, 0.0)
    assert ids(read_plan(source, plan)[0]) == [100, 101, 102, 200, 201, 202, 203]
    assert not source_of(broker, name, starting_offsets="latest").plan(plan.position, 100, 0.0).splits


def test_what_retention_took_is_an_error_or_a_counted_skip(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    produce(broker, name, rows(0, 100), 0)
    produce(broker, name, rows(1000, 10), 1)
    first = source_of(broker, name).plan(None, 20, 0.0)
    assert first.position["offsets"]["0"] == 10
    broker.delete_records(name, 0, 60)
    with pytest.raises(SourceError, match=rf"{name}.*partition 0 begins at offset 60, and 10 .* 50 records .*onDataLoss: skip"):
        source_of(broker, name).plan(first.position, 1000, 0.0)
    source = source_of(broker, name, on_data_loss="skip")
    plan = source.plan(first.position, 1000, 0.0)
    assert "removed 50 records of partition 0" in plan.warnings[0]
    assert plan.position["skipped"] == 50
    assert ids(read_plan(source, plan)[0]) == list(range(60, 100))
    assert source.plan(plan.position, 1000, 0.0).warnings == ()
    gone = first.splits[0]
    stale = type(gone)(first_record=0, records=5, partition=0, topic=name, start=10, end=15)
    with pytest.raises(UnavailableError, match="were there when the epoch was planned"):
        list(source.reader.read(stale))


def test_a_topic_that_is_another_one_is_refused(broker: KafkaBroker, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.5)
    name = topic()
    produce(broker, name, rows(0, 5))
    source = source_of(broker, name)
    position = source.plan(None, 100, 0.0).position
    for offsets, complaint in (({"0": 50}, "ends at offset 5, and was read up to 50"), ({"0": 5, "3": 1}, "partition 3 is gone")):
        with pytest.raises(SourceError, match=f"{complaint}.*choose a new checkpoint.location|{complaint}.*Choose a new"):
            source.plan(position | {"offsets": offsets}, 100, 0.0)
    with pytest.raises(SourceError, match=r"no-such-topic.*create the topic"):
        source_of(broker, "no-such-topic").plan(None, 100, 0.0)


def test_a_topic_that_was_made_anew_is_data_loss_also_where_it_is_longer(
    broker: KafkaBroker, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.5)
    name = topic(2)
    produce(broker, name, rows(0, 5))
    failing, skipping = source_of(broker, name), source_of(broker, name, on_data_loss="skip")
    position = failing.plan(None, 100, 0.0).position
    assert failing.plan(position | {"id": None}, 100, 0.0).position["id"] == position["id"], "an older position learns it"
    assert not failing.plan(position, 100, 0.0).splits

    broker.delete_topic(name)
    broker.create_topic(name, 2)
    for count in (3, 40):  # shorter than what was read, and longer
        produce(broker, name, rows(100, count))
        with pytest.raises(SourceError, match=rf"{name}.*made anew.*up to .*0: 5, 1: 0.*onDataLoss: skip.*new checkpoint.location"):
            failing.plan(position, 100, 0.0)
        plan = skipping.plan(position, 100, 0.0)
        assert ids(read_plan(skipping, plan)[0]) == [*range(100, 103), *(range(100, 140) if count == 40 else ())]
        assert "made anew" in plan.warnings[0]
        assert (plan.replacements, plan.position["replaced"], plan.end_record) == (1, 1, 5 + plan.records)
        assert plan.position["id"] != position["id"]
    after = skipping.plan(plan.position, 100, 0.0)
    assert (after.splits, after.warnings, after.replacements) == ((), (), 1)
    unknown = failing.plan(position | {"id": None}, 100, 0.0)
    assert ids(read_plan(failing, unknown)[0]) == list(range(102, 140)), "without an id, a longer topic passes for the one that was read"


def test_latest_of_a_topic_that_was_made_anew_before_the_first_commit_is_where_that_one_ends(
    broker: KafkaBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(broker, name, rows(0, 5))
    source = source_of(broker, name, starting_offsets="latest")
    assert source.plan(None, 100, 0.0).position["offsets"] == {"0": 5}
    broker.delete_topic(name)
    broker.create_topic(name)
    produce(broker, name, rows(0, 2))
    assert source.plan(None, 100, 0.0).position["offsets"] == {"0": 2}


def test_nobody_there_is_an_error_that_names_the_servers() -> None:
    client = KafkaClient("127.0.0.1:9", "orders", (), 1.5)
    source = KafkaSource(KafkaSourceConfig(client, "g"), DECLARED)
    with pytest.raises(UnavailableError, match=r"orders on 127\.0\.0\.1:9: no answer within 1.5 s .*; see whether the brokers are up"):
        source.plan(None, 100, 0.0)


def test_options_reach_librdkafka_and_secrets_come_from_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("secret\n")
    client = KafkaClient("b:1", "t", (("sasl.password", f"file:{tmp_path}/password"), ("sasl.username", "me")))
    settings = client.settings({"group.id": "g"}, SourceError)
    assert (settings["sasl.password"], settings["sasl.username"], settings["bootstrap.servers"]) == ("secret", "me", "b:1")
    assert "secret" not in repr(client)
    by_variable = KafkaClient("b:1", "t", (("sasl.password", "env:KAFKA_PASSWORD"),))
    monkeypatch.setenv("KAFKA_PASSWORD", "secret too")
    assert by_variable.settings({}, SourceError)["sasl.password"] == "secret too"
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(SourceError, match=r"kafka\.options\[sasl\.password\]: the variable KAFKA_PASSWORD is not set; set it where the dr"):
        by_variable.settings({}, SourceError)
    with pytest.raises(SourceError, match=r"kafka\.options\[sasl\.password\]: /no/where cannot be read \(No such file or directory\)"):
        KafkaClient("b:1", "t", (("sasl.password", "file:/no/where"),)).settings({}, SourceError)
    wrong = KafkaSource(KafkaSourceConfig(KafkaClient("b:1", "t", (("no.such.option", "1"),)), "g"), DECLARED)
    with pytest.raises(SourceError, match=r"no\.such\.option"):
        wrong.plan(None, 10, 0.0)


def test_commits_are_told_to_the_group(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    source = source_of(broker, name)
    source.committed({"offsets": {"0": 5, "1": 7}})
    source.committed({"offsets": {"0": 6, "1": 7}})
    wait_for("the group's offsets", lambda: group_offsets(broker, f"group-{name}", name, 2) == [6, 7])


# --- the sink ---

RESULT = pa.schema([("a", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2))])


def results(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    values = [[*numbers], [None if i % 5 == 0 else f'n"{i}' for i in numbers], [None] * count]
    return pa.record_batch([pa.array(v, item.type) for v, item in zip(values, RESULT, strict=True)], schema=RESULT)


def sink_of(broker: KafkaBroker, name: str, root: Path, key: str | None = None, timeout: float = 20.0) -> KafkaSink:
    client = KafkaClient(broker.servers, name, (), timeout)
    return KafkaSink(KafkaSinkConfig(client, "pairs", key), RESULT, ObjectStorage(str(root)))


def test_results_are_sent_with_identities_only_when_they_are_published(
    broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name, storage = topic(3), ObjectStorage(str(tmp_path))
    sink = sink_of(broker, name, tmp_path)
    staged = []
    for task in range(2):
        writer = sink.writer(f"0a1b-000001-000000000007-0000{task}-abc", f"0a1b-000000000007-0000{task}")
        writer.write(results(100 * task, 30))
        writer.write(results(100 * task + 30, 3))
        staged += writer.close()
    assert consumed(broker, name) == []
    staged = [Staged.from_json(json.loads(json.dumps(file.to_json()))) for file in staged]
    sink.publish(staged)
    found = consumed(broker, name)
    assert {identity for identity, _, _ in found} == {f"pairs/0a1b/7/{task}/{row}" for task in range(2) for row in range(33)}
    for identity, key, value in found:
        task, row = (int(part) for part in identity.split("/")[3:])
        assert key == identity.encode()
        assert json.loads(value) == {"a": 100 * task + row, "name": results(100 * task + row, 1)[1][0].as_py(), "price": None}
    sink.publish(staged)
    sink_of(broker, name, tmp_path).publish(staged, again=True)
    assert len(consumed(broker, name)) == 66, "what has been sent is noted, also for the next driver"
    assert storage.list("outbox") == ["outbox/sent"]
    assert sink.sweep(lambda stem: stem != "sent") == 0, "the note stays until the next epoch has been published"
    writer = sink.writer("0a1b-000001-000000000008-00000-abc", "0a1b-000000000008-00000")
    writer.write(results(0, 1))
    after = writer.close()
    sink.publish(after)
    assert storage.list("outbox") == ["outbox/sent"]


def test_another_cluster_under_a_checkpoint_is_refused_and_another_address_of_it_is_not(
    broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, owner = topic(), Owner("0a1b", "state/one")
    sink_of(broker, name, tmp_path).claim(owner, takes=False)
    sink = sink_of(broker, name, tmp_path)
    writer = sink.writer("0a1b-000001-000000000007-00000-abc", "0a1b-000000000007-00000")
    writer.write(results(0, 1))
    sink.publish(writer.close())
    by_name = KafkaClient(broker.servers.replace("127.0.0.1", "localhost"), name, (), 20.0)
    KafkaSink(KafkaSinkConfig(by_name, "pairs"), RESULT, ObjectStorage(str(tmp_path))).claim(owner, takes=False)
    monkeypatch.setattr(KafkaClient, "cluster", lambda *_: "another")
    with pytest.raises(OwnedElsewhere, match=r"is of cluster another, and .* correct kafka.bootstrapServers, or choose a new"):
        sink_of(broker, name, tmp_path).claim(owner, takes=False)
    sink_of(broker, topic(), tmp_path).claim(owner, takes=False)


def test_each_of_several_joins_notes_by_itself_what_it_has_sent(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    """Also to one topic: a driver that starts again sends nothing of either twice."""
    name, storage = topic(), ObjectStorage(str(tmp_path))

    def sinks() -> Sinks:
        client = KafkaClient(broker.servers, name, (), 20.0)
        return Sinks({join: KafkaSink(KafkaSinkConfig(client, "pairs", None, join), RESULT, storage) for join in ("near", "far/off")})

    writers = sinks().writers("0a1b-000001-000000000007-00000-abc", "0a1b-000000000007-00000")
    for join, count in (("near", 3), ("far/off", 2)):
        writers.write(join, results(0, count))
    staged = [Staged.from_json(json.loads(json.dumps(file.to_json()))) for join in ("near", "far/off") for file in writers.close(join)]
    sinks().publish(staged)
    sinks().publish(staged, again=True)
    found = [identity for identity, _, _ in consumed(broker, name)]
    near, far = ([f"pairs/{join}/0a1b/7/0/{row}" for row in range(count)] for join, count in (("near", 3), ("far%2Foff", 2)))
    assert sorted(found) == sorted(near + far)
    assert storage.list("outbox") == ["outbox/sent-far%2Foff", "outbox/sent-near"]


def test_a_column_may_be_the_key(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    for column, wanted in (("NAME", [None, b'n"1', b'n"2']), ("a", [b"0", b"1", b"2"]), ("price", [None, None, None])):
        name = topic()
        sink = sink_of(broker, name, tmp_path / column, key=column)
        writer = sink.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
        writer.write(results(0, 3))
        sink.publish(writer.close())
        found = [(identity, key) for identity, key, _ in consumed(broker, name)]
        assert found == [(f"pairs/0a1b/0/0/{i}", key) for i, key in enumerate(wanted)]


def test_staged_results_are_removed_by_abort_and_sweep_and_missed_when_lost(
    broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    sink, storage = sink_of(broker, topic(), tmp_path), ObjectStorage(str(tmp_path))
    writer = sink.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
    writer.write(results(0, 3))
    writer.close()
    writer.abort()
    assert storage.list("outbox") == []
    writer = sink.writer("0a1b-000001-000000000000-00000-y", "0a1b-000000000000-00000")
    writer.write(results(0, 3))
    staged = writer.close()
    assert sink.sweep(lambda stem: not stem.startswith("0a1b-000001-000000000000-00000-y")) == 0
    assert sink.sweep(lambda stem: stem.startswith("0a1b-000001-000000000000-00000-y")) == 1
    with pytest.raises(SinkError, match=r"outbox/.*: these 3 committed results are gone"):
        sink.publish(staged)


def test_what_the_brokers_refuse_is_told_with_its_remedy(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    big = sink_of(broker, topic(), tmp_path / "big")
    writer = big.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
    writer.write(pa.record_batch([pa.array([1]), pa.array(["x" * 2_000_000]), pa.array([None], RESULT.field(2).type)], schema=RESULT))
    staged = writer.close()
    with pytest.raises(SinkError, match=r"raise message\.max\.bytes"):
        big.publish(staged)
    missing = sink_of(broker, "no-such-topic", tmp_path / "missing", timeout=2.0)
    writer = missing.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
    writer.write(results(0, 3))
    staged = writer.close()
    with pytest.raises((SinkError, UnavailableError), match="no-such-topic on"):
        missing.publish(staged)


# --- whole joins ---


def test_a_consumer_sees_the_oracles_rows_and_bad_records_are_dead_letters(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path)
    driver = join.driver()
    driver.start()
    for turn in range(3):
        join.feed(60)
        if turn == 1:
            produce(broker, join.topics[0], [b"not json", {"rid": "x"}, {"rid": 1, "k": 1, "at": None}], 1)
        finish(driver)
    found, repeats = join.found()
    assert found == join.expected()
    assert sum(found.values()) > 1000
    assert repeats == 0
    letters = [json.loads(line) for path in (tmp_path / "state/dead-letters").glob("*.json") for line in path.read_text().splitlines()]
    assert [letter["stream"] for letter in letters] == ["l"] * 3
    assert {letter["raw"] for letter in letters} >= {"not json", '{"rid": "x"}'}
    assert all(join.topics[0] in letter["split"] for letter in letters)
    assert set(driver.checkpoint.input.partitions[0]) == {0, 1}
    wait_for("the group's offsets", lambda: group_offsets(broker, "streamjoin-pairs", join.topics[0], 2) == [180, 183])
    restarted = join.driver()
    restarted.start()
    finish(restarted)
    assert join.found() == (found, 0), "a driver that was stopped between epochs repeats nothing"


def test_a_new_checkpoint_repeats_no_identity_of_an_old_one(broker: KafkaBroker, tmp_path: Path) -> None:
    """Two checkpoints of one join, one after the other, into one topic: a reader that knows the first one's identities sees all of both."""
    join = Joined(broker, tmp_path)
    join.feed(60)
    checkpoints = []
    for location in ("state", "state-of-another"):
        job = compile_job(load((tmp_path / "join.yaml").read_text().replace("/state", f"/{location}")))
        driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner())
        driver.start()
        finish(driver)
        checkpoints.append(driver.checkpoint.identity)
    found, repeats = join.found()
    once = join.expected()
    assert found == Counter({pair: 2 * count for pair, count in once.items()})
    assert sum(once.values()) > 100
    assert repeats == 0
    written = Counter(identity.split("/")[1] for identity, _, _ in consumed(broker, join.topics[2]))
    assert written == dict.fromkeys(checkpoints, sum(once.values()))


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_what_retention_took_ends_the_run_or_is_skipped_and_counted(on_data_loss: str, broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, partitions=1, epoch=50, source={"onDataLoss": on_data_loss})
    join.feed(60)
    driver = join.driver()
    driver.start()
    driver.step()
    position = driver.checkpoint.input.positions[0]
    assert position is not None
    read = position["offsets"]["0"]
    broker.delete_records(join.topics[0], 0, read + 15)
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle", "--json"])
    if on_data_loss == "fail":
        assert done.exit_code == Exit.SOURCE, done.output
        complaint = rf"partition 0 begins at offset {read + 15}, and {read} is the next to be read: retention removed 15 records"
        assert re.search(rf"streamjoin: .*{join.topics[0]}.*{complaint}.*Set kafka\.onDataLoss: skip", done.stderr)
        return
    assert done.exit_code == Exit.DONE, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    told = [warning for record in records for warning in record.get("warnings", [])]
    assert len(told) == 1
    assert "retention removed 15 records of partition 0 before they were read; they are skipped (15 in all)" in told[0]
    del join.rows[0][read : read + 15]
    assert join.found() == (join.expected(), 0)


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    value = metrics.registry.get_sample_value(f"streamjoin_{name}", {"name": "pairs"} | labels)
    assert value is not None, f"{name} {labels} is not there"
    return value


def test_metrics_say_what_the_brokers_say(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, epoch=60, source={"onDataLoss": "skip"})
    metrics = Metrics(join.job)
    driver = join.driver()
    watched = Steps(driver, [metrics])
    watched.start()
    join.feed(60)
    result = watched.step()
    assert result is not None
    position = driver.checkpoint.input.positions[0]
    assert position is not None
    lags = [sample(metrics, "kafka_lag_records", stream="l", topic=join.topics[0], partition=str(partition)) for partition in (0, 1)]
    assert lags == [60 - position["offsets"][str(partition)] for partition in (0, 1)]
    assert sum(lags) == sample(metrics, "backlog_records", stream="l") == 90
    broker.delete_records(join.topics[0], 1, 60)
    broker.delete_records(join.topics[1], 0, 58)
    while watched.step(final=True) is not None:
        pass
    ends = [
        sample(metrics, "kafka_lag_records", stream=name, topic=topic, partition=str(partition))
        for name, topic in zip("lr", join.topics, strict=False)
        for partition in (0, 1)
    ]
    assert ends == [0] * 4
    lost = {name: sample(metrics, "kafka_skipped_records_total", stream=name) for name in "lr"}
    assert lost == {"l": 15, "r": 13}, "what one epoch and the two in flight had not taken yet"
    assert {name: 120 - sample(metrics, "input_records_total", stream=name) for name in "lr"} == lost
    records = consumed(broker, join.topics[2])
    assert sample(metrics, "kafka_sent_records_total") == len(records) == sample(metrics, "output_rows_total")
    assert sample(metrics, "kafka_sent_bytes_total") == sum(len(key or b"") + len(value) for _, key, value in records)
    assert sample(metrics, "kafka_send_failures_total") == 0
    again = Metrics(join.job)
    Steps(join.driver(), [again]).start()
    for name in "lr":
        assert sample(again, "kafka_skipped_records_total", stream=name) == lost[name], "that goes on where it was"
    assert sample(again, "kafka_sent_records_total") == 0


def test_an_outage_of_large_records_is_read_in_epochs_that_fit(broker: KafkaBroker, tmp_path: Path) -> None:
    """Small records are followed by 20 MB of large ones, which a driver meets unprepared; the one after it knows how large they are."""
    join = Joined(broker, tmp_path, partitions=1)
    text = join.manifest.read_text().replace("at TIMESTAMP", "at TIMESTAMP, pad STRING").replace("{maxTuples: 200}", "{maxBytes: 2Mi}")
    join.job = compile_job(load(text))
    specs: list[EpochSpec] = []

    class Recorded(InlineRunner):
        def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
            specs.append(spec)
            return super().submit(spec, workers)

    driver = join.driver(Recorded())
    join.feed(2000)
    driver.start()
    results = []
    while (result := driver.step()) is not None:
        results.append(result)
    assert len(results) == len(specs) == 1
    join.feed(1000, pad="x" * 10_000)
    results += [driver.step(), driver.step()]
    driver.stop()
    attempts = len(specs)
    assert len(results) < attempts <= len(results) + 4
    assert driver.checkpoint.input.widths == pytest.approx((10_050, 10_050), abs=30)

    results += run_all(join.driver(Recorded()))
    assert len(specs) == attempts + len(results) - 3, "no attempt of the second driver was in vain"
    taken = [sum(result.counts["input_bytes"]) for result in results]
    assert sum(taken) > 20_000_000
    assert max(taken) <= 2 << 20
    assert join.found() == (join.expected(), 0)


def test_a_driver_that_is_given_up_keeps_nobody_waiting(broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells the group is ended in order: only dropped, it waits for a session's timeout, in whichever thread drops it."""
    monkeypatch.setitem(GROUP_SESSION, "session.timeout.ms", 1_800_000)  # the longest that brokers take
    join = Joined(broker, tmp_path)
    join.feed(20)
    driver = join.driver()
    driver.start()
    finish(driver)
    kept = [driver]
    del driver

    def drop() -> None:
        kept.clear()
        gc.collect()

    dropping = threading.Thread(target=drop, daemon=True)
    dropping.start()
    dropping.join(PATIENCE_SECONDS)
    assert not dropping.is_alive()


def test_new_partitions_are_joined_too(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, partitions=1)
    driver = join.driver()
    driver.start()
    join.feed(80)
    finish(driver)
    for name in join.topics[:2]:
        broker.add_partitions(name, 3)
    join.partitions = 3
    source = driver._commits.sources[0]
    wait_for("the partitions", lambda: len(source.plan(driver.checkpoint.input.positions[0], 10, 0.0).position["offsets"]) == 3)
    join.feed(50)
    finish(driver)
    assert join.found() == (join.expected(), 0)


@pytest.mark.parametrize("step", ["tasks", "commit", "publish", "clean", "sent"])
def test_a_driver_that_dies_at_any_step_loses_nothing_and_repeats_only_under_the_same_identity(
    step: str, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sent``: the records are with the brokers, and the note of it is not."""
    join = Joined(broker, tmp_path, epoch=150)
    join.feed(100)
    visits = iter(range(1000))

    def die(at: str) -> None:
        if at == step and next(visits) == 1:
            raise Crash(at)

    put = ObjectStorage.put

    def dying_put(storage: ObjectStorage, path: str, data: Any) -> None:
        if path == "outbox/sent":
            die("sent")
        put(storage, path, data)

    monkeypatch.setattr(ObjectStorage, "put", dying_put)
    first = join.driver(at=die)
    first.start()
    with pytest.raises(Crash):
        finish(first)
    second = join.driver()
    second.start()
    finish(second)
    found, repeats = join.found()
    assert found == join.expected()
    assert (repeats > 0) == (step == "sent")
    assert len(ObjectStorage(join.job.checkpoint).list("outbox")) <= 1


@pytest.mark.parametrize("moment", ["staged", "half-sent"])
def test_a_driver_process_is_killed_between_producing_and_committing(moment: str, broker: KafkaBroker, tmp_path: Path) -> None:
    """SIGKILL when an epoch's results are staged and not committed; and when they are committed and only some of them are sent."""
    join = Joined(broker, tmp_path, epoch=400)
    join.feed(200)
    command = [sys.executable, str(TESTS / "kafka_victim.py"), str(tmp_path)]
    killed, done = (
        subprocess.run([*command, when], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=os.environ)
        for when in (moment, "never")
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    found, repeats = join.found()
    assert found == join.expected()
    assert (repeats > 0) == (moment == "half-sent")


def test_a_full_queue_is_waited_for(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic(2)
    client = KafkaClient(broker.servers, name, (("queue.buffering.max.messages", "100"),))
    for key in (None, "a"):
        sink = KafkaSink(KafkaSinkConfig(client, f"full-{key}", key), RESULT, ObjectStorage(str(tmp_path / str(key))))
        writer = sink.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
        writer.write(results(0, 1000))
        sink.publish(writer.close())
    found = consumed(broker, name)
    assert {identity for identity, _, _ in found} == {f"full-{key}/0a1b/0/0/{row}" for key in (None, "a") for row in range(1000)}
    assert len(found) == 2000


def test_the_broker_dies_and_comes_back(mortal_broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(mortal_broker, tmp_path, timeout="2s")
    driver, metrics = join.driver(), Metrics(join.job)
    watched = Steps(driver, [metrics])
    watched.start()
    join.feed(60)
    finish_despite_failures(watched)
    join.feed(60)
    met_with = sample(metrics, "kafka_source_errors_total", stream="l")
    mortal_broker.kill()
    with pytest.raises(EpochFailed, match=r"UnavailableError: Kafka topic join-l-.* on 127.*: no answer within 2 s") as failure:
        watched.step()
    assert not failure.value.permanent
    assert sample(metrics, "kafka_source_errors_total", stream="l") > met_with
    mortal_broker.start()
    finish_despite_failures(watched)
    join.feed(40)

    def kill(at: str) -> None:
        if at == "publish":
            mortal_broker.kill()

    driver._phase.at = kill
    before, met_with = sample(metrics, "kafka_send_failures_total"), sample(metrics, "kafka_sink_errors_total")
    finish_despite_failures(watched, r"UnavailableError: Kafka topic join-out-.*: not all records were acknowledged within 2 s")
    assert sample(metrics, "kafka_send_failures_total") > before
    assert sample(metrics, "kafka_sink_errors_total") > met_with
    driver._phase.at = lambda step: None
    mortal_broker.start()
    finish_despite_failures(watched)
    found, _ = join.found()
    assert found == join.expected()
    assert sample(metrics, "kafka_sent_records_total") == sum(found.values()), "an epoch counts when it was sent whole"


def test_results_that_a_dead_driver_left_are_sent_by_one_that_starts_while_the_brokers_are_away(
    mortal_broker: KafkaBroker, tmp_path: Path
) -> None:
    join = Joined(mortal_broker, tmp_path, timeout="1s", epoch=150)
    join.feed(60)

    def die(at: str) -> None:
        if at == "publish" and first.checkpoint.epoch == 1:
            raise Crash(at)

    first = join.driver(at=die)
    first.start()
    with pytest.raises(Crash):
        finish_despite_failures(first)  # a second is short on a busy machine
    mortal_broker.kill()
    storage = ObjectStorage(join.job.checkpoint)
    left = storage.list("outbox")
    second = join.driver()
    second.start()
    assert not second.is_published
    with pytest.raises(EpochFailed, match=r"epoch 1: UnavailableError: Kafka topic join-out-.*: not all records") as failure:
        second.step()
    assert not failure.value.permanent
    assert storage.list("outbox") == left, "what is committed stays until it is sent"
    mortal_broker.start()
    finish_despite_failures(second)
    join.feed(20)
    finish_despite_failures(second)
    found, _ = join.found()
    assert found == join.expected()
    assert len(storage.list("outbox")) <= 1, "what start could not sweep away is gone with the next epoch"


def test_brokers_that_stay_away_end_a_run_after_some_attempts_with_one_sentence(tmp_path: Path) -> None:
    nobody = SimpleNamespace(servers=f"127.0.0.1:{free_ports(1)[0]}", create_topic=lambda name, partitions: name)
    join = Joined(cast(KafkaBroker, nobody), tmp_path, timeout="500ms")
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline"])
    assert done.exit_code == Exit.SOURCE, done.output
    tried = rf"epoch 0: UnavailableError: Kafka topic {join.topics[2]} on {nobody.servers}: no answer within 0.5 s \(.*\); see whether the"
    assert len(re.findall(rf"{tried}.*; attempt [123] failed, trying again in", done.output)) == 3
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("streamjoin: ")]
    assert re.search(rf"^streamjoin: {tried} brokers are up.*run the same command: it goes on after the last committed epoch$", sentence)


def test_records_of_a_partition_behind_are_not_late(broker: KafkaBroker, tmp_path: Path) -> None:
    """One partition's event times run ahead by an hour; the other's still find their partners."""
    join = Joined(broker, tmp_path, watermark="0s", epoch=100_000)
    driver = join.driver()
    driver.start()
    ahead = [{"rid": 10_000 + i, "k": 1_000_000, "at": f"2026-01-01T01:00:{i:02d}Z"} for i in range(10)]
    behind = [{"rid": i, "k": 5, "at": f"2026-01-01T00:00:{i:02d}Z"} for i in range(10)]
    for at in range(10):
        for name in join.topics[:2]:
            produce(broker, name, ahead[at : at + 1], 0)
            produce(broker, name, behind[at : at + 1], 1)
        finish(driver)
    assert driver.checkpoint.totals["late"] == [0, 0]
    found, _ = join.found()
    assert {(a, b) for a, b in found if a < 100 and b < 100} == {(a, b) for a in range(10) for b in range(10) if abs(a - b) <= 4}
    assert driver.checkpoint.input.watermarks[0] == 1_767_225_609 * SECOND


def test_a_partition_that_falls_silent_holds_the_watermark_back_for_its_idle_time(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, watermark="1s", source={"idleTimeout": "30s"})
    clock = SimpleNamespace(now=1_800_000_000.0)
    driver = join.driver(clock=lambda: clock.now)
    driver.start()

    def watermark_after(later: float, *records: tuple[int, int]) -> float | None:
        """When so much time has passed, and the left topic has got records of these partitions at these seconds."""
        clock.now += later
        for partition, second in records:
            produce(broker, join.topics[0], [{"rid": 1, "k": 1, "at": f"2026-01-01T00:00:{second:02d}Z"}], partition)
        finish(driver)
        mark = driver.checkpoint.input.watermarks[0]
        return None if mark is None else mark / SECOND - 1_767_225_600

    assert watermark_after(0, (0, 10)) == 9, "a partition without records is not waited for"
    assert watermark_after(1, (0, 20), (1, 15)) == 14
    assert watermark_after(20, (0, 30)) == 14
    assert watermark_after(10, (0, 40)) == 14
    assert watermark_after(1, (0, 50)) == 49, "the other one has said nothing for 31 s"
    assert watermark_after(1, (0, 55), (1, 16)) == 49, "it never goes back"
    assert watermark_after(1, (1, 57)) == 54
