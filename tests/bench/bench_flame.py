"""Where a worker's threads are while they do not wait: a picture of the stacks that py-spy samples in one of two workers.

W1 with its window full and its input waiting, so that epochs follow each other, two in flight. A bar is a function, as wide as the part of
all samples in which a thread was in it; below it is what it called. Samples of threads that wait are left out. What NumPy, Arrow and Numba
do shows as the Python function that called them.

    pip install py-spy
    python tests/bench/bench_flame.py [--rows 100000,1000000] [--seconds 10] [--picture PATH] [--quick]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.engine import full, job_of, join, spark_runner
from bench.report import STYLE, counts, machine, options, table
from bench.workloads import WORKLOADS
from streamjoin.runner.spark import SparkRunner

WAITS = {"_worker", "Condition.wait", "Future.result", "Worker._connected", "Worker._speak", "_chunks", "_beat"}
"""Where a thread is that waits for work, for another thread or for a message."""
FRAME = ("thread (", "_run_module_as_main", "Thread.", "_worker", "_WorkItem.run", "<module>")
"""How the functions begin that every stack has."""
LEVELS = 10
LETTER = 0.0062
"""The width of a letter, of all of the picture's."""


@dataclass
class Called:
    """A function in one place of the stacks."""

    samples: int = 0
    callees: dict[str, Called] = field(default_factory=dict)


def tree(raw: str) -> Called:
    """The stacks in py-spy's raw format: ``caller;callee samples`` a line."""
    root = Called()
    for line in raw.splitlines():
        stack, _, samples = line.rpartition(" ")
        names = [frame.split(" (")[0] if not frame.startswith("thread (") else frame for frame in stack.split(";")]
        if names[-1] in WAITS:
            continue
        node, root.samples = root, root.samples + int(samples)
        for name in (name for name in names if not name.startswith(FRAME)):
            node = node.callees.setdefault(name, Called())
            node.samples += int(samples)
    return root


def sampled(root: Path, rows: int, seconds: int, spark: SparkRunner) -> Called:
    """One worker's stacks during ``seconds`` of epochs of so many rows a side."""
    workload = WORKLOADS["W1"]
    workload.generate(root, rows, full(1) + 2 + max(3, 5_000_000 // rows) * seconds)
    told = root / "stacks"
    watching: subprocess.Popen[bytes] | None = None
    for number, _ in enumerate(join(job_of(root, workload), spark)):
        if number == full(1) + 1:
            pid = next(iter(spark.pool.pids.values()))
            how = ("record", "--pid", str(pid), "--duration", str(seconds), "--rate", "200", "--threads", "--function", "--format", "raw")
            watching = subprocess.Popen(["py-spy", *how, "--output", str(told)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert watching is not None
    watching.wait()
    return tree(told.read_text())


def draw(axes: Axes, node: Called, left: float, level: int, total: int) -> None:
    for name, called in sorted(node.callees.items(), key=lambda item: -item[1].samples):
        width = called.samples / total
        if width > 0.004 and level < LEVELS:
            colour = mpl.colormaps["YlOrRd"](0.15 + 0.06 * (zlib.crc32(name.encode()) % 8))
            axes.barh(level, width, left=left, height=0.95, color=colour, edgecolor="white", linewidth=0.4)
            room = int(width / LETTER)
            text = name if len(name) <= room else name.rsplit(".", 1)[-1]
            if room > 5:
                shown = text if len(text) <= room else f"{text[: room - 1]}…"
                axes.text(left + width / 2, level, shown, ha="center", va="center", fontsize=6.5)
            draw(axes, called, left, level + 1, total)
        left += width


def main() -> None:
    parser = options(__doc__ or "", picture="out/bench-flame.png")
    parser.add_argument("--rows", default="100000,1000000", help="a side and epoch, several after commas")
    parser.add_argument("--seconds", type=int, default=10, help="for which stacks are sampled, 200 times each")
    arguments = parser.parse_args()
    if shutil.which("py-spy") is None:
        print("left out: py-spy is missing, which samples the stacks; pip install py-spy")
        return
    if arguments.quick:
        arguments.rows, arguments.seconds = "5000", 2
    print(machine())
    found: dict[int, Called] = {}
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        spark = spark_runner(Path(name))
        try:
            for rows in counts(arguments.rows):
                found[rows] = sampled(Path(name) / str(rows), rows, arguments.seconds, spark)
                shutil.rmtree(Path(name) / str(rows))
        finally:
            spark.stop()
    for rows, root in found.items():
        print(f"\n**A worker's threads, W1, N = {rows:,}**, of {root.samples:,} samples in which they did not wait\n")
        largest = sorted(root.callees.items(), key=lambda item: -item[1].samples)[:6]
        print(table(["", "%"], [[name, f"{100 * called.samples / root.samples:.0f}"] for name, called in largest]))
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 4 * len(found)), dpi=110, layout="constrained")
        for axes, (rows, root) in zip(figure.subplots(len(found), squeeze=False)[:, 0], found.items(), strict=True):
            draw(axes, root, 0.0, 0, root.samples)
            axes.set(xlim=(0, 1), ylim=(LEVELS, -0.6), xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(f"one of two workers, W1, N = {rows:,}: its threads while they do not wait", loc="left", fontsize=10)
        figure.savefig(arguments.picture)
    print(f"\npicture: {arguments.picture}")


if __name__ == "__main__":
    main()
