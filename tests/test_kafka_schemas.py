"""Kafka records whose schemas are in a registry.

Broker and registry are real ones; logins and faults are those of a gate before the registry (``registry_server.Gate``).
"""

from __future__ import annotations

import base64
import io
import json
import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from click.testing import CliRunner

from harness import run_all
from kafka_broker import KafkaBroker, make_certificate
from kafka_join import consumed, finish, finish_despite_failures, produce
from kafka_schemas import MICROS, MILLIS, RegisteredJoin, avro, framed, message_class, record_of, running_registry
from ports import free_ports
from registry_server import Gate, RegistryServer, asked
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io import librdkafka
from streamjoin.io.base import SourceError, UnavailableError
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from streamjoin.io.schema_registry import RegistryConfig
from waiting import Sleepless

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
SECRET = "open-s3same"
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with running_registry() as started:
        yield started


@pytest.fixture
def gate(registry: RegistryServer) -> Iterator[Gate]:
    """Before the registry, for logins and faults."""
    made = Gate(registry.url)
    yield made
    made.close()


def source_of(broker: KafkaBroker, name: str, config: RegistryConfig, form: str = "avro", schema: pa.Schema = SCHEMA) -> KafkaSource:
    return KafkaSource(KafkaSourceConfig(KafkaClient(broker.servers, name), f"group-{name}", form, registry=config), schema)


def read(source: KafkaSource) -> tuple[list[Any], dict[int, Any]]:
    """All rows by their position, and the rejected records by theirs."""
    found, rejected = [], {}
    for split in source.plan(None, 100_000, 0.0).splits:
        for records in source.reader.read(split):
            found += zip(records.offsets().tolist(), records.batch.to_pylist(), strict=True)
            rejected |= {item.position: item for item in records.rejected}
    return found, rejected


@pytest.mark.parametrize("bulk", [True, False])
def test_records_of_several_schemas_come_in_order_and_bad_ones_are_rejected_with_their_schema(
    bulk: bool, broker: KafkaBroker, topic: Callable[..., str], registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bulk:
        monkeypatch.setenv(librdkafka.IGNORE, "1")
    name = topic()
    first = record_of(("id", "int"), ("at", MILLIS))
    second = record_of(("price", "float"), ("id", "long"), ("name", "string"))
    odd = record_of(("id", "string"), ("at", MILLIS))
    numbers = [registry.register(f"{name}-{at}", json.dumps(schema)) for at, schema in enumerate((first, second, odd))]
    proto = registry.register(f"{name}-proto", 'syntax = "proto3"; message M { int64 id = 1; }', "PROTOBUF")
    values: list[Any] = []
    for at in range(300):
        if at % 3:
            values.append(framed(numbers[1], avro(second, {"price": at / 4, "id": at, "name": "x" * (at % 5)})))
        else:
            values.append(framed(numbers[0], avro(first, {"id": at, "at": at * 1000})))
    good = len(values)
    values += [
        None,
        b"",
        b'{"id": 1}',
        b"\0\0\0",
        framed(numbers[2], avro(odd, {"id": "x", "at": 0})),
        framed(proto, b"\0\x08\x01"),
        framed(999_999, b"\2"),
        framed(numbers[1], b"\0\0"),
        framed(numbers[0], b"\2\2\2"),
    ]
    produce(broker, name, values)
    found, rejected = read(source_of(broker, name, RegistryConfig(registry.url)))
    assert [(at, row["id"], row["price"]) for at, row in found] == [(at, at, at / 4 if at % 3 else None) for at in range(good)]
    assert all((row["at"] is None) == bool(at % 3) for at, row in found)
    told = [rejected[at].error for at in range(good, len(values))]
    assert told[:4] == [
        "has no value (a tombstone)",
        "names no schema: it has 0 bytes, and a schema's id takes 5",
        "names no schema: it begins with the byte 123, not with 0 and a schema's id",
        "names no schema: it has 3 bytes, and a schema's id takes 5",
    ]
    assert told[4] == f"schema {numbers[2]} field id is of type string, which cannot be read as BIGINT"
    assert told[5] == f"schema {proto} is of type PROTOBUF, and kafka.format is avro"
    assert told[6].startswith(f"schema 999999 is not in the schema registry {registry.url} (")
    assert told[7] == f"schema {numbers[1]}: ends before the schema does"
    assert told[8] == f"schema {numbers[0]}: has bytes that the schema does not explain"
    assert rejected[good + 4].place == f"{name} partition 0 offset {good + 4}"
    assert rejected[good + 5].raw == values[good + 5].decode(), "as it was, schema and all"
    assert len(rejected) == len(values) - good


def test_protobuf_messages_are_read_by_their_descriptors(broker: KafkaBroker, topic: Callable[..., str], registry: RegistryServer) -> None:
    """What google.protobuf writes, of two versions of a schema and of two messages; the text is the registry's."""
    name = topic()
    head = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; '
    first = head + "message Row { int64 id = 1; google.protobuf.Timestamp at = 2; } message Odd { string no = 1; }"
    second = head + "message Row { reserved 5; double price = 3; sint32 id = 4; google.protobuf.Timestamp at = 2; }"
    numbers = [registry.register(f"{name}-{at}", text, "PROTOBUF") for at, text in enumerate((first, second))]
    values = []
    for at in range(300):
        kind = message_class((first, second)[at % 2], "shop.Row")
        row = kind(id=at, price=at / 2) if at % 2 else kind(id=at)
        row.at.FromSeconds(at)
        values.append(framed(numbers[at % 2], b"\0" + row.SerializeToString()))
    values += [framed(numbers[0], b"\2\2\x0a\1x"), framed(numbers[1], b"\0\xff"), framed(numbers[1], b"")]
    produce(broker, name, values)
    found, rejected = read(source_of(broker, name, RegistryConfig(registry.url), "protobuf"))
    assert [(at, row["id"], row["price"], row["at"].timestamp()) for at, row in found] == [
        (at, at, at / 2 if at % 2 else None, at) for at in range(300)
    ]
    assert {at: item.error for at, item in rejected.items()} == {
        300: f"schema {numbers[0]}: has none of the stream's columns in message shop.Odd; its fields are no",
        301: f"schema {numbers[1]}: ends before the schema does",
        302: f"schema {numbers[1]}: does not say which message of the schema it is",
    }


def test_json_of_a_registered_schema_is_read_by_name(broker: KafkaBroker, topic: Callable[..., str], registry: RegistryServer) -> None:
    name = topic()
    number = registry.register(f"{name}-value", json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}), "JSON")
    values = [framed(number, json.dumps({"id": at, "price": at / 2}).encode()) for at in range(100)]
    values[7] = framed(number, b'{"id": "x"}')
    values[9] = framed(number, b"")
    values[11] = framed(123_456, b"{}")
    values[13] = framed(number, b'{"id": 13,\n "price": 6.5}')
    values[15] = b'{"id": 15}'
    produce(broker, name, values)
    found, rejected = read(source_of(broker, name, RegistryConfig(registry.url), "jsonSchema"))
    bad = (7, 9, 11, 15)
    assert [(at, row["id"], row["price"]) for at, row in found] == [(at, at, at / 2) for at in range(100) if at not in bad]
    assert sorted(rejected) == list(bad)
    assert rejected[7].error == f'schema {number}: column id: "x" is not a value of BIGINT'
    assert rejected[9].error == f"schema {number}: is empty"
    assert rejected[11].error.startswith("schema 123456 is not in the schema registry")
    assert "begins with the byte 123" in rejected[15].error


def test_a_schema_evolves_while_the_join_runs_and_what_cannot_be_read_is_a_dead_letter(
    broker: KafkaBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    join = RegisteredJoin(broker, tmp_path, registry)
    join.manifest.write_text(join.manifest.read_text() + f'  deadLetter: {{location: "{tmp_path}/letters"}}\n')
    driver = join.driver()
    driver.start()
    for version in (0, 1, 2, 0):
        join.version = version
        join.feed(60)
        finish(driver)
    assert join.found() == (join.expected(), 0)
    produce(broker, join.topics[0], [framed(4_000_000, b"\2\2\2")])
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.DONE, done.output
    (letter,) = [json.loads(line) for path in (tmp_path / "letters").glob("*.json") for line in path.read_text().splitlines()]
    assert letter["error"].startswith("schema 4000000 is not in the schema registry")
    assert join.found() == (join.expected(), 0)


@pytest.mark.parametrize(("form", "key"), [("avro", None), ("avro", "a"), ("jsonSchema", None)])
def test_results_name_the_schema_that_is_registered_for_the_topic(
    form: str, key: str | None, broker: KafkaBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    import jsonschema  # which makes dozens of grammars, for seconds: not in each process that merely collects the tests

    sink = {"format": form, "schemaRegistry": {"url": registry.url}} | ({} if key is None else {"key": key})
    join = RegisteredJoin(broker, tmp_path, registry, sink=sink)
    join.feed(80)
    run_all(join.driver())
    (text,) = registry.schemas(f"{join.topics[2]}-value")
    number = registry.register(f"{join.topics[2]}-value", text, "AVRO" if form == "avro" else "JSON")
    found = []
    for _, _, value in consumed(broker, join.topics[2]):
        assert value[:5] == framed(number, b"")
        if form == "avro":
            found.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), fastavro.parse_schema(json.loads(text)), None))
        else:
            found.append(json.loads(value[5:]))
            jsonschema.validate(found[-1], json.loads(text))
    assert Counter((row["a"], row["b"]) for row in found) == join.expected()


def test_a_subject_that_refuses_the_results_schema_ends_the_run_before_there_are_results(
    broker: KafkaBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    join = RegisteredJoin(broker, tmp_path, registry, sink={"format": "avro", "schemaRegistry": {"url": registry.url}})
    subject = f"{join.topics[2]}-value"
    registry.register(subject, json.dumps(record_of(("a", "string"), name="Result")))
    asked(f"{registry.url}/config/{subject}", {"compatibility": "FULL"}, "PUT")
    join.feed(5)
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.STORAGE, done.output
    told = rf"schema registry .*: subject {subject} does not take the schema of the results \(409: .*; change output.select"
    assert re.search(told, done.stderr)


def test_names_of_another_subject_are_found(broker: KafkaBroker, topic: Callable[..., str], registry: RegistryServer) -> None:
    name = topic()
    price = record_of(("cents", "long"), name="Price")
    row = record_of(("id", "long"), ("cost", "Price"), ("at", MICROS))
    registry.register(f"{name}-price", json.dumps(price))
    references = [{"name": "Price", "subject": f"{name}-price", "version": 1}]
    number = registry.register(f"{name}-value", json.dumps(row), references=references)
    whole = record_of(("id", "long"), ("cost", price), ("at", MICROS))
    produce(broker, name, [framed(number, avro(whole, {"id": at, "cost": {"cents": 2}, "at": at})) for at in range(5)])
    found, rejected = read(source_of(broker, name, RegistryConfig(registry.url)))
    assert ([row["id"] for _, row in found], rejected) == ([0, 1, 2, 3, 4], {})


def test_a_registry_that_is_away_is_waited_for_and_nothing_is_lost(
    broker: KafkaBroker, registry: RegistryServer, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamjoin.io.schema_registry.time", Sleepless())
    join = RegisteredJoin(broker, tmp_path, registry, url=gate.url)
    join.feed(50)
    gate.refuses = lambda path, headers: (503, {"message": "starting"})
    driver = join.driver()
    driver.start()
    told = rf"UnavailableError: schema registry {gate.url}: no answer within 20 s \(503: starting\)"
    with pytest.raises(EpochFailed, match=told) as failure:
        driver.step()
    assert not failure.value.permanent
    refusals = iter([(500, {"error_code": 50001, "message": "store"}), (429, {}), *[None] * 100])
    gate.refuses = lambda path, headers: next(refusals)
    finish_despite_failures(driver)
    assert join.found() == (join.expected(), 0)
    asked = len(gate.requests)
    join.feed(50)
    finish_despite_failures(driver)
    assert len(gate.requests) == asked, "a schema is asked for once"
    assert join.found() == (join.expected(), 0)


def test_a_registry_that_nobody_runs_or_that_is_none_is_an_error(broker: KafkaBroker, topic: Callable[..., str], gate: Gate) -> None:
    name = topic()
    produce(broker, name, [framed(1, b"\2")])
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(UnavailableError, match=rf"{url}: no answer within 0.5 s \(.*refused\); see whether it is up"):
        read(source_of(broker, name, RegistryConfig(url, timeout_seconds=0.5)))
    gate.refuses = lambda path, headers: (404, "no such page")
    with pytest.raises(SourceError, match=r"is no schema registry, by what it answers \(404: no such page\); correct schemaRegistry.url"):
        read(source_of(broker, name, RegistryConfig(gate.url)))


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"username": "me", "password": "{secret}"}, basic(f"me:{SECRET}")),
        ({"bearer.auth.token": "{secret}"}, f"Bearer {SECRET}"),
    ],
)
def test_a_join_logs_in_to_the_registry_and_the_secret_is_seen_nowhere(
    options: dict[str, str], header: str, broker: KafkaBroker, registry: RegistryServer, gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    given = {name: value.format(secret=f"file:{tmp_path}/secret") for name, value in options.items()}
    gate.refuses = lambda path, headers: None if headers["Authorization"] == header else (401, {"error_code": 401, "message": "no"})
    join = RegisteredJoin(broker, tmp_path, registry, url=gate.url, login=given)
    join.feed(30)
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.DONE, done.output
    assert join.found() == (join.expected(), 0)
    seen = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "secret" and SECRET.encode() in path.read_bytes()]
    assert not seen
    join.manifest.write_text(join.manifest.read_text().replace(f"file:{tmp_path}/secret", "wrong"))
    join.feed(1)
    (tmp_path / "again").mkdir()
    done = CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle"])
    assert done.exit_code == Exit.SOURCE, done.output
    assert re.search(r"schema registry .*: refuses the login \(401: no\); correct schemaRegistry.options\[username\]", done.stderr)
    assert "is a secret, readable in the manifest" in CliRunner().invoke(main, ["validate", str(join.manifest)]).output


def test_tls_is_trusted_by_its_certificate_alone(
    broker: KafkaBroker, topic: Callable[..., str], registry: RegistryServer, tmp_path: Path
) -> None:
    make_certificate(tmp_path / "key.pem", tmp_path / "certificate.pem")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    gate = Gate(registry.url, server)
    name = topic()
    schema = record_of(("id", "long"))
    number = registry.register(f"{name}-value", json.dumps(schema))
    produce(broker, name, [framed(number, avro(schema, {"id": 5}))])
    trusted = RegistryConfig(gate.url, (("ssl.ca.location", str(tmp_path / "certificate.pem")),))
    assert [row["id"] for _, row in read(source_of(broker, name, trusted))[0]] == [5]
    with pytest.raises(SourceError, match=r"its certificate is not trusted .*; let schemaRegistry.options\[ssl.ca.location\] name"):
        read(source_of(broker, name, RegistryConfig(gate.url)))
    with pytest.raises(SourceError, match=r"schemaRegistry.options: the certificates cannot be used"):
        read(source_of(broker, name, RegistryConfig(gate.url, (("ssl.ca.location", str(tmp_path / "none")),))))
    gate.close()
