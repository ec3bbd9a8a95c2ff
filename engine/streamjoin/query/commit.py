"""Finds the commit that a query is about: the newest one, or that of an epoch whose entry still exists.

Always holds: a commit's blocks never change, so that whoever has read them all has seen the join at that one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from streamjoin.query.errors import QueryError, Why
from streamjoin.results.parts import FOLDER as PARTS
from streamjoin.results.reader import list_snapshots
from streamjoin.state.blocks import FOLDER, is_file
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import Damaged, Entry, read_latest
from streamjoin.state.storage import Missing, Storage, StorageError


@dataclass(frozen=True)
class Asked:
    """What a query reads."""

    streams: bool = True
    """Whether it has any."""
    joins: tuple[str, ...] = ()
    """Whose results it has."""


def commit_of(storage: Storage, epoch: int | None = None, asked: Asked = Asked()) -> Checkpoint:
    """The checkpoint after an epoch; None: after the last one. O(entries). Raises QueryError, StorageError.

    ``asked``: by which a refusal says which epochs are there.
    """
    if epoch is None:
        latest = read_latest(storage)
        if latest is None or latest.checkpoint.epoch < 0 or latest.checkpoint.plan.key_spaces is None:
            raise QueryError(Why.ABSENT, f"{storage.url}: nothing is committed yet; ask again after the join's first epoch")
        return latest.checkpoint
    for checkpoint in _newest_first(storage):
        if checkpoint.epoch == epoch:
            return checkpoint
        if checkpoint.epoch < epoch:
            break
    raise gone(storage, epoch, asked)


def gone(storage: Storage, epoch: int, asked: Asked = Asked()) -> QueryError:
    """The error that what is asked of an epoch cannot be read any more, or not yet; it names the epochs of which it can be read. O(entries
    + stored blocks and parts)."""
    objects = {*storage.list(FOLDER), *storage.list("log"), *(storage.list(PARTS) if asked.joins else ())}
    stored = {join: list_snapshots(storage, join) for join in asked.joins}
    whole = set()
    for checkpoint in _newest_first(storage):
        needed = set(_of_blocks(checkpoint)) if asked.streams else set()
        for join in asked.joins:
            by_then = {snapshot.id for snapshot in stored[join] if snapshot.epoch <= checkpoint.epoch}
            needed.update(_of_results(checkpoint, join, by_then))
        if checkpoint.epoch >= 0 and needed <= objects:
            whole.add(checkpoint.epoch)
    there = f"epochs {_ranges(sorted(whole))} are" if len(whole) > 1 else f"epoch {_ranges(sorted(whole))} is" if whole else "none is"
    return QueryError(Why.ABSENT, f"AS OF {epoch}: cannot be read; {there} there, because blocks stay for only a few epochs")


def _of_blocks(checkpoint: Checkpoint) -> Iterator[str]:
    """The objects that have held tuples."""
    for block in checkpoint.state.blocks:
        if block.extent is not None:
            yield block.extent.path
        elif is_file(block.name):
            yield block.name


def _of_results(checkpoint: Checkpoint, join: str, stored: Collection[int]) -> Iterator[str]:
    """The objects that have results which are in no stored snapshot."""
    timeline = checkpoint.snapshots.of(join)
    for snapshot in (*timeline.closed, *(() if timeline.open is None else (timeline.open,))):
        if snapshot.id not in stored:
            yield from (part.path for part in snapshot.parts)


def _newest_first(storage: Storage) -> Iterator[Checkpoint]:
    for path in reversed(storage.list("log")):
        try:
            yield Entry.decode(storage.get(path)).checkpoint
        except (Missing, Damaged):
            continue  # an old one goes at any time
        except StorageError:
            raise


def _ranges(epochs: list[int]) -> str:
    """``3, 5 to 9``."""
    runs: list[list[int]] = []
    for epoch in epochs:
        if runs and epoch == runs[-1][1] + 1:
            runs[-1][1] = epoch
        else:
            runs.append([epoch, epoch])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in runs)
