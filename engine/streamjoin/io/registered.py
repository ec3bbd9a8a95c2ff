"""Kafka records that name their schema by its id in a registry, as Confluent's serializers write them: Avro, Protobuf and JSON.

A value is a byte 0, four bytes of the id, and what was encoded. Records of one schema are read together, by a reader that is made once for
each schema and process.

Always holds: a record that cannot be read, by itself or for its schema, is rejected with the schema's id, and no other record with it;
while the registry cannot be reached there are neither records nor rejected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from streamjoin.io.base import Records, Rejected, SourceError, no_records
from streamjoin.io.decoded import UnreadableError, in_order
from streamjoin.io.kafka_records import Cells, Fetched, JsonDecoder, KafkaSplit, Wanted
from streamjoin.io.lines import JSON_SPACE
from streamjoin.io.schema_registry import Registered, RegistryConfig, SchemaRegistry, UnknownSchemaError, registry_of
from streamjoin.kernel.arrays import Array

PREFIX = 5
"""Bytes before what was encoded."""
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "jsonSchema": "JSON"}
"""By format of the manifest, what the registry calls the kind of schema."""

Reader: TypeAlias = Callable[[Array, Array, Array], tuple[list[pa.Array], dict[int, str]]]
"""The columns of records that lie at (starts, ends) of some bytes, and what is wrong with a record, by its number."""


class RegisteredDecoder:
    """Avro and Protobuf."""

    wanted = Wanted()

    def __init__(self, schema: pa.Schema, form: str, config: RegistryConfig) -> None:
        """Raises SourceError where the registry's options cannot be used."""
        self._schema = schema
        self._form = form
        self._registry = registry_of(config, SourceError)

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """All that were fetched; O(bytes). Raises SourceError, UnavailableError."""
        values = fetched.values
        numbers, problems = numbers_of(values)
        found: list[tuple[Array, list[pa.Array]]] = []
        for number in np.unique(numbers[numbers >= 0]).tolist():
            rows = np.flatnonzero(numbers == number)
            try:
                read = self._reader(number)
            except (UnknownSchemaError, UnreadableError) as error:
                problems |= dict.fromkeys(rows.tolist(), refusal(number, self._registry, error))
                continue
            columns, wrong = read(values.data, values.starts[rows] + PREFIX, values.ends[rows])
            problems |= {int(rows[row]): f"schema {number}: {text}" for row, text in wrong.items()}
            found.append((rows, columns))
        rows, columns = in_order(found, self._schema)
        yield fetched.records(split, pa.record_batch(columns, schema=self._schema), rows, problems)

    def _reader(self, number: int) -> Reader:
        """Raises UnknownSchemaError, UnreadableError, SourceError, UnavailableError."""
        found = self._registry.made((self._form, self._schema, number), partial(self._made, number))
        if isinstance(found, UnreadableError):
            raise UnreadableError(*found.args)
        return found

    def _made(self, number: int) -> Reader | UnreadableError:
        """What cannot be read is known, too: to find that out again for each batch would take long."""
        try:
            return self._compiled(number)
        except UnreadableError as error:
            return error

    def _compiled(self, number: int) -> Reader:
        registered = checked(self._registry.schema(number), self._form)
        if self._form == "protobuf":
            from streamjoin.io.protobuf_schema import protobuf_reader

            return protobuf_reader(registered.text, registered.references, self._schema)
        from streamjoin.io.avro_schema import avro_reader

        return avro_reader(registered.text, [text for _, text in registered.references], self._schema)


class RegisteredJsonDecoder:
    """JSON of a schema in the registry, which must know it. The columns are found as in other JSON: by name."""

    wanted = Wanted(lines=True)

    def __init__(self, schema: pa.Schema, config: RegistryConfig) -> None:
        """Raises SourceError where the registry's options cannot be used."""
        self._schema = schema
        self._json = JsonDecoder(schema)
        self._registry = registry_of(config, SourceError)

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """As ``JsonDecoder``."""
        values = fetched.values
        numbers, problems = numbers_of(values)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            try:
                checked(self._registry.schema(number), "jsonSchema")
            except (UnknownSchemaError, UnreadableError) as error:
                problems |= dict.fromkeys(np.flatnonzero(numbers == number).tolist(), refusal(number, self._registry, error))
        if problems:
            rejected = [fetched.rejected(split, row, error) for row, error in sorted(problems.items())]
            yield Records(no_records(self._schema), None, rejected)
            rows = np.setdiff1d(np.arange(len(values)), np.fromiter(problems, np.int64, len(problems)))
            if not len(rows):
                return
            numbers, bare = numbers[rows], _bare(values, rows)
        else:
            rows, bare = np.arange(len(values)), _bare(values, None)
        plain = replace(fetched, offsets=fetched.offsets[rows], values=bare)
        for records in self._json(split, plain):
            records.rejected = [self._named(split, fetched, item, plain, numbers) for item in records.rejected]
            yield records

    @staticmethod
    def _named(split: KafkaSplit, fetched: Fetched, item: Rejected, plain: Fetched, numbers: Array) -> Rejected:
        """A rejected record as it was, with its schema."""
        offset = split.start + item.position
        number = int(numbers[np.searchsorted(plain.offsets, offset)])
        return fetched.rejected(split, int(np.searchsorted(fetched.offsets, offset)), f"schema {number}: {item.error}")


def numbers_of(values: Cells) -> tuple[Array, dict[int, str]]:
    """Each value's schema, -1 where it names none, and what is wrong with those. O(n)."""
    starts, sizes = values.starts, values.ends - values.starts
    numbers = np.full(len(values), -1, np.int64)
    written = np.flatnonzero(values.given & (sizes >= PREFIX))
    head = values.data[starts[written][:, None] + np.arange(PREFIX)].astype(np.int64)
    framed = head[:, 0] == 0
    numbers[written[framed]] = head[framed, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    problems: dict[int, str] = {}
    for row in np.flatnonzero(numbers < 0).tolist():
        if not values.given[row]:
            problems[row] = "has no value (a tombstone)"
        elif sizes[row] < PREFIX:
            problems[row] = f"names no schema: it has {sizes[row]} bytes, and a schema's id takes {PREFIX}"
        else:
            problems[row] = f"names no schema: it begins with the byte {values.data[starts[row]]}, not with 0 and a schema's id"
    return numbers, problems


def checked(registered: Registered, form: str) -> Registered:
    """A schema of the kind that the stream's format says. Raises UnreadableError."""
    if registered.kind != KINDS[form]:
        raise UnreadableError(f"is of type {registered.kind}, and kafka.format is {form}")
    return registered


def refusal(number: int, registry: SchemaRegistry, error: Exception) -> str:
    """Why all records of a schema are rejected."""
    if isinstance(error, UnknownSchemaError):
        return f"schema {number} is not in the {registry.config} ({error})"
    return f"schema {number} {error}"


def _bare(values: Cells, rows: Array | None) -> Cells:
    """The values of these rows (None: of all) with blanks for the schema's id, as lines. O(bytes)."""
    starts, ends = values.starts, values.ends
    if rows is None:
        data = values.data.copy()
    else:
        starts, sizes = starts[rows], ends[rows] - starts[rows] + values.gap
        data = np.concatenate([values.data[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)])
        ends = np.cumsum(sizes) - values.gap
        starts = ends - sizes + values.gap
    data[starts[:, None] + np.arange(PREFIX)] = JSON_SPACE[0]
    return Cells(data, ends, np.ones(len(ends), bool), values.gap)
