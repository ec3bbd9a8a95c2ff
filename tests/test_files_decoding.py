"""Files of text that are compressed, or in another encoding: the same records as of the text itself, each once, whatever the cuts."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cases import how_many
from harness import MemorySnapshots
from streamjoin.io import decoding, files_plan
from streamjoin.io.base import Position, Rejected, SourcePlan
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.manifest.sources import FilesSource as FilesModel

NOW = 2_000_000_000.0
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def zstd(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)  # type: ignore[no-any-return]


CODECS = {"gzip": gzip.compress, "zstd": zstd, "bz2": bz2.compress, "xz": lzma.compress}


def make(root: Path, kind: str = "json", *, exact: bool = False, **config: Any) -> FilesSource:
    return FilesSource(FilesSourceConfig(str(root), kind, **config), SCHEMA, MemorySnapshots(), exact)


def put(path: Path, data: bytes, at: float = NOW - 1000) -> Path:
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def read(source: FilesSource, plan: SourcePlan) -> tuple[list[tuple[Any, ...]], list[Rejected]]:
    reader, rows, rejected = pickle.loads(pickle.dumps(source.reader)), [], []
    for split in pickle.loads(pickle.dumps(plan.splits)):
        count = 0
        for records in reader.read(split):
            rows += [tuple(row.values()) for row in records.batch.to_pylist()]
            rejected += records.rejected
            count += records.batch.num_rows + len(records.rejected)
        if source.reader.exact:
            assert count == split.records
    return rows, rejected


def drain(root: Path, kind: str = "json", position: Position | None = None, limit: int = 10**6, **options: Any) -> tuple[Any, Any, Any]:
    """All that is left, each plan by a process that knows nothing of those before, and each read twice, as after a crash."""
    rows: list[tuple[Any, ...]] = []
    rejected: list[Rejected] = []
    for _ in range(1000):
        source = make(root, kind, **options)
        plan = source.plan(position, limit, NOW, options.pop("final", False))
        found = read(source, plan)
        assert read(source, plan) == found
        rows += found[0]
        rejected += found[1]
        position = json.loads(json.dumps(plan.position))
        if plan.exhausted:
            return rows, rejected, position
    raise AssertionError("the source is never exhausted")


def written(kind: str, numbers: range, ending: str = "\n") -> str:
    """Names with line breaks, and more than ASCII."""
    if kind == "json":
        return "".join(json.dumps({"id": number, "name": name(number)}, ensure_ascii=False) + ending for number in numbers)
    return "name,id" + ending + "".join(f'"{name(number)}",{number}{ending}' for number in numbers)


def name(number: int) -> str:
    return f"é\n{number}" if number % 7 == 0 else "x" * (number % 50)


def expected(numbers: range) -> list[tuple[int, str]]:
    return [(number, name(number)) for number in numbers]


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("codec", [*CODECS, ""])
@pytest.mark.parametrize("seed", range(how_many(3, of=3)))
def test_decoded_text_is_read_once_wherever_it_is_cut(
    tmp_path: Path, kind: str, codec: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any name, several members, several files at a time, limits, splits, and windows too small to go back; the encoding too."""
    generator = random.Random(f"{kind} {codec} {seed}")
    print("seed", seed)
    monkeypatch.setattr("streamjoin.io.lines.BLOCK_BYTES", generator.choice([64, 1000, 1 << 20]))
    monkeypatch.setattr(files_plan, "LEAST_SPLIT_RECORDS", generator.choice([7, 100_000]))
    monkeypatch.setattr(decoding, "WINDOW_BYTES", generator.choice([0, 500, 1 << 20]))
    monkeypatch.setattr(decoding, "CHUNK_BYTES", generator.choice([100, 1 << 18]))
    encoding = generator.choice(["utf-8", "latin-1", "utf-16", "cp1252"]) if codec else generator.choice(["latin-1", "utf-16-be", "cp500"])
    for number in range(3):
        data = written(kind, range(300 * number, 300 * (number + 1))).encode(encoding)
        if codec:
            middle = generator.randrange(len(data))
            data = CODECS[codec](data[:middle]) + CODECS[codec](data[middle:])
        put(tmp_path / f"{number}.{generator.choice(['txt', 'gz', 'json'])}", data)
    limit, exact = generator.choice([50, 10**6]), generator.random() < 0.5
    named = "utf-8" if encoding == "utf-16" else encoding
    rows, rejected, position = drain(tmp_path, kind, limit=limit, exact=exact, encoding=named)
    assert not rejected
    assert sorted(rows) == expected(range(900))
    assert drain(tmp_path, kind, position, exact=exact, encoding=named)[0] == []


@pytest.mark.parametrize(
    ("codec", "damage"),  # a frame of zstd has no checksum here
    [(codec, damage) for codec in CODECS for damage in ("cut", "changed", "more") if (codec, damage) != ("zstd", "changed")],
)
def test_a_damaged_file_is_one_dead_letter_and_others_are_read(tmp_path: Path, codec: str, damage: str) -> None:
    data = CODECS[codec](random.Random(1).randbytes(100_000).hex().encode() + b"\n" + written("json", range(24_000)).encode())
    bad = {"cut": data[:-4], "changed": data[:-400] + b"\0\1\2" + data[-397:], "more": data + b"garbage"}[damage]
    put(tmp_path / "a", bad)
    put(tmp_path / "b", written("json", range(3)).encode(), NOW - 1)
    rows, (first, letter), position = drain(tmp_path, limit=10_000)
    assert first.place == "a byte 0"  # no JSON
    assert (letter.place, letter.raw) == ("a", "")
    assert letter.error.startswith("the file cannot be read: it is damaged, or not complete (")
    assert rows[-3:] == expected(range(3))
    assert rows[:-3] == expected(range(len(rows) - 3))
    assert len(rows) > 12_000
    assert drain(tmp_path, position=position)[:2] == ([], [])


def test_a_compressed_file_is_read_when_it_is_settled_and_read_on_when_it_grows(tmp_path: Path) -> None:
    data = gzip.compress(written("json", range(1000)).encode())
    path = put(tmp_path / "a.gz", data[:-10], NOW - 1)
    plan = make(tmp_path).plan(None, 10**6, NOW)
    assert (plan.splits, plan.exhausted) == ((), False)
    put(path, data)
    rows, rejected, position = drain(tmp_path)
    assert (rows, rejected) == (expected(range(1000)), [])
    put(path, data + gzip.compress(written("json", range(1000, 1010)).encode()), NOW - 500)
    assert drain(tmp_path, position=position)[:2] == (expected(range(1000, 1010)), [])


def test_a_compressed_file_that_was_given_up_is_read_on_when_it_is_complete(tmp_path: Path) -> None:
    data = gzip.compress(written("json", range(40_000)).encode())
    path = put(tmp_path / "a.gz", data[: len(data) // 2])
    rows, (_,), position = drain(tmp_path)
    assert 0 < len(rows) < 40_000
    put(path, data, NOW - 500)
    more, rejected, _ = drain(tmp_path, position=position)
    assert (rows + more, rejected) == (expected(range(40_000)), [])


def test_a_text_in_another_encoding_is_read_on_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written("csv", range(2000), "\r\n").encode("utf-16")
    path, rows, position = tmp_path / "a", [], None
    decoded_bytes = 0
    begin = decoding._Stream._begin

    def begun(self: Any) -> None:
        nonlocal decoded_bytes
        decoded_bytes += self.status.size
        begin(self)

    monkeypatch.setattr(decoding._Stream, "_begin", begun)
    source = make(tmp_path, "csv")
    for end in [*range(1001, len(data), 1001), len(data)]:
        with path.open("ab") as file:
            file.write(data[end - 1001 if end % 1001 == 0 else end // 1001 * 1001 : end])
        os.utime(path, (NOW, NOW))
        plan = source.plan(position, 10**6, NOW + 1)
        rows += read(source, plan)[0]
        position = plan.position
    assert rows == expected(range(2000))
    assert decoded_bytes < 3 * len(data), "decoded from the beginning again"


def test_what_is_no_character_costs_its_record(tmp_path: Path) -> None:
    after = written("json", range(3, 5)).encode("utf-16-le")
    put(tmp_path / "a", written("json", range(3)).encode("utf-16") + b"\x00\xd8\n\x00" + after + b"x")
    rows, (line, end), _ = drain(tmp_path)
    assert rows == expected(range(5))
    assert "is not UTF-8" in line.error
    assert "it ends within a character" in end.error


def test_a_bomb_is_a_dead_letter_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LINE_BYTES", 1 << 23)
    put(tmp_path / "a", zstd(b'{"id": 1}\n' + b" " * (1 << 28)))
    rows, (letter,), _ = drain(tmp_path)
    assert rows == [(1, None)]
    assert "it has a line of more than 8,388,608 bytes" in letter.error


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "base64", "", "rot13"])
def test_what_is_no_encoding_of_text_is_refused_by_the_manifest(encoding: str) -> None:
    with pytest.raises(ValueError, match=r"encoding"):
        FilesModel.model_validate({"path": "in", "format": "json", "encoding": encoding})
    assert FilesModel.model_validate({"path": "in", "format": "json", "encoding": "UTF8"}).encoding == "utf-8"
