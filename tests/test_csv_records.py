"""Where records of CSV end, by machine code, against Python's csv."""

from __future__ import annotations

import csv
import io
import itertools
import random

import numpy as np

from streamjoin.native.csv_records import find_ends

LIMIT = 1 << 20


def found_by(text: bytes, delimiter: str = ",", *, limit: int = LIMIT, is_last: bool = True) -> tuple[list[int], int, bool]:
    """The newlines that end records, how many records are bad, and whether the text ends within quotes."""
    data = np.frombuffer(text, np.uint8)
    ends, found = np.empty(text.count(b"\n"), np.int64), np.zeros(3, np.int64)
    find_ends(data, 0, ord(delimiter), limit, int(is_last), ends, found)
    return ends[: found[0]].tolist(), int(found[1]), bool(found[2])


def ends_by_python(text: str, delimiter: str) -> list[int]:
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    reader = csv.reader(lines, delimiter=delimiter)
    return [starts[reader.line_num] - 1 for _ in reader if lines[reader.line_num - 1].endswith("\n")]


def test_records_end_where_python_ends_them() -> None:
    rng = random.Random(31)
    broken = 0
    for _ in range(5_000):
        delimiter = rng.choice(",;\t")
        pieces = ["a", "bc", " ", "\n", '"', '""', delimiter, f'{delimiter}"', '"\n', f'"{delimiter}']
        text = "".join(rng.choices(pieces, k=rng.randint(0, 40)))
        ends, bad, is_open = found_by(text.encode(), delimiter)
        assert not is_open, "it is the last part of the text"
        expected = ends_by_python(text, delimiter)
        if bad:
            broken += 1
            whole = expected[:-1] if text.endswith("\n") else expected  # Python takes the rest for one record
            assert ends[: len(whole)] == whole, (text, "seed 31")
        else:
            assert ends == expected, (text, "seed 31")
    assert 500 < broken < 4_000


def test_what_python_writes_is_cut_into_the_rows_that_were_written() -> None:
    rng = random.Random(32)
    pieces = ["x", "\n", "\r\n", '"', ",", "\u00e9", "long " * 5]
    for _ in range(500):
        out, ends = io.StringIO(newline=""), []
        writer = csv.writer(out, lineterminator="\n", quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        for _ in range(rng.randint(1, 20)):
            writer.writerow(["".join(rng.choices(pieces, k=rng.randint(0, 4))) for _ in range(rng.randint(1, 4))])
            ends.append(len(out.getvalue().encode()) - 1)
        text = out.getvalue().encode()
        assert found_by(text) == (ends, 0, False), (text, "seed 32")
        cut = rng.randrange(len(text))
        begun, _, is_open = found_by(text[:cut], is_last=False)
        assert begun == [end for end in ends if end < cut], (text, cut, "seed 32: a part has the same ends")
        assert is_open == (text[:cut].count(b'"') % 2 == 1), (text, cut, "seed 32")


def test_a_value_that_does_not_end_within_the_limit_is_one_line() -> None:
    assert found_by(b'a,"b\nc\nd,"e"\n', limit=6) == ([4, 6, 12], 1, False)
