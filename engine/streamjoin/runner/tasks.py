"""What Spark's tasks run, in the executors' Python workers: the spec comes as a local property, pieces and reports go as rows of bytes.

Always holds: this module loads neither the driver nor the manifest's models, which each new worker would pay for at its start.
"""

from __future__ import annotations

import base64
import gc
import pickle
import zlib
from collections.abc import Iterator

import pyarrow as pa

from streamjoin.epoch.join import join
from streamjoin.epoch.route import route
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.kernel import run
from streamjoin.state.store import RunStore

PIECE_SCHEMA = "task int, area int, side int, data binary"
PIECE_ARROW = pa.schema([("task", pa.int32()), ("area", pa.int32()), ("side", pa.int32()), ("data", pa.binary())])
REPORT_SCHEMA = "report binary"
REPORT_ARROW = pa.schema([("report", pa.binary())])
WORK = "streamjoin.work"
"""The local property with an epoch's spec and slots, as :func:`packed` writes them."""

_store = RunStore()
_tasks = 0


def packed(spec: EpochSpec, slots: tuple[int, ...]) -> str:
    """``slots``: by task, the partition that it runs as."""
    return base64.b64encode(zlib.compress(pickle.dumps((spec, slots)), 1)).decode()


def _work() -> tuple[EpochSpec, tuple[int, ...], int]:
    """Of the task that runs: the epoch's spec, its slots, and the partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    spec, slots = pickle.loads(zlib.decompress(base64.b64decode(context.getLocalProperty(WORK) or "")))  # noqa: S301 - from the driver
    return spec, slots, context.partitionId()


def _freeze() -> None:
    """PySpark collects garbage after every task: 130 ms with the objects of Numba and Arrow, next to nothing once they are frozen.

    Done after the first tasks, and then ever more rarely: what lives on until then is there to stay.
    """
    global _tasks  # noqa: PLW0603
    _tasks += 1
    if _tasks.bit_count() == 1 or _tasks == 3:
        gc.collect()
        gc.freeze()


def warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of ``mapInArrow``: loads the kernels and passes the rows on."""
    run.warm()
    _freeze()
    yield from batches


def route_splits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of ``mapInArrow``: numbers of the spec's splits -> rows of PIECE_SCHEMA, whose ``task`` is a slot."""
    spec, slots, _ = _work()
    for batch in batches:
        for index in batch.column(0).to_pylist():
            for piece in route(spec, index):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([slots[piece.task]], pa.int32()),
                        pa.array([piece.area], pa.int32()),
                        pa.array([piece.side], pa.int32()),
                        _binary(piece.data),
                    ],
                    schema=PIECE_ARROW,
                )
    _freeze()


def join_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of ``mapInArrow``: a slot's pieces -> the report of its task, pickled, if it has one."""
    spec, slots, slot = _work()
    if slot in slots:
        report = join(spec, slots.index(slot), _pieces(batches), _store)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], schema=REPORT_ARROW)
    for _ in batches:  # of a slot without a task: Spark ends a Python worker that leaves input unread, and the runs in it with it
        pass
    _freeze()


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in batches:
        slot, area, side = (batch.column(index).to_pylist() for index in range(3))
        for index, value in enumerate(batch.column(3)):
            yield Piece(slot[index], area[index], side[index], value.as_buffer())


def _binary(data: pa.Buffer) -> pa.Array:
    """A one-value binary array around a buffer, without a copy."""
    offsets = pa.py_buffer(b"\0\0\0\0" + data.size.to_bytes(4, "little"))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
