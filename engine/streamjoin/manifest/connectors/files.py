"""Files in a directory, or an object store's folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints

from streamjoin.manifest.cel import Rule, quoted
from streamjoin.manifest.checks import Check, value_at
from streamjoin.manifest.connector import SinkConnector, SourceConnector
from streamjoin.manifest.field_types import Encoding, Location, Name, Span, SpanOrNever
from streamjoin.manifest.problem import Problem, listed
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.rules import only_for, rule

_SETTLE = Duration.parse("5s")


def split_path(path: str) -> tuple[str, str | None]:
    """The directory of a files source's path, and the pattern at its end, if there is one."""
    directory, slash, last = path.rpartition("/")
    return (directory or slash or ".", last) if "*" in last or "?" in last else (path, None)


def _only_for(name: str, default: str, *formats: str) -> Rule:
    remedy = f"remove it (it belongs to {listed(formats, 'and')})"
    texts = (f"has no meaning with {which}; {remedy}" for which in ("format {format}", "this format"))
    return only_for(name, "format", formats, *texts, default=default)


class FilesSource(SourceConnector):
    """The files of a directory and those below it, and those that appear there later. json and csv files are followed while they grow."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az). Or the names of files directly in it, with * or ? in place of
    pattern, such as logs/app-*.jsonl; or one local file."""
    format: Literal["parquet", "json", "csv"]
    """How the files are written: parquet, json (one object per line) or csv."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""
    pattern: Name = "*"
    """Which file names to read, with *, ? and [...]; names that begin with _ or ., of files and of directories, are never read."""
    recursive: bool = True
    """Whether directories below it are read, too. Their names may give columns, as Hive writes them: day=2026-01-01."""
    header: bool = True
    """csv: whether a file's first line names its columns. If not, the columns are in the schema's order."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] = ","
    """csv: the character between two values."""
    encoding: Encoding = "utf-8"
    """json and csv: the encoding of the text, such as utf-16, latin-1 or windows-1252: any of Python's text encodings. A byte order mark of
    UTF-16 is known without it."""
    settle: SpanOrNever = _SETTLE
    """json and csv: a last line without a newline, and a compressed file, is read when its file has not changed for this long; never: only
    once the line ends in one."""
    on_replaced: Literal["read", "refuse"] = "read"
    """What to do about a file that was replaced, or cut, since it was read: read it from its beginning, as a new file, or refuse it; both
    with a warning. What had not been read of the old one is lost."""

    opener = "streamjoin.io.files:open_source"
    fixed = ("path", "format")
    api_rules = (
        rule(
            "!self.pattern.contains('/')",
            lambda source: "/" not in source.pattern,
            "has a /, and is compared with file names alone; put the directory into path",
            field="pattern",
        ),
        rule(
            r"""!(self.delimiter in ['"', '\n', '\r'])""",
            lambda source: source.delimiter not in '"\n\r' and source.delimiter.isascii(),
            "cannot separate values; use another character, such as ;",
            field="delimiter",
        ),
        _only_for("header", "true", "csv"),
        _only_for("delimiter", "','", "csv"),
        _only_for("settle", quoted(str(_SETTLE)), "json", "csv"),
    )

    @property
    def names(self) -> tuple[str, str]:
        """The directory, and the pattern of names in it, which the path may have at its end."""
        directory, pattern = split_path(self.path)
        return directory, self.pattern if pattern is None else pattern

    @property
    def identity(self) -> str:
        return f"{self.format} files in {self.path}"

    def directory(self) -> str | None:
        path = value_at(self, "path")
        return None if path is None else split_path(path)[0]

    def located(self, place: Callable[[str], str]) -> Self:
        directory, pattern = self.names
        is_deep = self.recursive and directory == self.path
        return self.model_copy(update={"path": place(directory), "pattern": pattern, "recursive": is_deep})

    def problems(self, field: str) -> Check:
        # Kubernetes fills in the default.
        if {"path", "pattern"} <= self.model_fields_set and self.names[1] != self.pattern != type(self).model_fields["pattern"].default:
            yield Problem(f"{field}.pattern", self.pattern, f"is given by path too, as {self.names[1]}; remove one of them")
        if self.format == "parquet" and self.encoding != type(self).model_fields["encoding"].default:
            yield Problem(f"{field}.encoding", self.encoding, "has no meaning with format parquet; remove it (it belongs to json and csv)")


class FilesSink(SinkConnector):
    """New files in one directory, complete when they appear."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az). It is created if it is missing."""
    format: Literal["parquet", "json"] = "parquet"
    """How to write: parquet, or json (one object per line)."""
    compression: Literal["snappy", "zstd", "none"] | None = None
    """How to compress parquet: snappy by default. json is not compressed."""
    gather: Span = Duration.parse("1s")
    """How long the results of small epochs may wait, to be written into fewer files; 0s: a file for each epoch at once."""

    opener = "streamjoin.io.sinks:open_sink"
    results = "streamjoin.io.sinks:results"
    api_rules = (
        rule(
            "self.format != 'json' || !has(self.compression) || self.compression == 'none'",
            lambda sink: sink.format != "json" or sink.compression in (None, "none"),
            "is only for format parquet; remove it, or write parquet",
            field="compression",
        ),
    )

    @property
    def identity(self) -> str:
        return f"files in {self.path}"

    def located(self, place: Callable[[str], str]) -> Self:
        default = "snappy" if self.format == "parquet" else "none"
        return self.model_copy(update={"path": place(self.path), "compression": self.compression or default})

    def shown(self, shorten: Callable[[str], str]) -> str:
        return f"{shorten(self.path)} ({self.format})"
