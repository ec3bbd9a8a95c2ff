"""The worst data, hot keys of wide tuples: each join finishes in the memory of a small container with every result."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import some

MEMORY_BYTES = 1500 << 20
"""Of the container: driver and worker in one process."""


@dataclass(frozen=True)
class Shape:
    """Of either stream: tuples of the hot key and their bytes, beside narrow tuples of keys of their own."""

    hot: tuple[int, int]
    nbytes: tuple[int, int]
    narrow: tuple[int, int] = (20_000, 20_000)
    residual: str = ""
    kind: str = "inner"

    def __str__(self) -> str:
        hot = " x ".join(f"{count} of {nbytes:,} B" for count, nbytes in zip(self.hot, self.nbytes, strict=True))
        return f"{hot}, {self.kind}{', a residual' if self.residual else ''}"


LONGEST = "length(l.w) >= length(r.w) - 100000000"
"""A residual that reads both wide columns, and is true."""
SHAPES = [
    Shape((2000, 2000), (10, 10)),
    Shape((200, 500), (20_000, 10)),
    Shape((500, 200), (10, 20_000)),
    Shape((1, 20_000), (3_000_000, 10), (20_000, 10)),
    Shape((60, 60), (50_000, 50_000)),
    Shape((200, 300), (20_000, 10), residual=LONGEST),
    Shape((50, 50), (100_000, 100_000), residual=LONGEST),
    Shape((20, 20), (1_000_000, 10)),
    Shape((3, 3), (20_000_000, 10), (100, 100)),
    Shape((100_000, 10), (100, 100), (10, 10)),
    Shape((10, 100_000), (100, 100), (10, 10)),
    Shape((1000, 1000), (500, 500)),
    Shape((5000, 500), (2000, 10), (10, 50_000)),
    Shape((200, 500), (20_000, 10), kind="left"),
    Shape((500, 200), (10, 20_000), kind="full"),
    Shape((3000, 3000), (2000, 2000), kind="semi"),
    Shape((3000, 1), (20_000, 10), kind="anti"),
    Shape((0, 0), (10, 10), (100_000, 100_000)),
    Shape((3000, 1000), (10, 10), residual="l.id % 7 = r.id % 7"),
    Shape((40, 2000), (100_000, 10), (10, 10)),
]

RUN = """
import re, sys
from pathlib import Path
from streamjoin.cli import main
try:
    main(["run", "join.yaml", "--runner", "inline", "--until-idle", "--json", "--no-ui"], standalone_mode=False)
except SystemExit as ended:
    print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
    raise
"""
"""Leaves behind how many KiB it had at most. Its parent would be told of more: of what it had itself at the fork."""


def write(path: Path, hot: int, nbytes: int, narrow: int, first: int) -> None:
    path.parent.mkdir()
    with path.open("w") as file:
        for number in range(max(hot, narrow)):
            if number < hot:
                wide = f"{number} " + "w" * max(0, nbytes - 8)
                file.write(json.dumps({"id": number, "k": -1, "w": wide}) + "\n")
            if number < narrow:
                file.write(f'{{"id": {hot + number}, "k": {first + number}, "w": "n"}}\n')


def expected(shape: Shape) -> int:
    (left, right), (narrow_left, narrow_right) = shape.hot, shape.narrow
    pairs = left * right
    if "% 7" in shape.residual:
        pairs = sum(sum(row % 7 == rest for row in range(left)) * sum(row % 7 == rest for row in range(right)) for rest in range(7))
    if shape.kind == "semi":
        return left * bool(right)
    if shape.kind == "anti":
        return left * (not right) + narrow_left
    alone_left, alone_right = left * (not right) + narrow_left, right * (not left) + narrow_right
    return pairs + alone_left * (shape.kind in ("left", "full")) + alone_right * (shape.kind == "full")


@pytest.mark.parametrize("shape", some(SHAPES, of=20), ids=str)
def test_it_finishes_in_a_small_container(shape: Shape, tmp_path: Path) -> None:
    """Narrow tuples have no partner."""
    for name, hot, nbytes, narrow, first in zip("lr", shape.hot, shape.nbytes, shape.narrow, (0, 10_000_000), strict=True):
        write(tmp_path / name / "a.json", hot, nbytes, narrow, first)
    streams = [
        {"name": name, "source": {"files": {"path": name, "format": "json"}}, "schema": "id BIGINT, k BIGINT, w STRING"} for name in "lr"
    ]
    select = ["l.id AS a", "length(l.w) AS n"] if shape.kind in ("semi", "anti") else ["l.id AS a", "l.w AS v", "r.id AS b", "r.w AS u"]
    join = {
        "condition": "l.k = r.k" + (f" AND {shape.residual}" if shape.residual else ""),
        "type": shape.kind,
        "window": {"unbounded": True},
        "output": {"select": select, "sink": {"files": {"path": "out", "format": "parquet"}}},
    }
    output, peak = run(tmp_path, streams, join, workers=1)
    assert output == expected(shape)
    assert peak < MEMORY_BYTES, f"{peak >> 20} MiB"


def run(path: Path, streams: list[dict[str, Any]], join: dict[str, Any], workers: int) -> tuple[int, int]:
    """Results, and the most memory that driver and workers, all in one process, had at a time."""
    spec = {
        "streams": streams,
        "joins": [join],
        "workers": {"min": workers, "max": workers, "resources": {"memory": "1500Mi"}},
        "checkpoint": {"location": "state"},
    }
    manifest = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "worst"}, "spec": spec}
    (path / "join.yaml").write_text(yaml.safe_dump(manifest))
    done = subprocess.run([sys.executable, "-c", RUN], cwd=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return json.loads(done.stdout.splitlines()[-1])["output"], int(done.stderr.splitlines()[-1]) << 10


@dataclass(frozen=True)
class Many:
    """Tuples of one key, by stream, and the bytes of each. Their numbers count from 0."""

    counts: tuple[int, ...]
    condition: str
    results: int
    nbytes: tuple[int, ...] = ()
    workers: int = 1

    def __str__(self) -> str:
        wide = f" of {max(self.nbytes):,} B" if self.nbytes else ""
        return f"{' x '.join(map(str, self.counts))}{wide}, {self.condition}, {self.workers} workers"


STAR, CHAIN = "a.k = b.k AND a.k = c.k", "a.k = b.k AND b.k = c.k"
FEW = " AND a.id + b.id = c.id"
"""Of all partial results with a and b, those that give a result: of 10 tuples of c, 55."""
MANY = [
    Many((6000, 6000, 10), CHAIN + FEW, 55),
    Many((6000, 6000, 10), STAR + FEW, 55, workers=4),
    Many((3000, 10, 3000), CHAIN + " AND a.id + c.id = b.id", 55),
    Many((10, 3000, 3000), STAR + " AND b.id + c.id = a.id", 55, workers=3),
    Many((1000, 1000, 10), CHAIN + FEW, 55, (2000, 2000, 10)),
    Many((300, 300, 100), CHAIN, 9_000_000),
    Many((50, 50, 20), STAR, 50_000, (20_000, 20_000, 10)),
    Many((50, 50, 20), CHAIN, 50_000, (20_000, 10, 20_000), workers=4),
    Many((2, 2, 2), CHAIN, 8, (20_000_000, 20_000_000, 10)),
    Many((3000, 3000, 3000), "a.k = b.k AND b.id = c.id AND a.id = c.id", 3000),
    Many((5000, 5000, 10), "a.id <= b.id AND b.id = c.id", 55),
    Many((2000, 2000, 2000), "abs(a.id - b.id) <= 1 AND a.k = c.k AND b.id = c.id AND a.id = c.id", 2000, workers=2),
    Many((60, 60, 60, 60), CHAIN + " AND c.k = d.k", 60**4),
    Many((1000, 1000, 1000, 10), "a.k = b.k AND b.id = c.id AND c.k = d.k AND a.id + c.id = d.id", 55),
    Many((200, 200, 200, 10), STAR + " AND a.k = d.k AND a.id = b.id AND b.id = c.id AND a.id = d.id", 10, workers=3),
    Many((100, 100, 100, 100), CHAIN + " AND c.k = d.k AND a.id = c.id AND b.id = d.id AND a.id = b.id", 100, (500, 500, 500, 500)),
    Many((25, 25, 25, 25, 10), CHAIN + " AND c.k = d.k AND d.k = e.k", 25**4 * 10),
    Many((400, 400, 10, 10, 10), CHAIN + FEW + " AND c.id = d.id AND d.id = e.id", 55, workers=2),
    Many((13,) * 6, CHAIN + " AND c.k = d.k AND d.k = e.k AND e.k = f.k", 13**6),
    Many((300, 300, 10, 10, 10, 10), STAR + FEW + " AND c.id = d.id AND d.id = e.id AND e.id = f.id", 55),
]


@pytest.mark.parametrize("shape", some(MANY, of=20), ids=str)
def test_a_join_of_many_streams_finishes_in_a_small_container(shape: Many, tmp_path: Path) -> None:
    names = "abcdef"[: len(shape.counts)]
    for name, count, nbytes in zip(names, shape.counts, shape.nbytes or (10,) * len(names), strict=True):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "a.json").open("w") as file:
            for number in range(count):
                file.write(json.dumps({"id": number, "k": 1, "w": "w" * nbytes}) + "\n")
    streams = [
        {"name": name, "source": {"files": {"path": name, "format": "json"}}, "schema": "id BIGINT, k BIGINT, w STRING"} for name in names
    ]
    select = [f"{name}.{'w' if shape.nbytes else 'id'} AS {name}" for name in names]
    join = {
        "condition": shape.condition,
        "window": {"unbounded": True},
        "output": {"select": select, "sink": {"files": {"path": "out", "format": "parquet"}}},
    }
    output, peak = run(tmp_path, streams, join, shape.workers)
    assert output == shape.results
    assert peak < MEMORY_BYTES, f"{peak >> 20} MiB"
