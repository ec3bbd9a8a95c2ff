"""A message as librdkafka has it. Importing this imports no Numba."""

from __future__ import annotations

import ctypes


class Message(ctypes.Structure):
    """rd_kafka_message_t. Pointers are integers, so that NumPy can make arrays of it."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_size_t),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_size_t),
        ("payload_bytes", ctypes.c_size_t),
        ("key", ctypes.c_size_t),
        ("key_bytes", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("opaque", ctypes.c_size_t),
    )
