"""A sink of one Kafka topic: each result is a record with a JSON object, sent by the driver once its epoch is committed.

Tasks stage encoded records as objects in the checkpoint's ``outbox``, or, where there are few, leave them to the commit; no result is on
the topic before that. The driver sends them by an idempotent producer, waits for all acknowledgements, and notes in the outbox which
epoch's it sent last, so a driver that starts again sends only what was not noted. One that died in between sends records again: under the
same identity, in the same order of each task.

Always holds: a record's identity is ``<query>/<checkpoint>/<epoch>/<task>/<row>``, counted from 0 within an epoch's task, and belongs to
one result for good: the checkpoint's own identity is in it, so a new checkpoint, which counts epochs from 0 again, repeats none; and the
staged records that a commit names do not change. It is the record's key; or, where a column is the key, its header ``streamjoin-id``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from pyarrow import ipc

from streamjoin.io import librdkafka
from streamjoin.io.base import SinkError, Staged, Traffic, UnavailableError
from streamjoin.io.kafka_bulk import BulkProducer
from streamjoin.io.kafka_client import Complaints, KafkaClient, error_of, reason_of
from streamjoin.io.kafka_records import HEADER, Outgoing
from streamjoin.io.sinks import json_texts
from streamjoin.state.storage import Missing, Storage

OUTBOX = "outbox"
NOTE = f"{OUTBOX}/sent"
"""How the name begins of the object that says which epoch's records have all been sent last, by the identity of the first."""
CHUNK_ROWS = 16 * 1024
"""So many rows become text at a time; rows of more than 128 KiB would not fit the 2 GB of Arrow's strings, nor a Kafka record."""
OBJECT_ROWS = 256 * 1024
OBJECT_BYTES = 32 * 1024 * 1024
QUEUE_RECORDS = 500_000
QUEUE_KIB = 256 * 1024
WAIT_SECONDS = 0.05
FLUSH_SECONDS = 0.5
LOOK_SECONDS = 1.0
"""So often it is looked whether the brokers have refused a producer that waits for them."""
MADE_SECONDS = 3.0
"""Brokers that make topics when they are asked for them have made one by then."""
MARGIN_SECONDS = 5.0
"""librdkafka gives a record up after the timeout; so much later at the latest it says so."""


@dataclass(frozen=True)
class KafkaSinkConfig:
    """A Kafka sink as the manifest describes it."""

    client: KafkaClient
    query: str
    """The resource's name, with which identities begin."""
    key: str | None = None
    """The column that becomes the records' key, without regard to case."""
    join: str = ""
    """The join's name, where there are several: each has identities and a note of its own."""

    @property
    def origin(self) -> str:
        """How identities begin."""
        return f"{self.query}/{quote(self.join, safe='')}" if self.join else self.query

    @property
    def note(self) -> str:
        """The path of the object that says what was sent last."""
        return f"{NOTE}-{quote(self.join, safe='')}" if self.join else NOTE


class Sender(Protocol):
    """A producer of one topic's records."""

    def send(self, records: Outgoing, start: int) -> tuple[int, KafkaError | None]:
        """Puts records from ``start`` on into the queue, in order, until one is refused, as by ``_QUEUE_FULL`` where there is no room.

        Returns the number of records before that one, and its error; all, and None.
        """

    def poll(self, timeout_seconds: float) -> None:
        """Hears of errors and of records that could not be delivered, for as long as none comes."""

    def flush(self, timeout_seconds: float) -> int:
        """How many records are not acknowledged when all are, or the time is over."""

    def topic_error(self, timeout_seconds: float) -> KafkaError | None:
        """What the brokers say is wrong with the topic. Raises KafkaException where they do not answer in time."""

    def abandon(self, timeout_seconds: float) -> None:
        """End it, whatever it has not sent yet."""


class RecordByRecord:
    """A Sender by ``confluent_kafka``, where the library cannot be used by itself (``librdkafka.load``)."""

    def __init__(self, topic: str, producer: Any) -> None:
        self._topic = topic
        self._producer = producer

    def send(self, records: Outgoing, start: int) -> tuple[int, KafkaError | None]:
        """O(bytes), with Python objects for each record."""
        produce, topic = self._producer.produce, self._topic
        columns = [column.slice(start).to_pylist() for column in (records.values, records.keys)]
        headers = itertools.repeat(None) if records.headers is None else records.headers.slice(start).to_pylist()
        for at, (value, key, header) in enumerate(zip(*columns, headers, strict=False), start):
            try:
                if header is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, headers=[(HEADER, header)])
            except BufferError:
                return at, KafkaError(KafkaError._QUEUE_FULL)
            except KafkaException as error:
                refusal = error_of(error)
                if refusal is None:
                    raise
                return at, refusal
        return len(records.values), None

    def poll(self, timeout_seconds: float) -> None:
        self._producer.poll(timeout_seconds)

    def flush(self, timeout_seconds: float) -> int:
        return int(self._producer.flush(timeout_seconds))

    def topic_error(self, timeout_seconds: float) -> KafkaError | None:
        found: KafkaError | None = self._producer.list_topics(self._topic, timeout=timeout_seconds).topics[self._topic].error
        return found

    def abandon(self, timeout_seconds: float) -> None:
        self._producer.purge()
        self._producer.flush(timeout_seconds)


class KafkaSink:
    """See the module. Pickles without its producer."""

    def __init__(self, config: KafkaSinkConfig, schema: pa.Schema, storage: Storage) -> None:
        """Asks nothing of the brokers yet. Raises SinkError where ``schema`` lacks the key."""
        self.config = config
        self.schema = schema
        self._storage = storage
        self._producer: Sender | None = None
        self._failed: list[KafkaError] = []
        self._complaints = Complaints()
        self._sent_records = self._sent_bytes = self._failures = 0
        self._noted: bytes | None = None
        """What this process has noted."""
        names = [name.casefold() for name in schema.names]
        if config.key is not None and config.key.casefold() not in names:
            raise SinkError(f"kafka.key: {config.key} is not a column of the output; it has {', '.join(schema.names)}")
        self._key = None if config.key is None else names.index(config.key.casefold())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_producer": None, "_failed": [], "_complaints": Complaints()}

    @property
    def gather_seconds(self) -> float:
        return 0.0

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        return list(small)

    def writer(self, name: str, stem: str | None = None, *, small_bytes: int = 0) -> KafkaWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""
        checkpoint, epoch, task = (stem if stem is not None else name).rsplit("-", 2)
        prefix = f"{self.config.origin}/{checkpoint}/{int(epoch)}/{int(task)}"
        return KafkaWriter(self._storage, self.schema, self._key, name, prefix, small_bytes)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Sends what is staged, ``again`` only unless it is noted that it was sent. Returns when the brokers have it all; O(records).

        ``again`` with nothing to send, as when a driver starts, asks for the topic: what is wrong with the options or the topic is to show
        before there are results. Raises SinkError, UnavailableError.
        """
        if not staged:
            if again:
                self._require_topic()
            return
        note = staged[0].final.encode()
        if (self._noted if not again else self._sent_last()) != note:
            self._send(staged)
            self._storage.put(self.config.note, note)
            self._noted = note
        self._storage.delete_many([file.path for file in staged if file.path])

    @property
    def traffic(self) -> Traffic:
        """Of epochs that were sent whole: how many records of an epoch whose sending failed have arrived is not known."""
        return Traffic(self._sent_records, self._sent_bytes, self._failures, self._complaints.count)

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged objects whose name may be removed. O(staged objects)."""
        stray = [path for path in self._storage.list(OUTBOX) if may_remove(path.rsplit("/", 1)[1])]
        self._storage.delete_many(stray)
        return len(stray)

    def _sent_last(self) -> bytes | None:
        try:
            return self._storage.get(self.config.note)
        except Missing:
            return None

    def _send(self, staged: Sequence[Staged]) -> None:
        nbytes = 0
        try:
            producer = self._connected()
            for file in staged:
                for records in self._batches(file):
                    self._enqueue(producer, records)
                    nbytes += records.nbytes
            deadline = self._deadline()
            while producer.flush(FLUSH_SECONDS):
                self._keep_waiting(deadline)
            self._raise_failed()
        except BaseException:
            self._failures += 1
            self._abandon()
            raise
        self._sent_records += sum(file.rows for file in staged)
        self._sent_bytes += nbytes

    def _require_topic(self) -> None:
        """Raises SinkError for what waiting does not mend, UnavailableError when the brokers do not answer in time."""
        try:
            producer, began = self._connected(), time.monotonic()
            while (failure := self._topic_failure(producer)) is not None:
                patience = self.config.client.timeout_seconds if isinstance(failure, UnavailableError) else MADE_SECONDS
                if time.monotonic() - began + WAIT_SECONDS > patience:
                    raise failure
                producer.poll(WAIT_SECONDS)
        except BaseException:
            self._abandon()
            raise

    def _topic_failure(self, producer: Sender) -> Exception | None:
        """What keeps the topic from being written to, at one look."""
        client = self.config.client
        try:
            error = producer.topic_error(LOOK_SECONDS)
        except KafkaException as unanswered:
            producer.poll(0)
            refusal = self._complaints.refusal(client, SinkError)
            return refusal or client.unavailable("no answer", self._complaints.text or reason_of(unanswered))
        return None if error is None else client.failure(error, SinkError, "no leader")

    def _connected(self) -> Sender:
        self._complaints.forget()
        if self._producer is None:
            self._failed = []
            own = {
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(self.config.client.timeout_seconds * 1000),
                "delivery.report.only.error": True,
                "on_delivery": functools.partial(_delivered, self._failed),
                "error_cb": self._complaints,
            }
            defaults = {"linger.ms": 5, "queue.buffering.max.messages": QUEUE_RECORDS, "queue.buffering.max.kbytes": QUEUE_KIB}
            topic, library = self.config.client.topic, librdkafka.load()
            kinds: list[Callable[[dict[str, Any]], Sender]] = [lambda settings: RecordByRecord(topic, Producer(defaults | settings))]
            if library is not None:
                kinds.insert(0, lambda settings: BulkProducer(library, topic, defaults | settings))
            self._producer = self.config.client.make_first(kinds, own, SinkError)
        return self._producer

    def _abandon(self) -> None:
        """A producer that has failed may hold records still; the next one starts without, and hears nothing of what becomes of those."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):
                producer.abandon(WAIT_SECONDS)

    def _batches(self, file: Staged) -> Iterator[Outgoing]:
        try:
            data = file.data or self._storage.get(file.path)
        except Missing:
            raise SinkError(
                f"{self._storage.url}/{file.path}: these {file.rows} committed records are gone, and there is no note that they were sent."
                " If another driver has taken over this checkpoint, it has sent them; else they are lost. Keep other programs from"
                " deleting files in the checkpoint"
            ) from None
        prefix, _, first = file.final.rpartition("/")
        row = int(first)
        with ipc.open_file(pa.BufferReader(data)) as reader:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                numbers = pa.array(np.arange(row, row + batch.num_rows)).cast(pa.string())
                identities = pc.binary_join_element_wise(prefix, numbers, "/").cast(pa.binary())
                row += batch.num_rows
                if self.config.key is None or batch.num_columns == 1:
                    yield Outgoing(batch.column("value"), identities)
                else:
                    yield Outgoing(batch.column("value"), batch.column("key"), identities)

    def _enqueue(self, producer: Sender, records: Outgoing) -> None:
        """Hands records to librdkafka, which sends them meanwhile; waits where its queue is full. O(records), in order."""
        taken, deadline = 0, self._deadline()
        while True:
            before = taken
            taken, error = producer.send(records, before)
            if error is None:
                break
            if error.code() != KafkaError._QUEUE_FULL:
                raise self._refused(error, len(records.values[taken].as_py()))
            if taken > before:
                deadline = self._deadline()
            producer.poll(WAIT_SECONDS)
            self._keep_waiting(deadline)
        producer.poll(0)
        self._raise_failed()

    def _deadline(self) -> float:
        return time.monotonic() + self.config.client.timeout_seconds + MARGIN_SECONDS

    def _keep_waiting(self, deadline: float) -> None:
        """Raises what keeps records from being acknowledged: at once where waiting does not help, else after the deadline."""
        self._raise_failed()
        refusal = self._complaints.refusal(self.config.client, SinkError)
        if refusal is not None:
            raise refusal
        if time.monotonic() > deadline:
            raise self._silent()

    def _refused(self, error: KafkaError, nbytes: int) -> Exception:
        return self.config.client.failure(error, SinkError, f"no record of {nbytes} bytes could be sent")

    def _raise_failed(self) -> None:
        if self._failed:
            error = self._failed[0]
            if error.code() == KafkaError._MSG_TIMED_OUT:
                raise self._silent()
            raise self.config.client.failure(error, SinkError, "not all records were taken")

    def _silent(self) -> Exception:
        return self.config.client.unavailable("not all records were acknowledged", self._complaints.text)


def _delivered(failed: list[KafkaError], error: KafkaError | None, message: object) -> None:
    if error is not None and not failed:
        failed.append(error)


class KafkaWriter:
    """Stages one task's results as Arrow files of (value) or (value, key), each of bounded size."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, key: int | None, name: str, prefix: str, small_bytes: int
    ) -> None:
        self._storage = storage
        self._small_bytes = small_bytes
        self._schema = schema
        self._key = key
        self._name = name
        self._prefix = prefix
        fields = [pa.field("value", pa.binary())] + ([] if key is None else [pa.field("key", pa.binary())])
        self._staged_schema = pa.schema(fields)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._rows = 0
        self._done: list[Staged] = []
        self._finished = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; amortised O(bytes)."""
        if self._finished:
            raise SinkError(f"writer {self._name}: closed already; ask the sink for another")
        if not batch.schema.equals(self._schema):
            raise SinkError(f"writer {self._name}: a batch's columns {batch.schema.names} are not the sink's {self._schema.names}")
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            chunk = batch.slice(start, CHUNK_ROWS)
            columns = [json_texts(chunk).cast(pa.binary())]
            if self._key is not None:
                columns.append(_key_bytes(chunk.column(self._key)))
            encoded = pa.record_batch(columns, schema=self._staged_schema)
            self._pending.append(encoded)
            self._pending_rows += encoded.num_rows
            self._pending_bytes += encoded.nbytes
            if self._pending_rows >= OBJECT_ROWS or self._pending_bytes >= OBJECT_BYTES:
                self._put()

    def close(self) -> list[Staged]:
        """Finishes; what was staged, in order."""
        if not self._finished:
            self._put()
            self._finished = True
        return list(self._done)

    def abort(self) -> None:
        """Removes every object of this writer."""
        self._finished = True
        self._pending = []
        self._storage.delete_many([staged.path for staged in self._done if staged.path])
        self._done = []

    def _put(self) -> None:
        if not self._pending:
            return
        buffer = pa.BufferOutputStream()
        with ipc.new_file(buffer, self._staged_schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
            for batch in self._pending:
                writer.write_batch(batch)
        data = buffer.getvalue()
        final = f"{self._prefix}/{self._rows}"
        if not self._done and data.size <= self._small_bytes:
            self._done.append(Staged("", final, self._pending_rows, data.size, data=data.to_pybytes()))
        else:
            path = f"{OUTBOX}/{self._name}-{len(self._done):03d}.arrow"
            self._storage.put(path, memoryview(data))
            self._done.append(Staged(path, final, self._pending_rows, data.size))
        self._rows += self._pending_rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _key_bytes(column: pa.Array) -> pa.Array:
    """A record's key: text and bytes as they are, other values as JSON writes them; null is no key."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.binary())
    texts = json_texts(pa.record_batch([column], names=["k"]))
    bare = pc.replace_substring_regex(texts, r'^\{"k":"?(.*?)"?\}$', r"\1")
    return pc.if_else(column.is_valid(), bare, pa.scalar(None, pa.string())).cast(pa.binary())
