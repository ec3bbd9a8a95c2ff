"""The command line. Commands only name their options here; what carries them out is imported when it is needed.

Always holds: ``streamjoin --help`` imports nothing but click, and ``streamjoin validate`` neither Spark nor Arrow nor a drawing library,
so that both answer at once (``tests/test_cli.py``).
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from streamjoin import __version__

FILE = click.Path(dir_okay=False, path_type=Path)


class Duration(click.ParamType[float]):
    """A duration as manifests write it; its value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from streamjoin.manifest.quantity import Duration as Written

        try:
            micros = Written.parse(value).micros
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if micros == 0:
            self.fail(f"{value!r} must be longer than nothing", param, ctx)
        return micros / 1e6


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="streamjoin")
def main() -> None:
    """Elastic joins of unbounded streams on any predicate."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal's encoding lacks is no reason to fail


@main.command()
@click.argument("manifest", type=FILE)
@click.option(
    "--runner",
    type=click.Choice(["spark", "inline"]),
    default="spark",
    show_default=True,
    help="spark: real executors on this machine; inline: all in this process, without Java.",
)
@click.option("--until-idle", is_flag=True, help="Stop when all input has been joined and no more can come; for finite inputs.")
@click.option("--for", "seconds", type=Duration(), metavar="DURATION", help="Stop after so long, such as 90s or 1h30m.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per epoch on standard output, and one with the summary.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve metrics for Prometheus; 0: on any free port.")
@click.option("--metrics-address", metavar="ADDRESS", help="Where to serve them. [default: 127.0.0.1, this machine alone]")
@click.option("--picture", type=FILE, metavar="FILE.png", help="Draw the run when it ends (png, svg or pdf).")
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where Spark's log and the traces of failures go. [default: logs in the checkpoint's directory]",
)
def run(
    manifest: Path,
    runner: str,
    until_idle: bool,
    seconds: float | None,
    as_json: bool,
    metrics_port: int | None,
    metrics_address: str | None,
    picture: Path | None,
    log_dir: Path | None,
) -> None:
    """Run the join that MANIFEST describes, with a live view. Ctrl-C stops it; a second start goes on from there."""
    if metrics_address is not None and metrics_port is None:
        raise click.UsageError("--metrics-address says where --metrics-port is; give a port too, or 0 for any free one")
    from streamjoin.cli.run import Options, run_manifest

    options = Options(manifest, runner, until_idle, seconds, as_json, picture, log_dir, metrics_port, metrics_address)
    raise SystemExit(run_manifest(options))


@main.command()
@click.argument("files", type=click.Path(dir_okay=False, allow_dash=True), nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Report all that is wrong with each FILE (- for standard input): field, value and what to do about it."""
    from streamjoin.cli.validate import validate_files

    raise SystemExit(validate_files(files))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--stats", type=FILE, metavar="FILE.json", help="What the streams look like; without it, what the manifest says of them.")
@click.option("--tasks", type=click.IntRange(1), help="Plan for so many workers.")
@click.option("--capacity", type=click.IntRange(1), help="Plan for as few workers as can hold all, each at most so many tuples.")
@click.option("--from", "running", type=FILE, metavar="PLAN.json", help="Plan from this plan on: say what moves, and draw both.")
@click.option("--save", type=FILE, metavar="PLAN.json", help="Write the plan into this file.")
@click.option("--output", type=FILE, metavar="FILE", help="Draw the scheme into this file (svg or png).")
def plan(
    manifest: Path,
    stats: Path | None,
    tasks: int | None,
    capacity: int | None,
    running: Path | None,
    save: Path | None,
    output: Path | None,
) -> None:
    """Show how the join of MANIFEST would be cut among workers, and draw it."""
    if tasks is not None and capacity is not None:
        raise click.UsageError("--tasks and --capacity exclude each other; give one")
    from streamjoin.cli.plan import Options, plan_manifest

    raise SystemExit(plan_manifest(manifest, Options(stats, tasks, capacity, running, save, output)))
