"""A Kafka consumer that fetches records in bulk, with no Python object for each.

``confluent_kafka`` makes an object of each record, which costs three quarters of the time that reading takes. This takes the same
library, the one that ``confluent_kafka`` is linked with, and has it hand over thousands of messages at once, which machine code
(``native.kafka``) copies into one buffer. Configuration, errors and log lines are those of ``confluent_kafka``: the same options by the
same names, ``KafkaError``, ``KafkaException``, and the entries ``error_cb`` and ``logger``.

Always holds:

- *Who owns what.* A consumer owns its handle, and the queue made of it, which it destroys before the handle: when it is closed, or else
  when it is collected. A message belongs to the consumer from when librdkafka gives it until it is destroyed, by
  :meth:`BulkConsumer.take` once it has been copied, or when the consumer is sent elsewhere or closed; there is none left when the handle
  is destroyed, which librdkafka demands. What ``take`` returns lies in arrays of its own.
- *Threads.* One thread at a time uses a consumer. librdkafka's own threads never call Python: errors and log lines wait in its queue until
  the consumer is polled, and come in the thread that polls. No lock of Python's is held while librdkafka is called. A process that was
  forked leaves its parent's consumers alone.
- *Errors.* What a call answers is raised as ``KafkaException``; what a consumer meets while it fetches are events among the records; what
  librdkafka mends by itself goes to ``error_cb``. None of these loses a record: the next ``take`` goes on after the last one.
- *Which records.* librdkafka drops control records, and with ``read_committed`` those of aborted transactions; these and compaction leave
  gaps in the offsets, which are those of the records. A null value or key is none, an empty one is given. Times are those of the record,
  whether its producer's or the broker's, -1 where it has none.
- *Secrets.* Options go to librdkafka and are not kept here. What it says of one that it refuses is shown by nobody: ``KafkaClient`` then
  asks ``confluent_kafka``. Its debugging shows no option that is a secret.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from streamjoin.io.arrivals import Stamps, sample_step
from streamjoin.io.kafka_records import Cells, Event, Fetched, KafkaSplit, Wanted
from streamjoin.io.librdkafka import CONSUMER, ErrorCallback, Library, LogCallback
from streamjoin.native.kafka_message import Message

BATCH_MESSAGES = 20_000
"""A consumer takes at most so many at once."""
FIRST_BYTES = 1 << 20
BLOCK_BYTES = 64 << 20
"""Values, and keys, that are given out at once have about so much room, unless it is one record that needs more."""
_LEVELS = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""By syslog's level, which librdkafka says."""
_CONF_OK = 0
_WITHOUT_CLOSE = 0x8
_TEXT_BYTES = 512


def _opened(library: Library, settings: Mapping[str, Any]) -> tuple[int, list[Any]]:
    """A handle of librdkafka, and callbacks that must live as long as it. Raises KafkaException where an option is refused."""
    options = dict(settings)
    logger, on_error = (options.pop(name, None) for name in ("logger", "error_cb"))
    callbacks: list[Any] = []
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = library.conf_new()
    try:
        for name, value in options.items():
            given = str(value).lower() if isinstance(value, bool) else str(value)
            if library.conf_set(conf, name.encode(), given.encode(), text, _TEXT_BYTES) != _CONF_OK:
                raise KafkaException(library.error(KafkaError._INVALID_ARG, text.value))
        if logger is not None:
            # Or librdkafka's threads would call the logger.
            library.conf_set(conf, b"log.queue", b"true", text, _TEXT_BYTES)
            callbacks.append(LogCallback(functools.partial(_write_log, library, logger)))
            library.conf_set_log_cb(conf, callbacks[-1])
        if on_error is not None:
            callbacks.append(ErrorCallback(functools.partial(_tell_error, library, on_error)))
            library.conf_set_error_cb(conf, callbacks[-1])
        handle = library.new(CONSUMER, conf, text, _TEXT_BYTES)
        if not handle:
            raise KafkaException(library.error(library.last_error(), text.value))
    except BaseException:
        library.conf_destroy(conf)
        raise
    if logger is not None:
        library.set_log_queue(handle, None)
    return handle, callbacks


def _write_log(library: Library, logger: logging.Logger, handle: int, level: int, facility: bytes, text: bytes) -> None:
    said = [part.decode(errors="replace") for part in (facility, library.name(handle), text)]
    logger.log(_LEVELS[level], "%s [%s] %s", *said)


def _tell_error(library: Library, on_error: Callable[[KafkaError], None], handle: int, code: int, reason: bytes, _: int) -> None:
    if code == KafkaError._FATAL:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = library.fatal_error(handle, text, _TEXT_BYTES)
        reason = text.value
    on_error(library.error(code, reason))


class _Taken:
    """The messages that librdkafka gave, until each is destroyed."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.addresses = np.zeros(BATCH_MESSAGES, np.uint64)
        self.next = self.count = 0
        """Those from the one to the other have not been looked at."""

    def drop(self) -> None:
        left = self.addresses[self.next : self.count].tolist()
        self.next = self.count = 0
        for message in left:
            self._library.message_destroy(message)


def _destroy(library: Library, process: int, handle: int, queue: int, taken: _Taken, callbacks: list[Any]) -> None:
    """``callbacks`` are only kept: they must live as long as the handle."""
    if os.getpid() != process:
        return
    taken.drop()
    library.queue_destroy(queue)
    library.destroy_flags(handle, _WITHOUT_CLOSE)


class BulkConsumer:
    """Fetches ranges of one partition at a time."""

    def __init__(self, library: Library, settings: Mapping[str, Any]) -> None:
        """As ``confluent_kafka.Consumer``. Raises KafkaException where librdkafka refuses an option."""
        self._library = library
        self._handle, callbacks = _opened(library, settings)
        library.poll_set_consumer(self._handle)
        self._queue = library.queue_get_consumer(self._handle)
        self._taken = _Taken(library)
        self._value_bytes = self._key_bytes = FIRST_BYTES
        self._end = weakref.finalize(self, _destroy, library, os.getpid(), self._handle, self._queue, self._taken, callbacks)
        self._end.atexit = False  # a process that ends needs no order, and librdkafka's threads call nothing of it

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Fetch from there on, and nothing else. Raises KafkaException."""
        self._taken.drop()
        library = self._library
        place = library.topic_partition_list_new(1)
        library.topic_partition_list_add(place, topic.encode(), partition)
        library.topic_partition_list_set_offset(place, topic.encode(), partition, offset)
        code = library.assign(self._handle, place)
        library.topic_partition_list_destroy(place)
        if code:
            raise KafkaException(library.error(code))

    def rest(self) -> None:
        """Fetch nothing until the next ``assign``. Raises KafkaException."""
        self._taken.drop()
        code = self._library.assign(self._handle, None)
        if code:
            raise KafkaException(self._library.error(code))

    def learn(self, topic: str, timeout_seconds: float) -> None:
        """Ask which brokers lead the topic's partitions. Raises KafkaException."""
        library, found = self._library, ctypes.c_void_p()
        asked = library.topic_new(self._handle, topic.encode(), None)
        if not asked:
            raise KafkaException(library.error(library.last_error()))
        try:
            code = library.metadata(self._handle, 0, asked, ctypes.byref(found), int(timeout_seconds * 1000))
        finally:
            library.topic_destroy(asked)
        if code:
            raise KafkaException(library.error(code))
        library.metadata_destroy(found)

    def take(self, split: KafkaSplit, low: int, limit: int, wanted: Wanted, timeout_seconds: float) -> Fetched:
        """The split's records from offset ``low`` on, at most ``limit``, as far as they come within the time. O(bytes)."""
        taken = self._taken
        if taken.next == taken.count:
            taken.next, millis = 0, int(timeout_seconds * 1000)
            taken.count = max(
                0, self._library.consume_batch_queue(self._queue, millis, taken.addresses.ctypes.data, min(limit, BATCH_MESSAGES))
            )
        return self._copied(split, low, wanted)

    def _copied(self, split: KafkaSplit, low: int, wanted: Wanted) -> Fetched:
        from streamjoin.native import kafka as native  # loads Numba

        taken, library = self._taken, self._library
        room = taken.count - taken.next
        offsets, found, value_ends, value_given = (np.empty(room, kind) for kind in (np.int64, np.int64, np.int64, np.uint8))
        key_ends, key_given = np.empty(room * wanted.keys, np.int64), np.empty(room * wanted.keys, np.uint8)
        # The first row's, and of those after it each how manieth.
        step = 1 if wanted.timestamps else sample_step(room)
        times = np.empty(-(-room // step), np.int64)
        values, keys = np.empty(self._value_bytes, np.uint8), np.empty(self._key_bytes * wanted.keys, np.uint8)
        state = np.zeros(native.STATES, np.int64)
        state[native.AT] = taken.next
        functions = library.address("message_timestamp"), library.address("message_destroy")
        try:
            while True:
                result = native.gather(
                    *(taken.addresses, taken.count, split.number, low, split.end, int(wanted.lines), state, offsets, found),
                    *(values, value_ends, value_given, keys, key_ends, key_given, times, step, *functions),
                )
                taken.next = int(state[native.AT])
                if result == native.VALUES_FULL and (len(values) < BLOCK_BYTES or not state[native.RECORDS]):
                    values = _larger(values)
                elif result == native.KEYS_FULL and (len(keys) < BLOCK_BYTES or not state[native.RECORDS]):
                    keys = _larger(keys)
                elif result == native.TOPIC_UNKNOWN:
                    self._tell_topic(split, state)
                else:
                    break
        finally:
            events = [self._event(address) for address in taken.addresses[found[: state[native.EVENTS]]].tolist()]
        count, used, keys_used = (int(state[at]) for at in (native.RECORDS, native.VALUES_USED, native.KEYS_USED))
        self._value_bytes, self._key_bytes = (min(max(FIRST_BYTES, nbytes + nbytes // 4), BLOCK_BYTES) for nbytes in (used, keys_used))
        is_lines = wanted.lines and not state[native.NO_LINES]
        return Fetched(
            offsets[:count],
            Cells(values[:used], value_ends[:count], value_given[:count].view(bool), int(wanted.lines), is_lines),
            Cells(keys[:keys_used], key_ends[:count], key_given[:count].view(bool)) if wanted.keys else None,
            times[:count] if wanted.timestamps else None,
            bool(state[native.PASSED]),
            events,
            arrived=_stamps(times, step, count),
        )

    def _tell_topic(self, split: KafkaSplit, state: np.ndarray) -> None:
        """Says of the message that the state stands at whether it is of the split's topic."""
        from streamjoin.native import kafka as native

        topic = Message.from_address(int(self._taken.addresses[state[native.AT]])).topic
        state[native.TOPIC if self._topic_of(topic) == split.topic else native.OTHER_TOPIC] = topic

    def _topic_of(self, topic: int) -> str | None:
        """The name of a topic, by its address."""
        name = self._library.topic_name(topic) if topic else None
        return None if name is None else str(name.decode())

    def _event(self, address: int) -> Event:
        message = Message.from_address(address)
        error = self._library.error(message.err, self._library.message_errstr(address))
        event = Event(error, self._topic_of(message.topic), message.partition, message.offset)
        self._library.message_destroy(address)
        return event

    def close(self) -> None:
        """End it in order; a second call does nothing."""
        if self._end.alive:
            self._taken.drop()
            self._library.consumer_close(self._handle)
            self._end()


def _stamps(times: np.ndarray, step: int, count: int) -> Stamps:
    """``times``: of the first of ``count`` records, and of each that is ``step`` after one."""
    known = -(-count // step)
    fewer = sample_step(known)
    return Stamps(times[:known:fewer], step * fewer, count)


def _larger(data: np.ndarray) -> np.ndarray:
    larger = np.empty(2 * len(data), np.uint8)
    larger[: len(data)] = data
    return larger
