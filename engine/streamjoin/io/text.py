"""Parses blocks of JSON or CSV text into columns of the declared types, and reports what does not parse, line by line.

A block goes to the fast parser whole: JSON to our own machine code, CSV to Arrow. Of JSON it refuses single lines, which Python's parser
then reads. Where it refuses a block, or finds another number of records than there are lines, the block is parsed in parts, and only the
parts that fail are divided again, down to single lines: so a bad line costs little.

Always holds: what the fast parser accepts, the one for single lines accepts with the same values, so that a line's record does not depend
on its neighbours.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv

from streamjoin.io.base import MAX_BATCH_ROWS, RAW_LIMIT_BYTES, BadFile, Records, Rejected
from streamjoin.io.lines import CSV_SPACE, JSON_SPACE, QUOTED_BYTES, Framing, Text, count_records, record_lines
from streamjoin.io.values import Problems, from_text, misfit

if TYPE_CHECKING:
    from streamjoin.io.plain_json import PlainJson

PARTS = 16
"""Into how many parts a block is divided that is refused as a whole."""
UNENDED = (
    f"is not one record of CSV: a quoted value does not end before the end of the file, or within {QUOTED_BYTES:,} bytes, or a carriage "
    "return stands in a value without quotes; where a quoted value does not end, the next record is read from the next line on"
)
MOST_BYTES = (1 << 31) - 2
"""The parsers take blocks of less."""
FEW_LINES = 512
"""So few are parsed line by line."""


@dataclass
class Parsed:
    """Some lines' records by column: all rows that the parser made, and what is wrong with some of them."""

    columns: list[pa.Array]
    lines: np.ndarray | None = None
    """The line that each row comes from, where they are not all there."""
    problems: dict[int, str] = field(default_factory=dict)
    """By line; rows of such lines are to be dropped."""


class TextFormat(Protocol):
    """How lines are written."""

    @property
    def framing(self) -> Framing:
        """How it is cut into records."""

    def parse(self, block: Text, lines: int, *, is_checked: bool = False) -> Parsed | None:
        """A block of so many records; None where the parser refuses it. ``is_checked``: a scan has found nothing bad in it."""

    def parse_lines(self, lines: Sequence[bytes]) -> Parsed:
        """Some lines, each by itself where need be."""


def parse_block(
    text: TextFormat, block: Text, schema: pa.Schema, place: str, offset: int, count: int | None = None, *, is_checked: bool = False
) -> list[Records]:
    """A block's records, positions counted from the block's first. O(bytes), times log(lines) where most lines are bad.

    ``place`` and ``offset`` say which file the block is from, and where in it, for what is rejected. ``count``: the number of records,
    where it is known. ``is_checked``: as for :meth:`TextFormat.parse`.
    """
    if count is None:
        count = count_records(block, text.framing.space, text.framing.scan(block, is_last=True).ends)
    if count == 0:
        return []
    parsed = text.parse(block, count, is_checked=is_checked) if count <= MAX_BATCH_ROWS else None
    if parsed is not None and not parsed.problems:
        return [Records(pa.record_batch(parsed.columns, schema=schema))]
    starts, ends = record_lines(block, text.framing.space, text.framing.scan(block, is_last=True).ends)
    lines = _Lines(block, starts, ends, place, offset)
    if parsed is not None:
        return [_records(parsed, lines, 0, count, schema)]
    return list(_parse_parts(text, lines, 0, count, schema))


@dataclass(frozen=True)
class _Lines:
    """A block's lines that are not blank."""

    block: Text
    starts: np.ndarray
    ends: np.ndarray
    place: str
    offset: int

    def line(self, number: int) -> bytes:
        return bytes(self.block[self.starts[number] : self.ends[number]])

    def rejected(self, number: int, error: str) -> Rejected:
        where = f"{self.place} byte {self.offset + int(self.starts[number])}"
        return Rejected(number, raw_text(self.line(number)), error, where)


def _parse_parts(text: TextFormat, lines: _Lines, first: int, last: int, schema: pa.Schema) -> Iterator[Records]:
    """Lines first .. last - 1, which cannot be parsed at once: in parts, down to single lines."""
    step = max(-(-(last - first) // PARTS), FEW_LINES)
    for at in range(first, last, step):
        end = min(at + step, last)
        parsed = None
        if end - at <= FEW_LINES:
            parsed = text.parse_lines([lines.line(number) for number in range(at, end)])
        elif end - at <= MAX_BATCH_ROWS:
            parsed = text.parse(lines.block[lines.starts[at] : lines.ends[end - 1] + 1], end - at)
        if parsed is None:
            yield from _parse_parts(text, lines, at, end, schema)
        else:
            yield _records(parsed, lines, at, end - at, schema)


def _records(parsed: Parsed, lines: _Lines, first: int, count: int, schema: pa.Schema) -> Records:
    """What was parsed of ``count`` lines from ``first`` on, without the rows that have problems."""
    batch = pa.record_batch(parsed.columns, schema=schema)
    if not parsed.problems:
        return Records(batch, first=first)
    of_row = np.arange(count, dtype=np.int64) if parsed.lines is None else parsed.lines
    good = ~np.isin(of_row, np.fromiter(parsed.problems, dtype=np.int64, count=len(parsed.problems)))
    rejected = [lines.rejected(first + line, error) for line, error in sorted(parsed.problems.items())]
    return Records(batch if good.all() else batch.filter(pa.array(good)), of_row[good] + first, rejected)


def raw_text(raw: bytes) -> str:
    """A record's bytes as text that is short enough for a dead letter."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw[: RAW_LIMIT_BYTES * 3 // 4 - 8]).decode()
    return raw[:RAW_LIMIT_BYTES].decode(errors="ignore")


class _Number(str):
    """A JSON number as it is written, so that no digit is lost."""

    __slots__ = ()


class JsonFormat:
    """One object on each line. Fields are matched by name exactly; missing ones are null, others are ignored."""

    framing = Framing(JSON_SPACE)

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._decoder = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number, object_pairs_hook=self._object)
        self._names = frozenset(schema.names)

    def parse(self, block: Text, lines: int, *, is_checked: bool = False) -> Parsed | None:
        """The lines that machine code does not understand are parsed one by one."""
        found = None if self._plain is None or len(block) >= MOST_BYTES else self._plain.parse(block, lines)
        if found is None:
            return None
        columns, refused = found
        if not len(refused):
            return Parsed(columns)
        starts, ends = record_lines(block, JSON_SPACE)
        others = self.parse_lines([bytes(block[starts[line] : ends[line]]) for line in refused])
        of_line = np.arange(lines)
        of_line[refused] = lines + np.arange(len(refused))
        order = pa.array(of_line)
        columns = [pa.concat_arrays(both).take(order) for both in zip(columns, others.columns, strict=True)]
        return Parsed(columns, problems={int(refused[line]): error for line, error in others.problems.items()})

    @functools.cached_property
    def _plain(self) -> PlainJson | None:
        """What reads most JSON a hundred times as fast as line by line; None where it does not understand a column's name."""
        from streamjoin.io.plain_json import PlainJson, understands  # loads Numba, which a process that only plans does without

        return PlainJson(self._schema) if understands(self._schema) else None

    def parse_lines(self, lines: Sequence[bytes]) -> Parsed:
        problems: dict[int, str] = {}
        texts: list[list[Any]] = [[] for _ in self._schema]
        takers = [(item, _taker(item.type), values) for item, values in zip(self._schema, texts, strict=True)]
        for number, line in enumerate(lines):
            record = self._load(line, number, problems)
            for item, take, values in takers:
                value = record.get(item.name)
                text = None if value is None else take(value)
                if text is None and value is not None:
                    shown = value if type(value) is _Number else json.dumps(value)
                    problems.setdefault(number, misfit(item.name, shown, item.type))
                values.append(text)
        columns = []
        for item, values in zip(self._schema, texts, strict=True):
            if pa.types.is_boolean(item.type):
                columns.append(pa.array(values, item.type))
            else:
                columns.append(from_text(pa.array(values, pa.string()), item.type, item.name, problems))
        return Parsed(columns, problems=problems)

    def _load(self, line: bytes, number: int, problems: Problems) -> dict[str, Any]:
        try:
            record = self._decoder.decode(line.decode())
        except UnicodeDecodeError as error:
            problems[number] = f"is not UTF-8 (byte {error.start} of the line)"
        except json.JSONDecodeError as error:
            problems[number] = f"is not a JSON object on one line: {error.msg} at character {error.pos}"
        except RecursionError:
            problems[number] = "is not a JSON object that can be read: too deeply nested"
        else:
            if not isinstance(record, dict):
                problems[number] = "is not a JSON object"
            elif None in record:
                problems[number] = f"column {record[None]}: is given twice"
            else:
                return record
        return {}

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
        """An object; a declared name that it has twice is remembered under None."""
        record: dict[Any, Any] = dict(pairs)
        if len(record) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next((name for name in names if name in self._names and names.count(name) > 1), None)
            if twice is not None:
                record[None] = twice
        return record


def _taker(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes of a JSON value the text that ``from_text`` takes (of a boolean itself), or None of a wrong type."""
    if pa.types.is_boolean(kind):
        return lambda value: value if isinstance(value, bool) else None
    if pa.types.is_integer(kind):  # in quotes, too, as Protobuf's JSON and others write those that JavaScript cannot hold
        return lambda value: value if isinstance(value, str) and _is_text(value) else None
    if pa.types.is_floating(kind):
        return lambda value: value if type(value) is _Number or value in ("NaN", "Infinity", "-Infinity") else None
    if pa.types.is_decimal(kind):
        return lambda value: value if isinstance(value, str) and _is_text(value) else None
    return lambda value: value if type(value) is str and _is_text(value) else None


def _is_text(value: str) -> bool:
    """JSON can escape halves of surrogate pairs, which are no characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class CsvFormat:
    """RFC 4180. An empty value is null, a quoted empty one an empty string."""

    def __init__(self, schema: pa.Schema, delimiter: str, header: Sequence[str] | None) -> None:
        """``header``: the names on the file's first line, matched without regard to case; None: the schema's order.

        Raises BadFile where a declared column is missing.
        """
        self._schema = schema
        self.framing = Framing(CSV_SPACE, delimiter)
        names = list(schema.names) if header is None else list(header)
        folded = [name.strip().casefold() for name in names]
        self._at: list[int] = []
        for item in schema:
            matches = [index for index, name in enumerate(folded) if name == item.name.casefold()]
            if len(matches) != 1:
                many = "more than one column" if matches else "no column"
                raise BadFile(
                    f"its header has {many} named {item.name}; it names {', '.join(names) or 'none'}. Correct the header"
                    " or the schema, or set files.header: false if the first line is a record"
                )
            self._at.append(matches[0])
        # Names that a file has twice would trouble Arrow; the position tells them apart.
        self._labels = [str(index) for index in range(len(names))]
        self._parse = {"delimiter": delimiter, "quote_char": '"', "double_quote": True, "escape_char": False}
        self._convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(self._labels, pa.string()),
            include_columns=[self._labels[at] for at in self._at],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        )

    def parse(self, block: Text, lines: int, *, is_checked: bool = False) -> Parsed | None:
        problems: dict[int, str] = {}

        def invalid(row: Any) -> str:
            many = "1 value" if row.actual_columns == 1 else f"{row.actual_columns} values"
            problems[row.number - 1] = f"has {many}, not {row.expected_columns}"
            return "skip"

        if len(block) >= MOST_BYTES:
            return None
        block = bytes(block)
        if not is_checked and self.framing.scan(block, is_last=True).has_bad:
            return None
        block = block if block.endswith(b"\n") else block + b"\n"
        read = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self._labels)
        options = pyarrow.csv.ParseOptions(**self._parse, newlines_in_values=False, invalid_row_handler=invalid)
        try:
            block.decode()
            table = pyarrow.csv.read_csv(pa.BufferReader(block), read, options, self._convert)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if table.num_rows + len(problems) != lines:
            return None
        columns = [_single(table.column(index)) for index in range(len(self._schema))]
        of_row = None
        if problems:
            of_row = np.setdiff1d(np.arange(lines, dtype=np.int64), np.fromiter(problems, dtype=np.int64), assume_unique=True)
        typed: dict[int, str] = {}
        columns = [from_text(column, item.type, item.name, typed) for column, item in zip(columns, self._schema, strict=True)]
        problems |= {row if of_row is None else int(of_row[row]): error for row, error in typed.items()}
        return Parsed(columns, of_row, problems)

    def parse_lines(self, lines: Sequence[bytes]) -> Parsed:
        problems: dict[int, str] = {}
        plain: list[int] = []
        single: list[int] = []
        for number, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                problems[number] = f"is not UTF-8 (byte {error.start} of the line)"
            else:
                (single if line.count(b'"') % 2 or b"\r" in line[:-1] else plain).append(number)
        parsed = self._parse_numbered(lines, plain, problems) if plain else []
        if parsed is None:
            single = sorted(single + plain)
            parsed = []
        for number in single:
            one = self._parse_numbered(lines, [number], problems)
            if one is None:
                problems[number] = UNENDED
            else:
                parsed += one
        of_row = np.concatenate([numbers for numbers, _ in parsed]) if parsed else np.zeros(0, dtype=np.int64)
        columns = [
            pa.concat_arrays([columns[index] for _, columns in parsed]) if parsed else pa.nulls(0, item.type)
            for index, item in enumerate(self._schema)
        ]
        if single:
            order = np.argsort(of_row)
            of_row, columns = of_row[order], [column.take(pa.array(order)) for column in columns]
        return Parsed(columns, of_row, problems)

    def _parse_numbered(
        self, lines: Sequence[bytes], numbers: Sequence[int], problems: dict[int, str]
    ) -> list[tuple[np.ndarray, list[pa.Array]]] | None:
        """The lines of these numbers together: which line each row comes from, and the columns."""
        parsed = self.parse(b"\n".join([lines[number] for number in numbers]) + b"\n", len(numbers))
        if parsed is None:
            return None
        problems |= {numbers[at]: error for at, error in parsed.problems.items()}
        of_row = np.array(numbers, dtype=np.int64)
        return [(of_row if parsed.lines is None else of_row[parsed.lines], parsed.columns)]


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
