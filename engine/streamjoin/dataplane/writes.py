"""Writes what a task of an epoch makes: results through the sink, blocks and marks. Writing goes on beside this epoch's join and the next
one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.dataplane.compiled import plan_of
from streamjoin.dataplane.matches import Rows, describe_marks, encode_marks, identities_of
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import Config, EpochSpec
from streamjoin.io.base import Staged
from streamjoin.kernel.run import Run
from streamjoin.results.parts import PartWriter, StagedPart
from streamjoin.scheme.tiling import Area
from streamjoin.state.blocks import FOLDER, Block, axes_of, checks_of, describe, encode_in_parts, is_file, load, name_of
from streamjoin.state.store import SCRATCH_BYTES, HeldRun, settle, slice_keys

T = TypeVar("T")


class Writes:
    """What a task writes, results and blocks, while the join goes on. Closed or abandoned, it leaves no write behind.

    Small blocks are left to the driver, as long as they are not many. What is left to it waits for nothing, and is encoded at once: a
    thread for it would cost as much again.
    """

    def __init__(
        self, spec: EpochSpec, config: Config, areas: dict[int, Area], report: TaskReport, results: str, writing: Executor
    ) -> None:
        """``writing``: carries out what waits for storage."""
        self._spec, self._storage, self._areas, self._report, self._writing = spec, config.storage, areas, report, writing
        self._sink = config.sink.writers(report.token, results, small_bytes=spec.small_bytes)
        self._parts = {
            join: PartWriter(form, self._storage, f"{report.token}-{number}", spec.small_bytes // len(config.snapshots))
            for number, (join, form) in enumerate(config.snapshots.items())
        }
        self._begun_parts: dict[str, Future[list[StagedPart]]] = {}
        local = self._storage.local_path(FOLDER) is not None
        self._axes = None if local else axes_of(plan_of(spec.scheme, spec.config).uncut, config.layout.main)
        self._going_on: list[Future[Any]] = []
        """What is written elsewhere than to the report."""
        self._result_bytes: defaultdict[str, int] = defaultdict(int)
        """By join."""
        self._few_bytes = config.sink.share(spec.small_bytes) // 2
        """Results of no more are left to the driver, in whatever format; of more, perhaps."""
        self._begun: dict[str, Future[Block]] = {}
        self._begun_marks: list[Future[Block]] = []
        self._staged: list[Future[list[Staged]]] = []
        self._small_bytes = spec.small_bytes
        """The bytes that may yet be left to the driver."""

    def results(self, join: str, batch: pa.RecordBatch) -> None:
        self._sink.write(join, batch)
        self._result_bytes[join] += batch.get_total_buffer_size()  # ``nbytes`` takes 40 times as long
        if join in self._parts:
            self._parts[join].write(batch)

    def finish_results(self, join: str) -> None:
        """There are no more of this join; begin to make them durable."""
        small = self._result_bytes[join] <= self._few_bytes
        self._staged.append(self._begin(small, lambda: self._sink.close(join)))
        if join in self._parts:
            self._begun_parts[join] = self._begin(small, self._parts[join].close)

    def block(self, key: tuple[int, int], run: Run) -> tuple[str, ...]:
        """Begin to write the tuples of a run that this area stores; the block's name, or nothing when there are none."""
        area, place = key
        keys = self._areas[area].writes[place]
        if keys is None or place in self._spec.ended:
            return ()
        batch = slice_keys(run.batch, keys)
        if not batch.num_rows:
            return ()
        name = self._name(batch.nbytes, f"{area}-{place}-{len(self._begun)}")
        self._begun[name] = self._begin(not is_file(name), lambda: self._put(name, batch, place, area))
        return (name,)

    def marks(self, key: tuple[int, int], join: str, parts: Sequence[Rows]) -> None:
        """Begin to write a join's marks of one or more tuples that this area stores."""
        area, place = key
        block = describe_marks(parts, self._areas[area].units[place], place=place, area=area)
        self.marks_of(replace(block, join=join), identities_of(parts))

    def marks_of(self, block: Block, identities: NDArray[np.int64]) -> None:
        """Begin to write marks; of ``block`` all but the name, the plan and the bytes is known."""
        name = self._name(identities.nbytes, f"{block.area}-{block.place}-marks-{len(self._begun_marks)}")
        block = replace(block, name=name, generation=self._spec.generation)
        self._begun_marks.append(self._begin(not is_file(name), lambda: self._put_marks(block, identities)))

    def _name(self, nbytes: int, which: str) -> str:
        small = nbytes <= self._small_bytes
        self._small_bytes -= nbytes if small else 0
        return name_of(f"{self._report.token}-{which}", small=small)

    def _put(self, name: str, batch: pa.RecordBatch, place: int, area: int) -> Block:
        data, parts = encode_in_parts(batch, None if self._axes is None else self._axes[area])
        self._store(name, data)
        of_plan = {"place": place, "generation": self._spec.generation, "area": area}
        return describe(batch, name=name, **of_plan, nbytes=data.size, parts=parts, checks=checks_of(data, parts))

    def _put_marks(self, block: Block, identities: NDArray[np.int64]) -> Block:
        data = encode_marks(identities)
        self._store(block.name, data)
        return replace(block, nbytes=data.size, checks=checks_of(data))

    def _store(self, name: str, data: pa.Buffer) -> None:
        if is_file(name):
            self._storage.put(name, memoryview(data))
        else:
            self._report.small_blocks[name] = data.to_pybytes()

    def replace(self, names: Iterable[str]) -> None:
        self._report.replaced.extend(names)

    def map(self, held: HeldRun) -> None:
        """Have a run, when large, on mapped pages that the system may evict.

        Its block's, where that is all of it and on this machine; else a scratch file's: what was just written need not be fetched.
        Waits for its block. Raises what the write raised.
        """
        block = self._begun[held.blocks[0]].result() if held.blocks else None
        whole = block is not None and block.rows == held.run.rows and self._storage.local_path(block.name) is not None
        if block is not None and whole and held.run.nbytes > SCRATCH_BYTES and is_file(block.name):
            held.run = Run.of(load(self._storage, block, is_new=True))
        elif held.run.nbytes > SCRATCH_BYTES:
            held.run = Run.of(settle(held.run.batch))

    def wait(self) -> None:
        """Until all is durable; it is in the report then. Raises what a write raised."""
        self._report.staged = [staged for future in self._staged for staged in future.result()]
        self._report.snapshot_parts = {join: parts for join, future in self._begun_parts.items() if (parts := future.result())}
        self._report.blocks = [future.result() for future in self._begun.values()]
        self._report.marks = [future.result() for future in self._begun_marks]

    def _begin(self, small: bool, write: Callable[[], T]) -> Future[T]:
        """``small``: it waits for no storage."""
        if not small:
            future = self._writing.submit(write)
            self._going_on.append(future)
            return future
        done: Future[T] = Future()
        try:
            done.set_result(write())
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        wait(self._going_on)

    def abandon(self) -> None:
        for future in self._going_on:
            future.cancel()
        wait(self._going_on)
        self._sink.abort()
        for writer in self._parts.values():
            writer.abort()
