"""librdkafka itself, called without ``confluent_kafka`` in between: its functions, its structures, and whether they can be used.

Whether this can be used at all is found out at the first use in a process, by :func:`load`: the platform must have 64-bit little-endian
words, the library be found, be of a version between ``OLDEST`` and ``NEWEST``, and give back every field of a message that was made for
the purpose where ``native.kafka_message`` says that it is. If not, the log says why, and ``confluent_kafka`` reads the same records one by
one.

The environment variable ``STREAMJOIN_IGNORE_LIBRDKAFKA=1`` makes a process look as if the library could not be used. It is for tests and
benchmarks of the other path, and for nothing else.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from typing import Any

from confluent_kafka import KafkaError, cimpl, libversion

from streamjoin.native.kafka_message import Message

IGNORE = "STREAMJOIN_IGNORE_LIBRDKAFKA"
OLDEST, NEWEST = 0x02000000, 0x02FFFFFF
"""Versions of librdkafka (0xMMmmrrxx) whose interface this is. Within a major version it may only grow."""

log = logging.getLogger("streamjoin.kafka")
CONSUMER = 1
_PRODUCER = 0
_NO_OFFSET = -1001
_COPY = 0x2
_PURGE_ALL = 0x1 | 0x2
_RETURN_MILLIS = 2000
"""A message that was purged comes back at once; a machine that is so slow does without."""

_Pointer = ctypes.c_void_p
ErrorCallback = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int, ctypes.c_char_p, _Pointer)
LogCallback = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
DeliveryCallback = ctypes.CFUNCTYPE(None, _Pointer, ctypes.POINTER(Message), _Pointer)


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "version": (ctypes.c_int, ()),
    "err2str": (ctypes.c_char_p, (ctypes.c_int,)),
    "name": (ctypes.c_char_p, (_Pointer,)),
    "last_error": (ctypes.c_int, ()),
    "fatal_error": (ctypes.c_int, (_Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    "conf_new": (_Pointer, ()),
    "conf_destroy": (None, (_Pointer,)),
    "conf_set": (ctypes.c_int, (_Pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)),
    "conf_set_error_cb": (None, (_Pointer, ErrorCallback)),
    "conf_set_log_cb": (None, (_Pointer, LogCallback)),
    "conf_set_dr_msg_cb": (None, (_Pointer, DeliveryCallback)),
    "new": (_Pointer, (ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    "destroy": (None, (_Pointer,)),
    "destroy_flags": (None, (_Pointer, ctypes.c_int)),
    "set_log_queue": (ctypes.c_int, (_Pointer, _Pointer)),
    "poll": (ctypes.c_int, (_Pointer, ctypes.c_int)),
    "purge": (ctypes.c_int, (_Pointer, ctypes.c_int)),
    "poll_set_consumer": (ctypes.c_int, (_Pointer,)),
    "queue_get_consumer": (_Pointer, (_Pointer,)),
    "queue_destroy": (None, (_Pointer,)),
    "consumer_close": (ctypes.c_int, (_Pointer,)),
    "topic_partition_list_new": (_Pointer, (ctypes.c_int,)),
    "topic_partition_list_add": (_Pointer, (_Pointer, ctypes.c_char_p, ctypes.c_int32)),
    "topic_partition_list_set_offset": (ctypes.c_int, (_Pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64)),
    "topic_partition_list_destroy": (None, (_Pointer,)),
    "assign": (ctypes.c_int, (_Pointer, _Pointer)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_Pointer, ctypes.c_int, _Pointer, ctypes.c_size_t)),
    "message_destroy": (None, (_Pointer,)),
    "message_errstr": (ctypes.c_char_p, (_Pointer,)),
    "message_timestamp": (ctypes.c_int64, (_Pointer, _Pointer)),
    "topic_new": (_Pointer, (_Pointer, ctypes.c_char_p, _Pointer)),
    "topic_destroy": (None, (_Pointer,)),
    "topic_name": (ctypes.c_char_p, (_Pointer,)),
    "produce": (
        ctypes.c_int,
        (_Pointer, ctypes.c_int32, ctypes.c_int, _Pointer, ctypes.c_size_t, _Pointer, ctypes.c_size_t, _Pointer),
    ),
    "metadata": (ctypes.c_int, (_Pointer, ctypes.c_int, _Pointer, ctypes.POINTER(_Pointer), ctypes.c_int)),
    "metadata_destroy": (None, (_Pointer,)),
}
"""Without rd_kafka_, what each returns and takes."""


class UnfitError(RuntimeError):
    """Why the library is not used; the text is for the log."""


class Library:
    """The functions of librdkafka, each by its name without ``rd_kafka_``."""

    def __init__(self, path: str) -> None:
        """Of whatever librdkafka the shared object at ``path`` is linked with. Raises OSError, UnfitError."""
        loaded = ctypes.CDLL(path)
        try:
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, f"rd_kafka_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except AttributeError as missing:
            raise UnfitError(str(missing)) from None

    def __getattr__(self, name: str) -> Any:
        """Only of what is not there; the functions are attributes."""
        raise AttributeError(name)

    def address(self, name: str) -> int:
        """The address of a function, for machine code."""
        return int(ctypes.cast(getattr(self, name), _Pointer).value or 0)

    def error(self, code: int, text: bytes | None = None) -> KafkaError:
        return KafkaError(code, (text or self.err2str(code)).decode(errors="replace"))


def load() -> Library | None:
    """The library if it can be used in this process; the reason why not is logged, once. A few milliseconds, once."""
    return None if os.environ.get(IGNORE) else _loaded()


@functools.cache
def _loaded() -> Library | None:
    try:
        return check(cimpl.__file__, libversion()[1])
    except (OSError, UnfitError) as error:
        log.info("Kafka is read record by record: %s", error)
        return None


def check(path: str, version: int) -> Library:
    """The library behind ``path``, which must be of that version. Raises OSError, UnfitError."""
    if sys.byteorder != "little" or ctypes.sizeof(_Pointer) != 8:
        raise UnfitError("this machine's words are not of 64 bits, lowest byte first")
    library = Library(path)
    found = library.version()
    if found != version:
        raise UnfitError(f"{path}: is linked with librdkafka {found:#010x}, and confluent_kafka with {version:#010x}")
    if not OLDEST <= found <= NEWEST:
        raise UnfitError(f"librdkafka {found:#010x} is not of a version from {OLDEST:#010x} to {NEWEST:#010x}")
    right = _fields_found(library)
    wrong = [name for name, *_ in Message._fields_ if name not in right]
    if wrong:
        raise UnfitError(f"librdkafka {found:#010x} does not have a message's {', '.join(wrong)} where expected")
    return library


def _fields_found(library: Library) -> set[str]:
    """The fields that are where they should be in a message that is made, never sent, and given back by a producer without brokers."""
    found: set[str] = set()

    def returned(_: int, message: Any, __: int) -> None:
        it = message.contents
        found.update(name for name, value in expected.items() if getattr(it, name) == value)
        if len(found) == len(expected) and it.topic:  # else what look like addresses may be none
            found.update({"topic"}, (name for name, text in texts.items() if ctypes.string_at(getattr(it, name), len(text)) == text))

    texts = {"payload": b"a value", "key": b"key"}
    expected = {"err": KafkaError._PURGE_QUEUE, "partition": 5, "offset": _NO_OFFSET, "opaque": 1 << 40}
    expected |= {f"{name}_bytes": len(text) for name, text in texts.items()}
    callback = DeliveryCallback(returned)
    conf = library.conf_new()
    library.conf_set_log_cb(conf, LogCallback())
    library.conf_set_dr_msg_cb(conf, callback)
    handle = library.new(_PRODUCER, conf, None, 0)
    if not handle:
        library.conf_destroy(conf)
        raise UnfitError("librdkafka makes no client")
    topic = library.topic_new(handle, b"layout", None)
    try:
        value, key = texts["payload"], texts["key"]
        library.produce(topic, expected["partition"], _COPY, value, len(value), key, len(key), expected["opaque"])
        library.purge(handle, _PURGE_ALL)
        library.poll(handle, _RETURN_MILLIS)
    finally:
        library.topic_destroy(topic)
        library.destroy(handle)
    return found
