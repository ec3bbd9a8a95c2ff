"""Memory by its address, for machine code: what librdkafka holds, and text that is read byte by byte.

Importing this imports Numba. Addresses are 64-bit integers. NB: an array that one compiled function hands to another costs more than work
on a byte does, as Numba counts references; an address costs nothing.
"""

from __future__ import annotations

from typing import Any

from streamjoin.native.numba_names import addresses, cgutils, ir, types


def _load(builder: Any, address: Any, bits: int) -> Any:
    return builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()))


@addresses
def byte_at(context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], 8)

    return types.uint8(types.uint64), code


@addresses
def int32_at(context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], 32)

    return types.int32(types.uint64), code


@addresses
def int64_at(context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], 64)

    return types.int64(types.uint64), code


@addresses
def copy(context: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """Bytes from one place to another that does not overlap it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, *(builder.inttoptr(address, pointer) for address in arguments[:2]), arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@addresses
def put_byte(context: Any, address: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint8), code
