"""Results that the brokers refuse are dead letters, each once, and all others are on the topic in order, whoever dies."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import Crash
from kafka_broker import KafkaBroker
from kafka_join import consumed
from streamjoin.io import encoded
from streamjoin.io.base import SinkError, Staged
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig
from streamjoin.io.kafka_transactions import Transactions
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.io.sinks import json_texts
from streamjoin.state.storage import ObjectStorage
from test_delta_sink import die_at

pytestmark = pytest.mark.kafka
RESULT = pa.schema([("a", pa.int64()), ("name", pa.string())])
TOPIC_BYTES = 20_000
CLIENT_BYTES = 1_000_000
"""Of librdkafka's message.max.bytes, its default."""
EXACTLY = pytest.mark.parametrize("exactly", [False, True], ids=["at least once", "exactly once"])


def letters_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("results-*.json")) for line in path.read_text().splitlines()]


def sink_of(broker: KafkaBroker, name: str, root: Path, *, exactly: bool = False, key: str | None = None, **options: str) -> KafkaSink:
    client = KafkaClient(broker.servers, name, tuple(options.items()), 20.0)
    config = KafkaSinkConfig(client, "pairs", key, exactly_once=exactly)
    return KafkaSink(config, RESULT, ObjectStorage(str(root / "state")), RefusedResults(str(root / "dead"), "j"))


def staged_by(sink: KafkaSink, sizes: list[int], epoch: int = 0) -> list[Staged]:
    """Results whose names have so many characters, of two tasks."""
    found: list[Staged] = []
    for task, part in enumerate((range(len(sizes) // 2), range(len(sizes) // 2, len(sizes)))):
        writer = sink.writer(f"0a1b-000001-{epoch:012d}-{task:05d}-x", f"0a1b-{epoch:012d}-{task:05d}")
        writer.write(pa.record_batch([pa.array(part, pa.int64()), pa.array(["x" * sizes[at] for at in part])], schema=RESULT))
        found += writer.close()
    return found


def numbers(broker: KafkaBroker, name: str) -> list[int]:
    """What a reader that drops repeats sees."""
    by_identity = {identity: json.loads(value)["a"] for identity, _, value in consumed(broker, name)}
    return list(by_identity.values())


@EXACTLY
@pytest.mark.parametrize("key", [None, "a"])
def test_records_that_are_too_large_are_letters_and_the_others_come_in_order(
    key: str | None, exactly: bool, broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Some are too large for the client, others for the topic."""
    name = topic(1, max_message_bytes=str(TOPIC_BYTES))
    sink = sink_of(broker, name, tmp_path, exactly=exactly, key=key)
    large = {3: 2 * CLIENT_BYTES, 40: 3 * TOPIC_BYTES, 41: 2 * TOPIC_BYTES, 77: 2 * CLIENT_BYTES, 99: 2 * TOPIC_BYTES}
    staged = staged_by(sink, [large.get(at, 100) for at in range(100)])
    sink.publish(staged)
    assert numbers(broker, name) == [at for at in range(100) if at not in large]
    letters = letters_in(tmp_path / "dead")
    assert [letter["position"] for letter in letters] == sorted(large)
    assert [json.loads(letter["raw"]) for letter in letters] == [{"a": at, "name": "x" * large[at]} for at in sorted(large)]
    assert letters[0]["split"] == "pairs/0a1b/0/0/3"
    assert all("too large" in letter["error"] for letter in letters)
    assert sink.refused is not None
    assert sink.refused.take()[0] == len(large)
    sink.publish(staged_by(sink, [100] * 10, epoch=1))
    assert len(numbers(broker, name)) == 100 - len(large) + 10, "the next epoch goes on"
    assert sink.refused.take() == (0, "")
    assert sink.traffic.sent_records == 100 - len(large) + 10


def test_a_compacted_topic_refuses_records_without_a_key(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic(1, cleanup_policy="compact")
    sink = sink_of(broker, name, tmp_path, key="name")
    writer = sink.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
    writer.write(pa.record_batch([pa.array([0, 1, 2, 3]), pa.array(["p", None, "q", None])], schema=RESULT))
    sink.publish(writer.close())
    assert sorted(numbers(broker, name)) == [0, 2]
    assert [json.loads(letter["raw"])["a"] for letter in letters_in(tmp_path / "dead")] == [1, 3]


@pytest.mark.parametrize(("where", "name"), [(Refused, "keep"), (Refused, "published"), (Transactions, "commit")])
@pytest.mark.parametrize("after", [False, True])
@EXACTLY
def test_what_was_refused_stays_a_letter_although_the_topic_would_take_it_now(
    exactly: bool, after: bool, where: type, name: str, broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    of = topic(1, max_message_bytes=str(TOPIC_BYTES))
    sink = sink_of(broker, of, tmp_path, exactly=exactly)
    staged = staged_by(sink, [2 * TOPIC_BYTES if at == 7 else 10 for at in range(20)])
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, where, name, after=after, visit=0)
        with contextlib.suppress(Crash):
            sink.publish(staged)
    is_known = bool(letters_in(tmp_path / "dead"))
    again = sink_of(broker, of, tmp_path, exactly=exactly)
    again.publish(staged, again=True)
    assert is_known or name == "keep"
    assert sorted(numbers(broker, of)) == [at for at in range(20) if at != 7]
    assert not exactly or len(consumed(broker, of)) == 19
    assert [letter["position"] for letter in letters_in(tmp_path / "dead")] == [7]
    assert again.refused is not None
    assert again.refused.take()[0] == 1


@EXACTLY
def test_without_letters_a_record_that_is_refused_is_an_error_whose_remedy_works(
    exactly: bool, broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    sink = sink_of(broker, name, tmp_path, exactly=exactly)
    sink.refused = None
    staged = staged_by(sink, [2 * CLIENT_BYTES // 3 if at == 7 else 10 for at in range(20)])
    small = sink_of(broker, name, tmp_path, exactly=exactly, **{"message.max.bytes": "100000"})
    small.refused = None
    with pytest.raises(SinkError, match=r"raise message\.max\.bytes of kafka\.options .*, and start again; or let onBad of the output be"):
        small.publish(staged, again=True)
    sink.publish(staged, again=True)
    assert sorted(numbers(broker, name)) == list(range(20))


@pytest.mark.parametrize("form", ["json", "jsonSchema", "avro"])
def test_a_letter_has_the_row_as_json_whatever_the_format(form: str) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("t", pa.string()), ("d", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())]
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    batch = pa.record_batch([[7, 8], ["é", None], [Decimal("1.50"), None], [moment, None], [moment.date(), None]], schema=schema)
    prefix = b"\0\0\0\0\1"
    values = encoded._avro(batch, prefix) if form == "avro" else json_texts(batch).cast(pa.binary())
    encoding = encoded.Encoding(form)
    texts = [encoding.text((prefix if form == "jsonSchema" else b"") + value.as_py(), schema) for value in values]
    assert texts == json_texts(batch).to_pylist()
    assert encoding.text(prefix + b"\xff\xfe", schema).startswith("base64:")
