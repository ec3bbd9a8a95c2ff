"""Lists what is added to a Delta table, version by version, from its log (``_delta_log``, Delta's protocol).

A version's transaction is read from its JSON file, in one request. The table as a whole, from which reading begins, is read by
``deltalake``. Files that say that they change no data (OPTIMIZE) are passed over. A version that removes data was an update, a delete or an
overwrite.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from streamjoin.io.base import SourceError, UnavailableError
from streamjoin.io.delta_damage import LOG, NOT_OF_A_LOG, actions_of, damaged_files, damaged_transactions, is_failure
from streamjoin.io.delta_table import table_uri
from streamjoin.io.table_sink import brief
from streamjoin.io.table_source import Change, KeptChanges, Mark, TableFile, TableSource
from streamjoin.location import is_url, place
from streamjoin.state.storage import Missing, ObjectStorage, StorageError

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors.delta import DeltaSource as Model

KNOWN_FEATURES = {
    *("appendOnly", "deletionVectors", "domainMetadata", "invariants"),
    *("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
}
"""What a table's protocol may ask of readers; files with deletion vectors are refused one by one."""


class DeltaChanges:
    """See the module, and :class:`streamjoin.io.table_source.TableLog`. A mark is ``[version, whether as a whole]``."""

    def __init__(self, root: str, starting_version: int | None = None, on_change: str = "fail") -> None:
        """``root``: of the table, a place as ``location`` writes it. ``starting_version``: read the changes from it on; None: the table as
        it is, and then its changes. ``on_change``: of a version that does not only add rows, fail or skip."""
        self.root, self._start, self._on_change = root, starting_version, on_change
        self._storage = ObjectStorage(root)
        self._kept = KeptChanges(self._change, self._look)

    def begin(self) -> tuple[Mark, bool]:
        start = self._start
        return ([start, False] if start is not None else [self._table().version(), True]), True

    def columns(self) -> Mapping[str, int | None]:
        table = self._table()
        with self._explained():
            self._check(table.protocol().reader_features or (), table.metadata().configuration, table.version())
            return {field.name: None for field in table.schema().fields}

    def changes(self, mark: Mark, *, itself: bool) -> Iterator[Change]:
        version, is_whole = mark
        if itself and is_whole:
            yield Change(mark, self._whole(version))
            itself = False
        yield from self._kept.since(version if itself else version + 1)

    def _change(self, version: int) -> Change | None:
        try:
            text = self._storage.get(f"{LOG}/{version:020d}.json")
        except Missing:
            return None
        try:
            return self._made(version, actions_of(text))
        except NOT_OF_A_LOG as error:
            path = f"{self.root}/{LOG}/{version:020d}.json"
            remedy = f"restore the file, or begin after it with startingVersion: {version + 1} and a new checkpoint"
            raise SourceError(f"delta.path: {path}: is damaged ({_said(error)}); {remedy}") from error

    def _made(self, version: int, actions: list[dict[str, Any]]) -> Change:
        for action in actions:
            if "protocol" in action:
                self._check(action["protocol"].get("readerFeatures") or (), {}, version)
            if "metaData" in action:
                self._check((), action["metaData"].get("configuration") or {}, version)
        added = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
        removed = [action["remove"] for action in actions if "remove" in action and action["remove"].get("dataChange", True)]
        if removed:
            what = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), None) or "a transaction"
            told = f"delta.path: {self.root}: version {version} ({what}) deletes or changes rows, which a join cannot take back"
            if self._on_change == "fail":
                remedy = "give onChange: skip to read nothing of such versions, or begin after it with startingVersion and a new checkpoint"
                raise SourceError(f"{told}; {remedy}")
            return Change([version, False], (), f"{told}; its files are skipped")
        at = next((stamp for action in actions if (stamp := action.get("commitInfo", {}).get("timestamp")) is not None), None)
        files = [self._file(add, version, at) for add in added]
        if twice := [path for path, times in Counter(file.path for file in files).items() if times > 1]:
            raise ValueError(f"it adds {twice[0]} twice")
        return Change([version, False], files)

    def _look(self, version: int) -> None:
        """Raises SourceError where the version was removed from the log, rather than not written yet."""
        there = [path.rsplit("/", 1)[1].partition(".") for path in self._storage.list(LOG)]
        found = [int(name) for name, _, ending in there if ending == "json" and name.isdecimal()]
        if not found:
            raise SourceError(f"delta.path: {self.root}: there is no Delta table; make it, or correct the path")
        if max(found) > version:
            if self._storage.size(f"{LOG}/{version:020d}.json") is not None:  # written between the two looks
                return
            remedy = "to begin again from the table as it is, choose a new checkpoint; keep the log for longer (delta.logRetentionDuration)"
            raise SourceError(f"delta.path: {self.root}: version {version} was not read yet, and is no more in the log; {remedy}")
        if max(found) < version - 1:
            raise SourceError(f"delta.path: {self.root}: has no version {version - 1}; the newest is {max(found)}. Was it made anew?")

    def _whole(self, version: int) -> list[TableFile]:
        """The files of a version, in an order that is always the same. O(files)."""
        # ``deltalake`` passes over a transaction that is empty, as one is whose writer lost its power.
        if damaged := damaged_transactions(self._storage, version):
            raise self._damaged(damaged, "it is no list of actions")
        with self._explained(version):
            return self._files(self._table(version), version)

    def _files(self, table: DeltaTable, version: int) -> list[TableFile]:
        with_deleted = pa.table(table.deletion_vectors()).num_rows
        if with_deleted:
            raise self._deleted(version)
        names = table.metadata().partition_columns
        columns = ["path", "size_bytes", "modification_time", *(f"partition.{name}" for name in names)]
        files = []
        for action in pa.table(table.get_add_actions(flatten=bool(names))).select(columns).to_pylist():
            partition = {name: _text(action[f"partition.{name}"]) for name in names}
            files.append(TableFile(unquote(action["path"]), action["size_bytes"], partition, _nanos(action["modification_time"])))
        return sorted(files, key=lambda file: file.path)

    def _file(self, add: Mapping[str, Any], version: int, committed_at: Any) -> TableFile:
        if add.get("deletionVector"):
            raise self._deleted(version)
        path, size = unquote(add["path"]), int(add["size"])
        values = {str(name): value or None for name, value in (add.get("partitionValues") or {}).items()}
        if not path or size < 0 or not all(value is None or isinstance(value, str) for value in values.values()):
            raise ValueError(f"action add: no file is {json.dumps(add)[:200]}")
        if path.startswith("/") or is_url(path):
            where = f"version {version} has a file elsewhere ({path}), as shallow clones have"
            raise SourceError(f"delta.path: {self.root}: {where}; read the table that it is a clone of")
        return TableFile(path, size, values, _nanos(committed_at) or _nanos(add.get("modificationTime")))

    def _deleted(self, version: int) -> SourceError:
        remedy = "rewrite them (REORG TABLE ... APPLY (PURGE)), and begin with a new checkpoint"
        return SourceError(f"delta.path: {self.root}: version {version} has files with deletion vectors, which are not read; {remedy}")

    def _check(self, features: Any, configuration: Mapping[str, str], version: int) -> None:
        unknown = sorted(set(features) - KNOWN_FEATURES)
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            unknown.append("columnMapping")
        if unknown:
            remedy = "which is not supported here; read a table that does not, such as a copy"
            raise SourceError(f"delta.path: {self.root}: version {version} asks readers for {unknown[0]}, {remedy}")

    def _table(self, version: int | None = None) -> DeltaTable:
        if is_url(self.root):
            self._storage.list(f"{LOG}/_")  # says better what is wrong with a store
        with self._explained(version):
            return DeltaTable(table_uri(self.root), version=version)

    @contextlib.contextmanager
    def _explained(self, version: int | None = None) -> Iterator[None]:
        """Errors of ``deltalake``, which has many kinds of them where a log is damaged, as those of a source. ``version``: which is read;
        None: the newest."""
        where = f"delta.path: {self.root}"
        try:
            yield
        except (SourceError, UnavailableError, StorageError):
            raise
        except TableNotFoundError:
            raise SourceError(f"{where}: there is no Delta table; make it, or correct the path") from None
        except BaseException as error:
            if not is_failure(error):
                raise
            if isinstance(error, OSError) and is_url(self.root):
                raise UnavailableError(f"{where}: cannot be read ({_said(error)})") from error
            if damaged := damaged_files(self._storage, version, self._loaded):
                raise self._damaged(damaged, _said(error)) from error
            remedy = f"mend {LOG}" if version is None else f"mend {LOG}, or begin again from the table as it is with a new checkpoint"
            raise SourceError(f"{where}: cannot be read ({_said(error)}); {remedy}") from error

    def _loaded(self, version: int) -> object:
        return DeltaTable(table_uri(self.root), version=version).get_add_actions()

    def _damaged(self, files: list[str], why: str) -> SourceError:
        remedy = f"restore {'the file' if len(files) == 1 else 'the files'}"
        return SourceError(f"delta.path: {self.root}: its log is damaged: {', '.join(files)} ({why}); {remedy}")


def _nanos(millis: Any) -> int:
    """Since 1970, of what writers give as milliseconds; 0: they give none."""
    return round(millis * 1_000_000) if isinstance(millis, int | float) else 0


def _said(error: BaseException) -> str:
    """What an error says, which for some of them takes their name."""
    text = brief(error)
    return text if isinstance(error, DeltaError | OSError) else f"{type(error).__name__}: {text}"


def _text(value: Any) -> str | None:
    """A partition's value as text that columns are read from."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else value.isoformat() if hasattr(value, "isoformat") else str(value)


def open_source(model: Model, reading: Reading) -> TableSource:
    """See ``io.factory``."""
    changes = DeltaChanges(place(model.path), model.starting_version, model.on_change)
    return TableSource(changes, reading.schema, f"delta.path: {model.path}", model.max_files_per_epoch)
