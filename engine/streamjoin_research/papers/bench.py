"""``streamjoin bench paper``: the papers' figures beside ours, row by row as each is computed."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import click

from streamjoin.cli.exits import Exit
from streamjoin_research.papers import report
from streamjoin_research.papers.catalogue import ROWS
from streamjoin_research.papers.rows import Comparison, Kind, Row, matching


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    figure: str | None
    kinds: str
    """The kinds of the rows to compute: some of C, S and R."""
    quick: bool
    as_json: bool
    picture: Path | None
    document: Path | None


def bench_paper(options: Options) -> Exit:
    """Print each row when it is there. A row that differs is no failure: it is what the comparison is for."""
    try:
        chosen = _chosen(options)
    except ValueError as error:
        click.echo(f"--figure: {error}", err=True)
        return Exit.USAGE
    comparisons = []
    for row in chosen:
        comparison = row.compare(quick=options.quick)
        comparisons.append(comparison)
        if not options.as_json:
            click.echo(report.told(comparison))
    try:
        drawn = _draw(options, comparisons)
        if options.document is not None:
            before = options.document.read_text(encoding="utf-8") if options.document.exists() else ""
            options.document.write_text(report.page(comparisons, machine(), before), encoding="utf-8")
    except OSError as error:
        click.echo(f"{error.filename or options.document}: {error.strerror}; name a place that can be written", err=True)
        return Exit.USAGE
    if options.as_json:
        found = {"rows": [one.to_json() for one in comparisons], "pictures": [str(path) for path in drawn]}
        click.echo(json.dumps({"event": "papers", "machine": machine(), **found}, ensure_ascii=False))
    else:
        click.echo(report.summary([(comparison.row, comparison.agrees) for comparison in comparisons]))
        for path in drawn:
            click.echo(f"drawn: {path}")
    return Exit.DONE


def machine() -> str:
    """What it ran on, in a few words."""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        known = []
    processor = next((line.split(":", 1)[1].strip() for line in known if line.startswith("model name")), platform.machine())
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _chosen(options: Options) -> list[Row]:
    rows = list(ROWS) if options.figure is None else matching(ROWS, options.figure)
    kinds = [kind for kind in Kind if kind.value in options.kinds]
    found = [row for row in rows if row.kind in kinds]
    if not found:
        raise ValueError(f"{options.figure!r} has no row of the kinds {options.kinds}; leave out --kinds")
    return found


def _draw(options: Options, comparisons: list[Comparison]) -> list[Path]:
    if options.picture is None:
        return []
    from streamjoin_research.papers.picture import draw

    return [path for comparison in comparisons if (path := draw(options.picture, comparison)) is not None]
