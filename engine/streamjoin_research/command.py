"""``streamjoin bench paper``: its options. ``streamjoin`` finds it by the entry point in this distribution's ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path

import click

from streamjoin.cli import FILE, PICTURES


@click.command()
@click.option("--figure", metavar="NAME", help="One figure, table, theorem or paper: 002:11, 004:table3, 002.")
@click.option("--kinds", default="CSR", show_default=True, metavar="CSR", help="C: arithmetic; S: simulated; R: run here.")
@click.option("--quick", is_flag=True, help="Smaller settings for rows that take long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--picture", type=PICTURES, metavar="DIR", help="Draw each figure into this directory.")
@click.option("--document", type=FILE, metavar="FILE.md", help="Write the page; it keeps the lines of rows that are not computed.")
def paper(figure: str | None, kinds: str, quick: bool, as_json: bool, picture: Path | None, document: Path | None) -> None:
    """Print every figure and table of the five papers beside the figures of this code, and whether they agree."""
    if not kinds or set(kinds) - set("CSR"):
        raise click.UsageError(f"--kinds: {kinds!r} must be made of the letters C, S and R")
    if quick and document is not None:
        raise click.UsageError("--document is made of full settings; leave out --quick")
    from streamjoin_research.papers.bench import Options, bench_paper

    raise SystemExit(bench_paper(Options(figure, kinds, quick, as_json, picture, document)))
