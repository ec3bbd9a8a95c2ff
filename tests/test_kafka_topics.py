"""Kafka sources of topics by pattern, against a real broker: which topics are read, from where, and what is said of those that go.

What must hold is checked from outside: see ``kafka_join``.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition

from harness import Crash
from kafka_broker import KafkaBroker
from kafka_join import NAMES, Joined, finish, produce, way
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.compilation import compile_job
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.io.base import SourceError, SourcePlan, UnavailableError
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_records import Event, KafkaSplit
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from streamjoin.language.topics import matches
from streamjoin.manifest import load
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from waiting import PATIENCE_SECONDS, Sleepless, wait_for

NUMBERED = pa.schema([("id", pa.int64()), ("topic", pa.string()), ("part", pa.int32())])
PLACE = (("topic", "topic"), ("part", "partition"))
__all__ = ["way"]
pytestmark = pytest.mark.kafka


class Topics:
    """Topics of one test, whose names begin alike, and sources of them."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.stem = f"many-{next(NAMES)}"
        self.pattern = f"{self.stem}-.*"
        self.client = KafkaClient(broker.servers, self.pattern, (("fetch.wait.max.ms", "10"),), 20.0, is_pattern=True)

    def make(self, name: str, partitions: int = 1) -> str:
        return self.broker.create_topic(f"{self.stem}-{name}", partitions)

    def put(self, name: str, first: int, count: int, partition: int = 0) -> None:
        produce(self.broker, f"{self.stem}-{name}", [{"id": number} for number in range(first, first + count)], partition)

    def source(self, pattern: str | None = None, **options: Any) -> KafkaSource:
        client = self.client if pattern is None else KafkaClient(self.broker.servers, pattern, (), 20.0, is_pattern=True)
        return KafkaSource(KafkaSourceConfig(client, f"group-{self.stem}", metadata=PLACE, discovery_seconds=0.0, **options), NUMBERED)

    def one(self, name: str) -> KafkaSource:
        client = KafkaClient(self.broker.servers, f"{self.stem}-{name}")
        return KafkaSource(KafkaSourceConfig(client, f"group-{self.stem}", metadata=PLACE), NUMBERED)


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return Topics(broker)


def read(source: KafkaSource, plan: SourcePlan) -> list[tuple[str, int, int]]:
    """(last part of the topic's name, partition, id) of the plan's records, in order."""
    batches = [records.batch.to_pylist() for split in plan.splits for records in source.reader.read(split)]
    return sorted((row["topic"].rpartition("-")[2], row["part"], row["id"]) for rows in batches for row in rows)


def numbers(found: list[tuple[str, int, int]]) -> list[int]:
    return [number for _, _, number in found]


def test_a_pattern_means_whole_names_and_none_of_kafkas_own() -> None:
    assert [name for name in ("orders-eu", "my-orders-eu", "orders-", "orders") if matches("orders-.+", name)] == ["orders-eu"]
    assert not matches(".*", "__consumer_offsets")
    assert not matches("__consumer_offsets", "__consumer_offsets")
    assert matches("orders-(eu|us)|returns", "returns")


def test_every_record_of_every_topic_is_planned_once_with_its_place(topics: Topics) -> None:
    wanted = []
    for at, (name, partitions) in enumerate((("a", 2), ("b", 1), ("c", 3))):
        topics.make(name, partitions)
        for partition in range(partitions):
            first, count = 1000 * at + 100 * partition, 20 + 7 * partition
            topics.put(name, first, count, partition)
            wanted += [(name, partition, number) for number in range(first, first + count)]
    topics.broker.create_topic(f"other-{topics.stem}-a")
    source, position, seen = topics.source(), None, []
    while len(seen) < len(wanted):
        plan = source.plan(position, 50, 0.0)
        assert plan == topics.source().plan(position, 50, 0.0), "a plan depends on nothing but the position and the topics"
        assert 0 < plan.records <= 50
        seen += read(source, plan)
        position = json.loads(json.dumps(plan.position))
        assert (plan.end_record, plan.backlog_records) == (len(seen), len(wanted) - len(seen))
    assert sorted(seen) == wanted
    assert plan.exhausted
    assert len(plan.backlog_by_partition) == 6
    assert {(name.rpartition("-")[2], partition) for name, partition in plan.topics.values()} == {
        (name, partition) for name, partition, _ in wanted
    }
    offsets = {name.rpartition("-")[2]: read["offsets"] for name, read in position["topics"].items()}
    assert offsets == {"a": {"0": 20, "1": 27}, "b": {"0": 20}, "c": {"0": 20, "1": 27, "2": 34}}
    source.committed(position)
    watcher = Consumer({"bootstrap.servers": topics.broker.servers, "group.id": f"group-{topics.stem}"})
    places = [TopicPartition(f"{topics.stem}-{name}", partition) for name, partition in (("a", 1), ("b", 0), ("c", 2))]
    wait_for("the group's offsets", lambda: [each.offset for each in watcher.committed(places, timeout=PATIENCE_SECONDS)] == [27, 20, 34])
    watcher.close()


def test_a_plan_takes_as_many_requests_whatever_the_number_of_topics(topics: Topics) -> None:
    asked: Counter[str] = Counter()

    class Counting:
        def __init__(self, admin: Any) -> None:
            self._admin = admin

        def __getattr__(self, name: str) -> Any:
            asked[name] += 1
            return getattr(self._admin, name)

    source = topics.source()
    source.plan(None, 100, 0.0)
    source._brokers._admin = Counting(source._brokers._admin)
    for count in (1, 6):
        for number in range(count):
            topics.make(f"{count}x{number}")
        plan = source.plan(None, 100, 0.0)
        asked.clear()
        again = source.plan(plan.position, 100, 0.0)
        assert {name: asked[name] for name in ("list_topics", "describe_topics", "list_offsets")} == {
            "list_topics": 1,
            "describe_topics": 1,
            "list_offsets": 3,
        }
    assert len(again.position["topics"]) == 7
    source._brokers._discovery_seconds = 3600.0
    source.plan(plan.position, 100, 0.0)
    asked.clear()
    source.plan(plan.position, 100, 0.0)
    assert asked["list_topics"] == 0, "which topics there are is asked once an interval"


def test_a_partition_whose_end_is_not_known_for_a_moment_is_asked_for_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka may answer without an offset, and without an error, while the partition's leader comes back."""
    topics.make("back")
    topics.put("back", 0, 10)
    source = topics.source()
    position = source.plan(None, 100, 0.0).position
    topics.put("back", 0, 5)
    answers = 0

    class Unsure:
        def __init__(self, admin: Any) -> None:
            self._admin = admin

        def __getattr__(self, name: str) -> Any:
            return getattr(self._admin, name)

        def list_offsets(self, partitions: dict[TopicPartition, Any], **options: Any) -> Any:
            nonlocal answers
            answers += 1
            found = self._admin.list_offsets(partitions, **options)
            if answers > 6:
                return found
            unknown: Future[Any] = Future()
            unknown.set_result(SimpleNamespace(offset=OFFSET_INVALID))
            return dict.fromkeys(found, unknown)

    source._brokers._admin = Unsure(source._brokers._admin)
    assert source.plan(position, 100, 0.0).records == 5
    assert answers == 9
    answers = -1_000
    monkeypatch.setattr("streamjoin.io.kafka_topics.time", Sleepless())
    with pytest.raises(UnavailableError, match="Leader not available"):
        source.plan(position, 100, 0.0)


@pytest.mark.parametrize("begins", ["latest", "timestamp"])
def test_where_a_checkpoint_begins_is_said_of_the_topics_that_are_there_then(begins: str, topics: Topics) -> None:
    topics.make("old", 2)
    topics.put("old", 0, 10)
    options = {"starting_offsets": "latest"} if begins == "latest" else {"starting_millis": 4_000_000_000_000}
    source = topics.source(**options)
    first = source.plan(None, 100, 0.0)
    assert not first.splits
    topics.make("new")
    topics.put("new", 100, 5)
    topics.put("old", 10, 3)
    found = [("new", 0, number) for number in range(100, 105)] + [("old", 0, number) for number in (10, 11, 12)]
    wait_for("both topics", lambda: source.plan(None, 100, 0.0).records == 8)
    plan = source.plan(None, 100, 0.0)
    assert read(source, plan) == found, "before the first commit"
    assert read(source, topics.source(**options).plan(first.position, 100, 0.0)) == found, "and after it"


def test_while_no_topic_matches_nothing_is_read_and_the_plan_says_so(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    source = topics.source(starting_offsets="latest")
    for _ in range(2):
        plan = source.plan(None, 100, 0.0)
        assert (plan.splits, plan.records, plan.exhausted) == ((), 0, True)
        assert plan.warnings == (
            f"Kafka topics that match {topics.pattern} on {topics.broker.servers}: there is none; those that appear are read from their"
            " start",
        )
    assert len([record for record in caplog.records if "there is none" in record.message]) == 1
    topics.make("a")
    topics.put("a", 0, 3)
    assert numbers(read(source, source.plan(plan.position, 100, 0.0))) == [0, 1, 2]
    after = source.plan(None, 100, 0.0)
    assert numbers(read(source, after)) == [0, 1, 2], "it was not there at the first look"
    assert after.warnings == ()


def test_a_topic_that_is_deleted_ends_the_run_or_is_counted_and_may_come_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.3)
    for name in ("a", "b"):
        topics.make(name, 2)
        topics.put(name, 0, 10, 1)
    failing, skipping = topics.source(), topics.source(on_data_loss="skip")
    position = failing.plan(None, 100, 0.0).position
    topics.broker.delete_topic(f"{topics.stem}-a")
    topics.put("b", 10, 5, 1)
    complaint = rf"Kafka topic {topics.stem}-a on .*: the topic was deleted \(.*: 0: 0, 1: 10\).*onDataLoss: skip to go on without it"
    with pytest.raises(SourceError, match=complaint):
        failing.plan(position, 100, 0.0)
    plan = skipping.plan(position, 100, 0.0)
    assert numbers(read(skipping, plan)) == list(range(10, 15))
    assert re.search(r"-a on .*: the topic was deleted .* is lost, and the others are read on", plan.warnings[0])
    assert (plan.deletions, plan.replacements, len(plan.backlog_by_partition)) == (1, 0, 2)
    known = set(plan.backlog_by_partition)
    topics.make("a")
    topics.put("a", 100, 2)
    wait_for("the topic of the same name", lambda: skipping.plan(plan.position, 100, 0.0).records == 2)
    again = skipping.plan(plan.position, 100, 0.0)
    assert (again.warnings, again.deletions, again.end_record) == ((), 1, plan.end_record + 2)
    assert read(skipping, again) == [("a", 0, 100), ("a", 0, 101)]
    assert not (set(again.backlog_by_partition) - known) & set(range(4)), "it is another partition for watermarks"
    topics.broker.delete_topic(f"{topics.stem}-b")
    topics.make("b")
    topics.put("b", 200, 1)
    anew = skipping.plan(again.position, 100, 0.0)
    assert read(skipping, anew) == [("b", 0, 200)]
    assert (anew.deletions, anew.replacements) == (1, 1)
    assert "-b on" in anew.warnings[0]
    assert "made anew" in anew.warnings[0]


def test_a_consumer_that_goes_from_topic_to_topic_reads_each_range_as_it_is(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same partitions and offsets: a record of another topic, or its end, is none of this one's. More of them than consumers."""
    monkeypatch.setattr("streamjoin.io.kafka_session.SESSIONS_OF_MANY", 3)
    rng, names = random.Random(23), "abc"
    for at, name in enumerate(names):
        topics.make(name, 2)
        for partition in range(2):
            topics.put(name, 1000 * at + 500 * partition, 120, partition)
    source = topics.source()
    splits: list[Any] = list(source.plan(None, 10_000, 0.0).splits)
    assert len(splits) == 6
    for turn in range(40):
        whole = rng.choice(splits)
        start = rng.randint(0, 119)
        end = rng.choice([120, rng.randint(start + 1, 120)])
        place: dict[str, Any] = {"partition": whole.partition, "topic": whole.topic, "of_topic": whole.of_topic}
        split = KafkaSplit(first_record=0, records=end - start, start=start, end=end, **place)
        first = 1000 * names.index(whole.topic[-1]) + 500 * whole.of_topic
        found = [row for records in source.reader.read(split) for row in records.batch.to_pylist()]
        assert [row["id"] for row in found] == list(range(first + start, first + end)), (split, turn, "seed 23")
        assert {(row["topic"], row["part"]) for row in found} == {(whole.topic, whole.of_topic)}
        if rng.random() < 0.3:
            next(iter(source.reader.read(rng.choice(splits))), None)  # a reader that is given up


def test_a_topic_that_goes_between_a_plan_and_its_reading_is_for_the_next_plan(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.3)
    for name in "ab":
        topics.make(name)
        topics.put(name, 0, 10)
    client = KafkaClient(topics.broker.servers, topics.pattern, (("topic.metadata.propagation.max.ms", "500"),), 2.0, is_pattern=True)
    source = KafkaSource(KafkaSourceConfig(client, "group", on_data_loss="skip", metadata=PLACE), NUMBERED)
    plan = source.plan(None, 100, 0.0)
    topics.broker.delete_topic(f"{topics.stem}-a")
    with pytest.raises(UnavailableError, match=f"Kafka topic {topics.stem}-a on"):
        read(source, plan)
    assert numbers(read(source, source.plan(None, 100, 0.0))) == list(range(10))


def test_a_topic_that_a_broker_behind_does_not_know_for_a_moment_is_not_taken_for_deleted(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        topics.make(name)
        topics.put(name, 0, 10)
    for on_data_loss in ("fail", "skip"):
        source = topics.source(on_data_loss=on_data_loss)
        position = source.plan(None, 10, 0.0).position
        look, looks = source._brokers._look, iter(range(100))

        def behind(*arguments: Any, look: Any = look, looks: Any = looks) -> Any:
            found = look(*arguments)
            return {name: topic for name, topic in found.items() if name[-1] == "b" or next(looks) > 1}

        monkeypatch.setattr(source._brokers, "_look", behind)
        plan = source.plan(position, 100, 0.0)
        assert (plan.records, plan.deletions, plan.warnings, len(plan.topics)) == (10, 0, (), 2)
        assert next(looks) == 3


def test_an_end_or_an_error_of_another_partition_is_not_the_splits() -> None:
    split = KafkaSplit(first_record=0, records=9, partition=7, topic="a", start=0, end=9, of_topic=1)
    ended, failed = KafkaError(KafkaError._PARTITION_EOF), KafkaError(KafkaError._ALL_BROKERS_DOWN)
    assert [Event(ended, topic, partition, 9).is_of(split) for topic, partition in (("a", 1), ("b", 1), ("a", 7))] == [True, False, False]
    assert Event(failed, None, 0, 0).is_of(split), "it is of no topic"
    assert Event(failed, "a", -1, 0).is_of(split)
    assert (split.name, split.number) == ("a partition 1 offsets 0-9", 1)


def test_a_position_goes_on_where_another_pattern_matches_and_forgets_nothing(
    topics: Topics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, name in enumerate("abc"):
        topics.make(name, 2)
        topics.put(name, 100 * at, 10, 1)
    of_one = topics.one("a").plan(None, 4, 0.0)
    assert of_one.position.keys() == {"topic", "id", "offsets", "records", "skipped", "replaced"}
    every = topics.source()
    plan = every.plan(of_one.position, 100, 0.0)
    assert numbers(read(every, plan)) == [*range(4, 10), *range(100, 110), *range(200, 210)], "one topic goes on, the others begin"
    assert plan.end_record == 30
    assert {number: place for number, place in plan.topics.items() if number < 2} == {
        0: (f"{topics.stem}-a", 0),
        1: (f"{topics.stem}-a", 1),
    }, "its partitions are for watermarks what they were"
    for at, name in enumerate("abc"):
        topics.put(name, 100 * at + 10, 1, 1)
    narrow = topics.source(f"{topics.stem}-[ab]")
    narrowed = narrow.plan(plan.position, 100, 0.0)
    assert numbers(read(narrow, narrowed)) == [10, 110]
    assert f"{topics.stem}-c is not one of them, and is not read any more" in " ".join(caplog.messages)
    assert len(narrowed.backlog_by_partition) == 4
    wide = topics.source()
    assert numbers(read(wide, wide.plan(narrowed.position, 100, 0.0))) == [210], "nothing comes twice"
    with pytest.raises(SourceError, match=rf"no topic that was read is one of them: {topics.stem}-a, .*; correct kafka.topicPattern"):
        topics.source("nothing-.*").plan(plan.position, 100, 0.0)
    for name in "ab":
        topics.broker.delete_topic(f"{topics.stem}-{name}")
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.3)
    skipping = topics.source(f"{topics.stem}-[ab]", on_data_loss="skip")
    left = skipping.plan(narrowed.position, 100, 0.0)
    assert (left.deletions, left.records, list(left.position["topics"])) == (2, 0, [f"{topics.stem}-c"])
    waiting = skipping.plan(left.position, 100, 0.0)
    assert waiting.records == 0, "the pattern is what it was, and waits for topics"
    assert [warning.partition(": ")[2] for warning in waiting.warnings] == ["there is none; those that appear are read from their start"]


# --- whole joins ---

SOURCE = {"discoveryInterval": "100ms"}


def everything_read(join: Joined, driver: Any, topics: tuple[list[str], list[str]]) -> bool:
    """One more round of epochs; whether all that was put in has been read."""
    finish(driver)
    for side in (0, 1):
        position = driver.checkpoint.input.positions[side] or {"topics": {}}
        if sum(sum(read["offsets"].values()) for read in position["topics"].values()) < len(join.rows[side]):
            return False
    return True


def test_records_that_come_to_old_and_new_topics_in_any_order_are_joined_once_whoever_dies(
    way: str, broker: KafkaBroker, tmp_path: Path
) -> None:
    seed = len(way)
    rng, deaths = random.Random(seed), 0
    join = Joined(broker, tmp_path, partitions=2, epoch=120, source=SOURCE, by_pattern=True)
    topics = [join.topics[0]], [join.topics[1]]

    def die(at: str) -> None:
        if rng.random() < 0.04:
            raise Crash(at)

    driver: Any = None
    for turn in range(12):
        side = rng.randrange(2)
        if turn in (3, 6, 9):
            topics[side].append(broker.create_topic(f"{join.topics[side]}-{turn}", 2))
        for _ in range(rng.randint(0, 2)):
            side = rng.randrange(2)
            join.feed_topic(side, rng.choice(topics[side]), rng.randint(1, 40))
        if driver is None or rng.random() < 0.2:
            driver = join.driver(at=die)
        try:
            if driver.checkpoint.identity == "":
                driver.start()
            for _ in range(rng.randint(1, 4)):
                driver.step()
        except Crash:
            driver, deaths = None, deaths + 1
    for side in (0, 1):
        join.feed_topic(side, topics[side][-1], 20)
    last = join.driver()
    last.start()
    wait_for(f"the rest (seed {seed})", lambda: everything_read(join, last, topics))
    found, _ = join.found()
    assert found == join.expected(), f"seed {seed}"
    assert sum(found.values()) > 100
    assert deaths > 0


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_deleted_topic_ends_the_run_or_is_told_and_counted(
    on_data_loss: str, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamjoin.io.kafka_topics.BEHIND_SECONDS", 0.3)
    join = Joined(broker, tmp_path, partitions=1, source=SOURCE | {"onDataLoss": on_data_loss}, by_pattern=True)
    gone = broker.create_topic(f"{join.topics[0]}-gone")
    join.feed(30)
    join.feed_topic(0, gone, 30)
    driver, metrics = join.driver(), Metrics(join.job)
    watched = Steps(driver, [metrics])
    watched.start()
    finish(watched)
    lags = {
        (sample.labels["topic"], sample.labels["partition"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "streamjoin_kafka_lag_records"
    }
    assert lags == {(name, "0") for name in (*join.topics[:2], gone)}
    assert len(driver.checkpoint.input.partitions[0]) == 2
    broker.delete_topic(gone)
    join.feed(20)
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle", "--json"])
    if on_data_loss == "fail":
        assert done.exit_code == Exit.SOURCE, done.output
        assert re.search(
            rf"streamjoin: .*Kafka topic {gone} on .*: the topic was deleted .*onDataLoss: skip to go on without it", done.stderr
        )
        return
    assert done.exit_code == Exit.DONE, done.output
    told = [warning for line in done.stdout.splitlines() for warning in json.loads(line).get("warnings", [])]
    assert len(told) == 1
    assert f"{gone} on" in told[0]
    assert join.found() == (join.expected(), 0)
    again = Metrics(join.job)
    restarted = join.driver()
    Steps(restarted, [again]).start()
    for name, count in (("l", 1), ("r", 0)):
        labels = {"name": "pairs", "stream": name}
        assert again.registry.get_sample_value("streamjoin_kafka_deleted_topics_total", labels) == count
    assert len(restarted.checkpoint.input.partitions[0]) == 1, "a topic that is gone holds no watermark back"


def test_a_join_of_a_topic_goes_on_with_a_pattern_that_matches_it_and_not_back(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, partitions=1)
    join.feed(30)
    driver = join.driver()
    driver.start()
    finish(driver)
    text = join.manifest.read_text()
    left, right = (f'"topic": "{name}"' for name in join.topics[:2])
    patterns = [f'"topicPattern": "{name}(-more)?"' for name in join.topics[:2]]
    join.job = compile_job(load(text.replace(left, '"topicPattern": "other-.*"')))
    with pytest.raises(
        CheckpointMismatch,
        match=rf"spec.streams\[0\].source: json records of Kafka topics by pattern differs from .* topic {join.topics[0]}",
    ):
        join.driver().start()

    more = broker.create_topic(f"{join.topics[0]}-more")
    join.feed_topic(0, more, 20)
    join.feed(10)
    join.job = compile_job(load(text.replace(left, patterns[0]).replace(right, patterns[1])))
    widened = join.driver()
    widened.start()
    finish(widened)
    assert join.found() == (join.expected(), 0)

    join.job = compile_job(load(text))
    complaint = (
        rf"spec.streams\[0\].source.kafka.topic: {join.topics[0]} cannot follow topicPattern, .*; topicPattern: {join.topics[0]} reads"
    )
    with pytest.raises(CheckpointMismatch, match=complaint):
        join.driver().start()
    alone = f'"topicPattern": "{join.topics[0]}"'
    join.job = compile_job(load(text.replace(left, alone).replace(right, patterns[1])))
    join.feed(10)
    narrowed = join.driver()
    narrowed.start()
    finish(narrowed)
    assert join.found() == (join.expected(), 0)
