"""Finds, in the log of a Delta table that cannot be read, the files that are damaged: ``deltalake`` does not say which ones."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.state.storage import Missing, ObjectStorage

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
_NAME = re.compile(rf"{LOG}/(\d{{20}})\.(?:(json)|checkpoint.*\.parquet)")
NOT_OF_A_LOG = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading actions raises where they are none. JSON, and text, that cannot be decoded are ValueErrors."""


def actions_of(text: bytes) -> list[dict[str, Any]]:
    """A transaction's actions. Raises one of NOT_OF_A_LOG."""
    lines = [json.loads(line) for line in text.split(b"\n") if line.strip()]
    actions = [{name: of_action for name, of_action in line.items() if of_action is not None} for line in lines]
    for action in actions:
        for name, of_action in action.items():
            if not isinstance(of_action, dict):
                raise TypeError(f"action {name} is {json.dumps(of_action)[:50]}, not an object")
    if not actions:
        raise ValueError("it has no actions")
    return actions


def damaged_files(storage: ObjectStorage, version: int | None, load: Callable[[int], object]) -> list[str]:
    """Of the files from which the log of a version (None: of the newest) is read, those that are none of a log. O(their bytes).

    ``load`` loads a version with ``deltalake``, which knows best what it does not take: of the first one that it cannot load.
    """
    files = _files(storage, version)
    checks = {True: _check_checkpoint, False: actions_of}
    found = [path for _, is_checkpoint, path in files if not _passes(storage, path, checks[is_checkpoint])]
    if not _passes(storage, LAST_CHECKPOINT, _check_last_checkpoint):
        found.append(LAST_CHECKPOINT)
    refused = (path for number, _, path in files if not _loads(load, number)) if not found else ()
    return found or list(itertools.islice(refused, 1))


def damaged_transactions(storage: ObjectStorage, version: int) -> list[str]:
    """As ``damaged_files``, without the checkpoints, which may be large."""
    return [path for _, is_checkpoint, path in _files(storage, version) if not is_checkpoint and not _passes(storage, path, actions_of)]


def _files(storage: ObjectStorage, version: int | None) -> list[tuple[int, bool, str]]:
    """From the newest checkpoint on: of which version a file is, whether it is a checkpoint, and its path. Checkpoints come first."""
    named = [(int(found[1]), found[2] is None, path) for path in storage.list(LOG) if (found := _NAME.fullmatch(path))]
    known = [each for each in named if version is None or each[0] <= version]
    since = max((number for number, is_checkpoint, _ in known if is_checkpoint), default=-1)
    return sorted((each for each in known if each[0] >= since), key=lambda each: (each[0], not each[1]))


def is_failure(error: BaseException) -> bool:
    """Whether it is an error, or one of Rust's panics, which Python takes for more than that."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _loads(load: Callable[[int], object], version: int) -> bool:
    try:
        load(version)
    except BaseException as error:
        if not is_failure(error):
            raise
        return False
    return True


def _passes(storage: ObjectStorage, path: str, check: Callable[[bytes], object]) -> bool:
    try:
        data = storage.get(path)
    except Missing:
        return True
    try:
        check(data)
    except (*NOT_OF_A_LOG, OSError, pa.ArrowException):
        return False
    return True


def _check_last_checkpoint(text: bytes) -> None:
    int(json.loads(text)["version"])


def _check_checkpoint(data: bytes) -> None:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        for batch in file.iter_batches():
            batch.validate(full=True)
