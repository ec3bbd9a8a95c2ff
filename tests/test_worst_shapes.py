"""The worst data for a join of two streams, hot keys of wide tuples: each finishes in the memory of a small container with every pair."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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


@pytest.mark.parametrize("shape", some(SHAPES, of=7), ids=str)
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
    spec = {
        "streams": streams,
        "joins": [join],
        "workers": {"min": 1, "max": 1, "resources": {"memory": "1500Mi"}},
        "checkpoint": {"location": "state"},
    }
    manifest = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "worst"}, "spec": spec}
    (tmp_path / "join.yaml").write_text(yaml.safe_dump(manifest))
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert json.loads(done.stdout.splitlines()[-1])["output"] == expected(shape)
    peak = int(done.stderr.splitlines()[-1]) << 10
    assert peak < MEMORY_BYTES, f"{peak >> 20} MiB"
