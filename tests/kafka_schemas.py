"""What the tests of schemas in a registry share: records as Confluent's serializers write them, and a join between topics of such."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kafka_broker import KafkaBroker
from kafka_join import Joined, produce
from registry_server import NoRegistry, RegistryServer
from waiting import PATIENCE_SECONDS


@contextlib.contextmanager
def running_registry() -> Iterator[RegistryServer]:
    """A registry; the test is skipped where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(RegistryServer())
        except NoRegistry as missing:
            pytest.skip(str(missing))
        yield started


def framed(number: int, data: bytes) -> bytes:
    """A value that names its schema."""
    return struct.pack(">bI", 0, number) + data


def avro(schema: Any, record: Any) -> bytes:
    """A record as fastavro encodes it."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return buffer.getvalue()


@cache
def message_class(text: str, name: str) -> Any:
    """google.protobuf's class of a message of a .proto text, which protoc compiles."""
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "it.proto").write_text(text)
        options = [f"-I{root}", f"--descriptor_set_out={root}/set", "--include_imports"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "it.proto"], check=True, timeout=PATIENCE_SECONDS)
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(root) / "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def record_of(*fields: tuple[str, Any], name: str = "Row") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
VERSIONS = (
    record_of(("rid", "int"), ("k", "int"), ("at", MICROS)),
    record_of(("at", MICROS), ("note", {"type": "array", "items": "string"}), ("k", ["null", "long"]), ("rid", "long")),
    record_of(("k", "long"), ("rid", ["long", "null"]), ("at", ["null", MICROS]), ("price", ["null", "double"])),
)
"""A schema and what became of it: columns wider, or with null, in another order, with others beside them."""


class RegisteredJoin(Joined):
    """A join of topics with Avro of a schema that evolves; the results are JSON."""

    def __init__(
        self,
        broker: KafkaBroker,
        root: Path,
        registry: RegistryServer,
        *,
        url: str = "",
        login: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        """``url``: where to find the registry, if not there; ``login``: its options."""
        source = {"format": "avro", "schemaRegistry": {"url": url or registry.url, "options": login or {}}}
        super().__init__(broker, root, source=source, **options)
        self.registry = registry
        self.version = 0

    def feed(self, count: int, seconds: int = 10, **more: Any) -> None:
        """So many more records on each side and partition, by the schema of ``version``."""
        schema = VERSIONS[self.version]
        for side, name in enumerate(self.topics[:2]):
            number = self.registry.register(f"{name}-value-{self.version}", json.dumps(schema))
            for partition in range(self.partitions):
                values = []
                for _ in range(count):
                    row, key, moment = self.new_row(side, seconds)
                    record = {"rid": row, "k": key, "at": moment, "note": ["a", "b"], "price": 1.5}
                    fields = [field["name"] for field in schema["fields"]]
                    values.append(framed(number, avro(schema, {name: record[name] for name in fields})))
                produce(self.broker, name, values, partition)
