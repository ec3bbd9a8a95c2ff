"""Machine code that goes through librdkafka's messages, so that no Python object is made of each: for ``kafka_bulk``, which says what
holds.

Importing this imports Numba. Addresses are uint64; a message is ``rd_kafka_message_t``, whose layout ``kafka_message`` has.
"""

from __future__ import annotations

from typing import Any

from streamjoin.native.addresses import copy, int32_at, int64_at
from streamjoin.native.functions import native, read, write
from streamjoin.native.kafka_message import Message
from streamjoin.native.numba_names import addresses, ir, types

ERROR = Message.err.offset
TOPIC_OF = Message.topic.offset
PARTITION = Message.partition.offset
VALUE, VALUE_BYTES = Message.payload.offset, Message.payload_bytes.offset
KEY, KEY_BYTES = Message.key.offset, Message.key_bytes.offset
OFFSET = Message.offset.offset
NEWLINE = 10
SPACE = 32

DONE, VALUES_FULL, KEYS_FULL, TOPIC_UNKNOWN = 0, 1, 2, 3
"""Why :func:`gather` has stopped."""
AT, RECORDS, VALUES_USED, KEYS_USED, EVENTS, PASSED, NO_LINES, TOPIC, OTHER_TOPIC = range(9)
"""What each number of the state is: the message to go on with; the records, bytes and events so far; whether, 0 or 1, a record at or after
the end has come, and a value is not one line with something in it; the address of the topic that is read, and of another one, 0 where it is
not known yet. All messages that are taken at once have one address for one topic."""
STATES = 9


@addresses
def _call(context: Any, function: Any, argument: Any) -> Any:
    """Calls ``void function(argument)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), code


@addresses
def _call_with_two(context: Any, function: Any, first: Any, second: Any) -> Any:
    """Calls ``int64_t function(first, second)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), ir.IntType(64)])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.uint64, types.uint64, types.uint64), code


@native(
    (
        *(read("uint64"), "int64", "int64", "int64", "int64", "int64"),
        *(write("int64"), write("int64"), write("int64")),
        *(write("uint8"), write("int64"), write("uint8")),
        *(write("uint8"), write("int64"), write("uint8")),
        *(write("int64"), "int64", "uint64", "uint64"),
    )
)
def gather(
    messages: Any,
    count: Any,
    partition: Any,
    low: Any,
    high: Any,
    gap: Any,
    state: Any,
    offsets: Any,
    events: Any,
    values: Any,
    value_ends: Any,
    value_given: Any,
    keys: Any,
    key_ends: Any,
    key_given: Any,
    times: Any,
    step: Any,
    timestamp: Any,
    destroy: Any,
) -> Any:
    """Copies records out of messages and destroys those, until all are done or there is no room for one; O(bytes).

    ``messages``: addresses; state[AT] says with which to begin. Records of other topics and partitions, and of offsets outside [low, high),
    are dropped; what is no record is left alone, and its index put into ``events``. Values go to ``values``, ``gap`` bytes apart (the byte
    is a newline), and keys to ``keys`` where ``key_ends`` has room for them; timestamps, by the function ``timestamp``, to ``times``: of
    the first record, and of each that is ``step`` after one. For the rest see ``kafka_records``. Returns DONE; VALUES_FULL or KEYS_FULL:
    then call again with more room, or with all of it; or TOPIC_UNKNOWN: then call again with the topic of state[AT] in the state.
    """
    at, row, used, keys_used, found = state[AT], state[RECORDS], state[VALUES_USED], state[KEYS_USED], state[EVENTS]
    passed, no_lines = state[PASSED], state[NO_LINES]
    wants_keys = len(key_ends) > 0
    timed = -(-row // step)  # of the rows before this call; a division of each would take as long as the rest
    due = timed * step
    values_at, keys_at = types.uint64(values.ctypes.data), types.uint64(keys.ctypes.data)
    result = DONE
    while at < count:
        message = messages[at]
        if int32_at(message + types.uint64(ERROR)) != 0:
            events[found] = at
            found += 1
            at += 1
            continue
        topic = int64_at(message + types.uint64(TOPIC_OF))
        if topic != state[TOPIC] and topic != state[OTHER_TOPIC]:
            result = TOPIC_UNKNOWN
            break
        offset = int64_at(message + types.uint64(OFFSET))
        if topic != state[TOPIC]:
            _call(destroy, message)
            at += 1
            continue
        if int32_at(message + types.uint64(PARTITION)) != partition or offset < low or offset >= high:
            if offset >= high and int32_at(message + types.uint64(PARTITION)) == partition:
                passed = 1
            _call(destroy, message)
            at += 1
            continue
        source = types.uint64(int64_at(message + types.uint64(VALUE)))
        nbytes = int64_at(message + types.uint64(VALUE_BYTES)) if source != 0 else 0
        if used + nbytes + gap > len(values):
            result = VALUES_FULL
            break
        if wants_keys:
            key = types.uint64(int64_at(message + types.uint64(KEY)))
            key_nbytes = int64_at(message + types.uint64(KEY_BYTES)) if key != 0 else 0
            if keys_used + key_nbytes > len(keys):
                result = KEYS_FULL
                break
            copy(keys_at + types.uint64(keys_used), key, types.uint64(key_nbytes))
            keys_used += key_nbytes
            key_ends[row] = keys_used
            key_given[row] = key != 0
        if row == due:
            times[timed] = _call_with_two(timestamp, message, types.uint64(0))
            timed += 1
            due += step
        copy(values_at + types.uint64(used), source, types.uint64(nbytes))
        _call(destroy, message)
        end = used + nbytes
        if gap:
            newlines = 0
            for index in range(types.uint64(used), types.uint64(end)):
                newlines += values[index] == NEWLINE
            no_lines |= nbytes == 0 or values[used] <= SPACE or newlines > 0
            values[end] = NEWLINE
        value_ends[row] = end
        value_given[row] = source != 0
        offsets[row] = offset
        used = end + gap
        row += 1
        at += 1
    state[AT], state[RECORDS], state[VALUES_USED], state[KEYS_USED], state[EVENTS] = at, row, used, keys_used, found
    state[PASSED], state[NO_LINES] = passed, no_lines
    return result
