"""Numbers of seven bits a byte, the lowest first, as Avro and Protobuf write them; called by other native functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.addresses import byte_at
from streamjoin.native.numba_names import part
from streamjoin.native.unreadable import ENDS, TOO_LONG


@part
def varint(at: Any, end: Any) -> Any:
    """A number as it is written, and where it ends: -ENDS or -TOO_LONG where it does not."""
    number = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(byte_at(at))
        at += 1
        number |= (byte & np.uint64(127)) << shift
        if byte < 128:
            return number, at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            return number, np.int64(-TOO_LONG)
    return number, np.int64(-ENDS)
