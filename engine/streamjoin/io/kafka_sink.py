"""A sink of one Kafka topic: each result is a record, of JSON or Avro, sent by the driver once its epoch is committed.

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
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException
from pyarrow import ipc

from streamjoin.io.base import Sink, SinkError, Staged, Traffic, UnavailableError
from streamjoin.io.encoded import Encoding, KafkaWriter
from streamjoin.io.kafka_client import Complaints, KafkaClient, client_of, error_of, reason_of, registry_config
from streamjoin.io.kafka_records import Outgoing
from streamjoin.io.kafka_sender import Sender
from streamjoin.io.kafka_transactions import Transactions, passing_of, place_of, settings
from streamjoin.io.outbox import OUTBOX, data_of, sweep
from streamjoin.io.ownership import OwnedElsewhere, Owner
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.state.storage import Storage, found

if TYPE_CHECKING:
    from streamjoin.io.factory import Writing
    from streamjoin.manifest.connectors.kafka import KafkaSink as Model

NOTE = f"{OUTBOX}/sent"
"""How the name begins of the object that says which epoch's records have all been sent last, by the identity of the first."""
CLUSTERS = "clusters"
"""The folder of objects that say which cluster results were sent to."""
QUEUE_RECORDS = 500_000
QUEUE_KIB = 256 * 1024
WAIT_SECONDS = 0.05
FLUSH_SECONDS = 0.5
LOOK_SECONDS = 1.0
"""The time between two looks whether the brokers have refused a producer that waits for them."""
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
    encoding: Encoding = field(default_factory=Encoding)
    """How results become values."""
    exactly_once: bool = False
    """Whether each epoch's records are one transaction (``kafka_transactions``)."""

    @property
    def origin(self) -> str:
        """How identities begin."""
        return f"{self.query}/{quote(self.join, safe='')}" if self.join else self.query

    @property
    def note(self) -> str:
        """The path of the object that says what was sent last."""
        return f"{NOTE}-{quote(self.join, safe='')}" if self.join else NOTE

    @property
    def cluster_note(self) -> str:
        """The path of the object that says which cluster results were sent to."""
        return f"{CLUSTERS}/kafka-{quote(self.join, safe='')}"


class KafkaSink(Sink):
    """See the module. Pickles without its producer."""

    def __init__(self, config: KafkaSinkConfig, schema: pa.Schema, storage: Storage, refused: RefusedResults | None = None) -> None:
        """Asks nothing of the brokers yet. ``schema`` has the key. ``refused``: where records go that the brokers refuse; None: one ends
        the run."""
        self.config, self.refused = config, refused
        self.schema = schema
        self._storage = storage
        self._producer: Sender | None = None
        self._transactions: Transactions | None = None
        """Of the producer, where it has them."""
        self._failed: list[_Failure] = []
        self._complaints = Complaints()
        self._sent_records = self._sent_bytes = self._failures = 0
        self._noted: bytes | None = None
        """What this process has noted."""
        self._has_noted_cluster = False
        names = [name.casefold() for name in schema.names]
        self._key = None if config.key is None else names.index(config.key.casefold())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_producer": None, "_transactions": None, "_failed": [], "_complaints": Complaints()}

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> KafkaWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""
        checkpoint, epoch, task = stem.rsplit("-", 2)
        prefix = f"{self.config.origin}/{checkpoint}/{int(epoch)}/{int(task)}"
        return KafkaWriter(self._storage, self.schema, self._key, self.config.encoding, name, prefix, small_bytes)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Sends what is staged, ``again`` only unless it is noted that it was sent. Returns when the brokers have it all; O(records).

        ``again`` with nothing to send, as when a driver starts, asks for the topic, and registers the results' schema: what is wrong with
        the options, the topic or the schema is to show before there are results. Raises SinkError, UnavailableError.
        """
        if not staged:
            if again:
                if self.config.encoding.registry is not None:
                    self.config.encoding.register(self.schema)
                self._require_topic()
            return
        note = staged[0].final.encode()
        refused = None if self.refused is None else self.refused.of(*_publication(staged), again=again)
        if (self._noted if not again else found(self._storage, self.config.note)) != note:
            self._send(staged, refused)
            self._storage.put(self.config.note, note)
            self._noted = note
            self._note_cluster()
        if refused is not None:
            refused.published()
        self._storage.delete_many([file.path for file in staged if file.path])

    def claim(self, owner: Owner, *, takes: bool) -> None:
        """See :class:`streamjoin.io.base.Sink`. A topic belongs to nobody, but is of the cluster that results were sent to."""
        client, noted = self.config.client, self._noted_cluster()
        if takes or noted is None or noted.get("topic") != client.topic:
            return
        cluster = client.cluster(SinkError)
        if cluster is not None and cluster != noted["cluster"]:
            before = noted["cluster"]
            problem = f"is of cluster {cluster}, and this checkpoint ({owner.location}) has sent results to that topic of {before}"
            remedy = "correct kafka.bootstrapServers, or choose a new checkpoint.location, with which all results are sent again"
            raise OwnedElsewhere(f"{client} {problem}; {remedy}")

    def _noted_cluster(self) -> dict[str, str] | None:
        data = found(self._storage, self.config.cluster_note)
        return None if data is None else dict(json.loads(data))

    def _note_cluster(self) -> None:
        """Once a process, where something was sent."""
        client = self.config.client
        if not self._has_noted_cluster and (cluster := client.cluster(SinkError)) is not None:
            note = {"topic": client.topic, "cluster": cluster}
            if self._noted_cluster() != note:
                self._storage.put(self.config.cluster_note, json.dumps(note).encode())
        self._has_noted_cluster = True

    @property
    def traffic(self) -> Traffic:
        """The traffic of epochs that were sent whole. If sending an epoch failed, it is not known how many of its records have arrived."""
        return Traffic(self._sent_records, self._sent_bytes, self._failures, self._complaints.count)

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged objects whose name may be removed. O(staged objects)."""
        return sweep(self._storage, OUTBOX, may_remove)

    def _send(self, staged: Sequence[Staged], refused: Refused | None) -> None:
        """Sends all but what is refused, which is kept before a transaction is committed.

        Brokers refuse whole batches, so it is not known which of a batch's records they refused. These are sent again, one by one. Without
        transactions so is everything, in order and under the same identities, as after a crash.
        """
        suspects: set[_Sent] = set()
        try:
            origin, epoch = place_of(staged[0].final)
            producer = self._connected(origin if self.config.exactly_once else None)
            if self._transactions is not None and epoch < self._transactions.sent:
                return
            while True:
                try:
                    nbytes = self._deliver(producer, staged, refused, suspects)
                    break
                except _RefusedError:
                    suspects |= self._refusals(producer)
                    if self._transactions is not None:
                        # The next producer's begin aborts the transaction. librdkafka numbers records wrongly if this one goes on.
                        self._abandon()
                        producer = self._connected(origin)
            if refused is not None:
                refused.keep()
            if self._transactions is not None:
                self._transactions.commit(epoch)
        except BaseException:
            self._failures += 1
            self._abandon()
            raise
        self._sent_records += sum(file.rows for file in staged) - (0 if refused is None else len(refused.letters))
        self._sent_bytes += nbytes

    def _deliver(self, producer: Sender, staged: Sequence[Staged], refused: Refused | None, suspects: set[_Sent]) -> int:
        """Sends the records that are not refused, those of ``suspects`` alone, and waits until the brokers have them; the bytes. Raises
        _RefusedError where all is to be sent anew."""
        if self._transactions is not None:
            self._settled("no transaction could be begun", lambda seconds: producer.begin_transaction())
        nbytes = row = 0
        for file in staged:
            for records in self._batches(file):
                if refused is None or not (refused.letters or suspects):
                    self._enqueue(producer, records, refused, row)
                else:
                    self._pick(producer, records, refused, row, suspects)
                nbytes += records.nbytes
                row += len(records.values)
        self._flush(producer)
        return nbytes

    def _pick(self, producer: Sender, records: Outgoing, refused: Refused, row: int, suspects: set[_Sent]) -> None:
        """Sends records, of which the first is this row of the publication, where some are refused or suspected."""
        begin = 0
        for at, sent in enumerate(zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True)):
            if row + at not in refused.letters and sent not in suspects:
                continue
            self._enqueue(producer, records.slice(begin, at - begin), refused, row + begin)
            begin = at + 1
            if row + at in refused.letters:
                continue
            self._flush(producer)
            try:
                self._enqueue(producer, records.slice(at, 1), refused, row + at)
                self._flush(producer)
            except _RefusedError:
                self._refuse(refused, row + at, records.slice(at, 1), self._failed[0].error)
                if self._transactions is not None:
                    raise
                self._failed.clear()
        self._enqueue(producer, records.slice(begin, len(records.values) - begin), refused, row + begin)

    def _refuse(self, refused: Refused, row: int, record: Outgoing, error: KafkaError) -> None:
        """A record, the only one of ``record``, is a dead letter."""
        value = record.values[0].as_py()
        identity = (record.keys if record.headers is None else record.headers)[0].as_py().decode()
        reason = f"{self.config.client}: {error.str()} (a record of {len(value)} bytes)"
        refused.add(row, identity, reason, self.config.encoding.text(value, self.schema))

    def _refusals(self, producer: Sender) -> set[_Sent]:
        """The records that were refused, or were sent with one that was, once none is under way any more."""
        deadline = self._deadline()
        while self._transactions is None and producer.flush(FLUSH_SECONDS):  # of a failed transaction nothing more is sent
            if time.monotonic() > deadline:
                raise self._silent()
        producer.poll(0)
        failed, self._failed[:] = list(self._failed), []
        others = [each for each in failed if each.error.code() not in _REFUSALS]
        if others and self._transactions is None:
            self._failed.append(others[0])
            self._raise_failed()
        return {each.sent for each in failed if each.sent is not None}

    def _flush(self, producer: Sender) -> None:
        """Until all records are acknowledged. Raises what keeps them from it."""
        deadline = self._deadline()
        while producer.flush(FLUSH_SECONDS):
            self._keep_waiting(deadline)
        self._raise_failed()

    def _require_topic(self) -> None:
        """Raises SinkError for what waiting does not mend, UnavailableError when the brokers do not answer in time."""
        try:
            producer, began = self._connected(None), time.monotonic()
            while (failure := self._topic_failure(producer)) is not None:
                patience = self.config.client.timeout_seconds if isinstance(failure, UnavailableError) else MADE_SECONDS
                if time.monotonic() - began + WAIT_SECONDS > patience:
                    raise failure
                producer.poll(WAIT_SECONDS)
        except BaseException:
            self._abandon()
            raise
        if self.config.exactly_once:
            self._abandon()  # the one that sends has a transactional id, of the checkpoint

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

    def _connected(self, origin: str | None) -> Sender:
        """The producer; ``origin``: one with transactions, of this sink and checkpoint. Raises SinkError, UnavailableError."""
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
            identity = None if origin is None else f"streamjoin-{origin.replace('/', '-')}"
            own |= {} if identity is None else settings(identity, self.config.client.timeout_seconds)
            defaults = {"linger.ms": 5, "queue.buffering.max.messages": QUEUE_RECORDS, "queue.buffering.max.kbytes": QUEUE_KIB}
            topic = self.config.client.topic
            self._producer = self.config.client.make(lambda settings: Sender(topic, defaults | settings), own, SinkError)
            if identity is not None:
                self._transactions = Transactions(self.config.client, identity, self._producer, self._settled)
                self._transactions.begin()
        assert self._producer is not None
        return self._producer

    def _settled(self, what: str, call: Callable[[float], object]) -> None:
        """Makes a call until it succeeds. Raises SinkError for what waiting does not mend, UnavailableError after the deadline."""
        deadline = self._deadline()
        while True:
            try:
                call(LOOK_SECONDS)
                return
            except KafkaException as error:
                inner = error_of(error)
                if inner is None:
                    raise
                if passing_of(error) is None:
                    raise self.config.client.failure(inner, SinkError, what) from None
            assert self._producer is not None
            self._producer.poll(WAIT_SECONDS)
            self._keep_waiting(deadline, what)

    def _abandon(self) -> None:
        """A producer that has failed may hold records still; the next one starts without, and hears nothing of what becomes of those."""
        producer, transactions = self._producer, self._transactions
        self._producer = self._transactions = None
        with contextlib.suppress(KafkaException):
            if transactions is not None:
                transactions.close()
            if producer is not None:
                producer.abandon(WAIT_SECONDS)

    def _batches(self, file: Staged) -> Iterator[Outgoing]:
        data = data_of(self._storage, file, "there is no note that they were sent")
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

    def _enqueue(self, producer: Sender, records: Outgoing, refused: Refused | None, row: int) -> None:
        """Hands records to librdkafka, which sends them meanwhile; waits where its queue is full. O(records), in order.

        The first is this row of the publication. One that librdkafka itself refuses goes to ``refused``.
        """
        taken, deadline = 0, self._deadline()
        while True:
            before = taken
            taken, error = producer.send(records, before)
            if error is None:
                break
            if error.code() in _REFUSALS and refused is not None:
                self._refuse(refused, row + taken, records.slice(taken, 1), error)
                taken += 1
                continue
            if error.code() != KafkaError._QUEUE_FULL:
                producer.flush(FLUSH_SECONDS)  # a transaction that has failed takes none, and the reason may be yet to come
                self._raise_failed()
                raise self._refused(error, len(records.values[taken].as_py()))
            if taken > before:
                deadline = self._deadline()
            producer.poll(WAIT_SECONDS)
            self._keep_waiting(deadline)
        producer.poll(0)
        self._raise_failed()

    def _deadline(self) -> float:
        return time.monotonic() + self.config.client.timeout_seconds + MARGIN_SECONDS

    def _keep_waiting(self, deadline: float, what: str = "not all records were acknowledged") -> None:
        """Raises what keeps records from being acknowledged: at once where waiting does not help, else after the deadline."""
        self._raise_failed()
        refusal = self._complaints.refusal(self.config.client, SinkError)
        if refusal is not None:
            raise refusal
        if time.monotonic() > deadline:
            raise self.config.client.unavailable(what, self._complaints.text)

    def _refused(self, error: KafkaError, nbytes: int) -> Exception:
        return self.config.client.failure(error, SinkError, f"no record of {nbytes} bytes could be sent")

    def _raise_failed(self) -> None:
        """Raises why records were not delivered, _RefusedError where single ones are to blame and may be dead letters."""
        if self._failed:
            error = self._failed[0].error
            if error.code() == KafkaError._MSG_TIMED_OUT:
                raise self._silent()
            if error.code() in _REFUSALS and self.refused is not None:
                raise _RefusedError
            raise self.config.client.failure(error, SinkError, "not all records were taken")

    def _silent(self) -> Exception:
        return self.config.client.unavailable("not all records were acknowledged", self._complaints.text)


_Sent: TypeAlias = tuple[bytes | None, bytes | None]
"""A record's key and value."""
_REFUSALS = (
    *(KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD),
    KafkaError._INVALID_DIFFERENT_RECORD,
)
"""What is wrong with a record, or with another one of its batch, and not with the topic or the client."""


@dataclass(frozen=True)
class _Failure:
    error: KafkaError
    sent: _Sent | None
    """The record, where it may be to blame."""


class _RefusedError(Exception):
    """The brokers have refused records."""


def _delivered(failed: list[_Failure], error: KafkaError | None, message: Any) -> None:
    if error is None:
        return
    is_refusal = error.code() in _REFUSALS
    if is_refusal or not failed:
        failed.append(_Failure(error, (message.key(), message.value()) if is_refusal else None))


def _publication(staged: Sequence[Staged]) -> tuple[str, int]:
    """The checkpoint and the epoch of what is published together."""
    origin, epoch = place_of(staged[0].final)
    return origin.rsplit("/", 1)[1], epoch


def open_sink(model: Model, writing: Writing) -> KafkaSink:
    """See ``io.factory``."""
    encoding = Encoding(model.format, registry_config(model), f"{model.topic}-value")
    config = KafkaSinkConfig(client_of(model), writing.query, model.key, writing.join, encoding, model.delivery == "exactlyOnce")
    return KafkaSink(config, writing.schema, writing.outbox, writing.refused)
