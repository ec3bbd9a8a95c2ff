"""Which commit a query is about: the newest, or that of an epoch which is still there.

Always holds: a commit's blocks never change, so that whoever has read them all has seen the join at that one moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.query.errors import QueryError, Why
from streamjoin.state.blocks import FOLDER, is_file
from streamjoin.state.log import Checkpoint, Damaged, Entry, read_latest
from streamjoin.state.storage import Missing, Storage, StorageError


def commit_of(storage: Storage, epoch: int | None = None) -> Checkpoint:
    """The checkpoint after an epoch; None: after the last one. O(entries). Raises QueryError, StorageError."""
    if epoch is None:
        latest = read_latest(storage)
        if latest is None or latest.checkpoint.epoch < 0 or latest.checkpoint.main is None:
            raise QueryError(Why.ABSENT, f"{storage.url}: nothing is committed yet; ask again after the join's first epoch")
        return latest.checkpoint
    for checkpoint in _newest_first(storage):
        if checkpoint.epoch == epoch:
            return checkpoint
        if checkpoint.epoch < epoch:
            break
    raise gone(storage, epoch)


def gone(storage: Storage, epoch: int) -> QueryError:
    """That an epoch cannot be read any more, or not yet, and which can. O(entries + stored blocks)."""
    files = set(storage.list(FOLDER))
    entries = set(storage.list("log"))
    whole = set()
    for checkpoint in _newest_first(storage):
        has_files = all(block.name in files for block in checkpoint.blocks if is_file(block.name))
        if checkpoint.epoch >= 0 and has_files and all(block.extent.path in entries for block in checkpoint.blocks if block.extent):
            whole.add(checkpoint.epoch)
    there = f"epochs {_ranges(sorted(whole))} are" if len(whole) > 1 else f"epoch {_ranges(sorted(whole))} is" if whole else "none is"
    return QueryError(Why.ABSENT, f"AS OF {epoch}: cannot be read; {there} there, as blocks stay for few epochs after their last")


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
