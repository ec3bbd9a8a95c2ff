"""What all benchmarks share: the line about the machine, tables as Markdown, and the options that each of them has.

Everything is printed so that it can be pasted into ``docs/benchmarks.md`` as it is.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streamjoin.runner.java import find_java

PACKAGES = ("pyspark", "numpy", "pyarrow", "numba", "duckdb", "polars", "confluent-kafka")
LEFT, RIGHT, GOOD, QUIET = "#3b6fd4", "#e08a1e", "#2f9e5b", "#888888"
STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
"""Of all pictures, as ``streamjoin run --picture`` draws them."""


def options(document: str, *, picture: str | None = None) -> argparse.ArgumentParser:
    """A parser with ``--quick``, and ``--picture`` where the program draws one; ``document``: the program's docstring."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it works, in under a minute")
    if picture:
        parser.add_argument("--picture", type=Path, default=Path(picture), help=f"where to draw to (default: {picture})")
    return parser


def machine() -> str:
    """The machine, the versions of what is measured, and how busy it is, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"Python {platform.python_version()}", f"Java {_java()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    load = os.getloadavg()[0]
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB; {', '.join(versions)}; load at the start {load:.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _java() -> str:
    said = subprocess.run([find_java() / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
    return said.split('"')[1] if '"' in said else said.strip()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The median and the range."""
    median, least, most = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return f"{median:.{digits}f}"
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def millions(value: float) -> str:
    """Rows a second and the like, with three digits that mean something."""
    return f"{value / 1e6:.2f} million" if value >= 999_500 else f"{value / 1e3:,.0f} thousand" if value >= 10_000 else f"{value:,.0f}"


def counts(text: str) -> list[int]:
    """``1000,1e6`` as integers."""
    return [int(float(part)) for part in text.split(",")]
