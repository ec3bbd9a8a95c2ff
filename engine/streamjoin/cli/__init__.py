"""The command line. This module has only the options of each command; a command imports its implementation when it runs.

Always holds: ``streamjoin --help`` imports nothing but click, and ``streamjoin validate`` neither Spark nor Arrow nor a drawing library,
so that both answer at once (``tests/test_cli.py``).
"""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from streamjoin import __version__

LEAST_MEMORY = 64 << 20
"""Of a query."""
FILE = click.Path(dir_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Pictures(click.Path):
    """Where to draw. Refused before the work that is to be shown where nothing can draw, as in the engine's image."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if importlib.util.find_spec("matplotlib") is None:
            self.fail(f"{value!r} cannot be drawn without matplotlib, which images leave out; pip install 'streamjoin[engine]'", param, ctx)
        return super().convert(value, param, ctx)


PICTURE, PICTURES = Pictures(dir_okay=False, path_type=Path), Pictures(file_okay=False, path_type=Path)


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


class Memory(click.ParamType[int]):
    """An amount of memory as manifests write it; its value is bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from streamjoin.manifest.quantity import Memory as Written

        if isinstance(value, int):
            return value
        try:
            found = Written.parse(value).bytes
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if found < LEAST_MEMORY:
            self.fail(f"{value!r} must be at least 64Mi", param, ctx)
        return found


def of_workers(command: _Command) -> _Command:
    """What simulations take workers and tuples to be."""
    for option in (
        click.option(
            "--share", type=click.FloatRange(0, 1), help="The share of all pairs that the main predicate admits.  [default: by its form]"
        ),
        click.option("--tuple-bytes", type=POSITIVE, default=64, show_default=True, help="Bytes of a held tuple."),
        click.option("--worker-rate", type=POSITIVE, default=200_000, show_default=True, help="Tuples/s that a worker can process."),
        click.option("--start-up", type=Duration(), default="30s", show_default=True, help="How long a worker takes to start."),
    ):
        command = option(command)
    return command


OF_PODS = frozenset({"driver", "executor", "purge", "serve", "watch-sources"})
"""The commands of containers, which log as their pod's environment says."""


class Research(click.Group):
    """Commands of the package streamjoin-research, which need not be installed. They are its entry points of the group streamjoin.bench."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from importlib.metadata import entry_points

        return sorted(entry_points(group="streamjoin.bench").names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib.metadata import entry_points

        if not self.list_commands(ctx):
            ctx.fail(f"{cmd_name}: the package streamjoin-research has this command and is not installed; in a clone: make setup-research")
        found = [entry.load() for entry in entry_points(group="streamjoin.bench", name=cmd_name)]
        return found[0] if found else None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="streamjoin")
@click.pass_context
def main(context: click.Context) -> None:
    """Elastic joins of unbounded streams on any predicate."""
    import os

    from streamjoin.logs import in_pod

    if context.invoked_subcommand in OF_PODS:
        context.with_resource(in_pod(os.environ))
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
@click.option("--elastic", is_flag=True, help="Add and remove workers while the join runs, by the rules of spec.scaling.")
@click.option("--until-idle", is_flag=True, help="Stop when all input has been joined and no more can come; for finite inputs.")
@click.option("--for", "seconds", type=Duration(), metavar="DURATION", help="Stop after this time, such as 90s or 1h30m.")
@click.option("--standby", is_flag=True, help="If a driver of the join is at work, get everything ready, and go on when it is gone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per epoch on standard output, and one with the summary.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus, and the plan API; 0: on any free port.",
)
@click.option("--metrics-address", metavar="ADDRESS", help="The address to serve them at. [default: 127.0.0.1, this machine alone]")
@click.option("--api-token-file", type=FILE, metavar="FILE", help="A file with the token that requests to the plan API must show.")
@click.option("--flight", "flight_port", type=click.IntRange(0, 65535), metavar="PORT", help="Also answer over Arrow Flight, at this port.")
@click.option("--ui/--no-ui", default=None, help="Serve a page that shows the run.  [default: on a terminal, and with --metrics-port]")
@click.option("--picture", type=PICTURE, metavar="FILE.png", help="Draw the run when it ends (png, svg or pdf).")
@click.option(
    "--log-dir",
    "log_directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory for Spark's log and the traces of failures. [default: logs in the checkpoint's directory]",
)
def run(**given: Any) -> None:
    """Run the join that MANIFEST describes, with a live view. Ctrl-C stops it; a second start continues from there."""
    if given["metrics_port"] is None:
        for name, why in (
            ("metrics_address", "--metrics-address says where --metrics-port is; give a port too"),
            ("api_token_file", "--api-token-file is of the plan API on --metrics-port; give a port too"),
            ("flight_port", "--flight is beside --metrics-port; give a port for that too"),
        ):
            if given[name] is not None:
                raise click.UsageError(f"{why}, or 0 for any free one")
    from streamjoin.cli.run import Options, run_manifest

    raise SystemExit(run_manifest(Options(**given)))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The number of decisions to list.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole ledger as one JSON object.")
def explain(manifest: Path, limit: int, as_json: bool) -> None:
    """Show the decisions of the autoscaler of MANIFEST's join, with their reasons and outcomes."""
    from streamjoin.cli.explain import explain_manifest

    raise SystemExit(explain_manifest(manifest, limit, as_json))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--examples", type=click.IntRange(0), default=2, show_default=True, help="The number of records to show of each reason.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per stream and reason.")
@click.option("--replay", is_flag=True, help="Have the join read these records again, by the manifest that it runs with then.")
def letters(manifest: Path, examples: int, as_json: bool, replay: bool) -> None:
    """Show the dead letters of MANIFEST's join: the records that it could not use, by reason."""
    from streamjoin.cli.letters import replay_letters, show_letters

    raise SystemExit(replay_letters(manifest) if replay else show_letters(manifest, examples, as_json))


@main.group()
def savepoint() -> None:
    """Keep committed epochs of a join by name: as a backup, for another join to begin from, and to go back to.

    With MANIFEST the join must not run: its storage is changed. With URL, the port of a running join, its driver is asked.
    """


TOKEN_FILE = click.option("--token-file", type=FILE, metavar="FILE", help="A file with the token for the driver at URL.")
PATIENCE = click.option(
    "--timeout", "seconds", type=Duration(), default="60s", show_default=True, help="How long to wait for the driver at URL."
)


@savepoint.command("list")
@click.argument("target", metavar="MANIFEST|URL")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per savepoint.")
@TOKEN_FILE
def list_savepoints(target: str, as_json: bool, token_file: Path | None) -> None:
    """Show the savepoints of a join."""
    from streamjoin.cli.savepoint import list_savepoints

    raise SystemExit(list_savepoints(target, token_file, as_json=as_json))


@savepoint.command("make")
@click.argument("target", metavar="MANIFEST|URL")
@click.argument("name")
@TOKEN_FILE
@PATIENCE
def make_savepoint(target: str, name: str, token_file: Path | None, seconds: float) -> None:
    """Keep the last committed epoch by NAME. If there is such a savepoint, it stays as it is."""
    from streamjoin.cli.savepoint import make_savepoint

    raise SystemExit(make_savepoint(target, name, token_file, seconds))


@savepoint.command("delete")
@click.argument("target", metavar="MANIFEST|URL")
@click.argument("name")
@TOKEN_FILE
@PATIENCE
def delete_savepoint(target: str, name: str, token_file: Path | None, seconds: float) -> None:
    """Forget the savepoint of this NAME. What only it kept is removed later by the join."""
    from streamjoin.cli.savepoint import delete_savepoint

    raise SystemExit(delete_savepoint(target, name, token_file, seconds))


@savepoint.command()
@click.argument("manifest", type=FILE)
@click.argument("name")
@click.option("--keep", metavar="NAME", help="Keep what the join is before that as a savepoint of this name.")
@click.option("--repeat-results", "repeats", is_flag=True, help="Go back although results of epochs after NAME appear again.")
def rollback(manifest: Path, name: str, keep: str | None, repeats: bool) -> None:
    """Have the join of MANIFEST, which must not run, go on from the savepoint of this NAME."""
    from streamjoin.cli.savepoint import roll_back_to

    raise SystemExit(roll_back_to(manifest, name, keep, repeats=repeats))


@main.command()
@click.argument("target", metavar="MANIFEST|URL")
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row, instead of a table.")
@click.option("--arrow", type=FILE, metavar="FILE", help="Write the rows into this file, in Arrow's format.")
@click.option("--limit", "rows", type=click.IntRange(1), metavar="ROWS", help="The most rows; more are cut.  [default: 1000 for a table]")
@click.option("--timeout", "seconds", type=Duration(), default="60s", show_default=True, help="Give up after this time.")
@click.option(
    "--memory",
    "memory_bytes",
    type=Memory(),
    default="1Gi",
    show_default=True,
    help="The memory that the query may take if it runs here.",
)
@click.option("--token-file", type=FILE, metavar="FILE", help="A file with the token for the server at URL.")
@click.option("--follow", is_flag=True, help="For a join's results: continue with each new snapshot, until Ctrl-C.")
@click.option("--after", metavar="SNAPSHOT", help="For a join's results: only those of later snapshots; -1: all.")
@click.option("--relayed", "is_relayed", is_flag=True, hidden=True)
def query(**given: Any) -> None:
    """Query the tuples that a join holds and the results that it has found: one SELECT over its streams and joins, by their names.

    With MANIFEST the join's storage is read. URL is the port of a running join or of streamjoin serve.
    """
    if given["as_json"] and given["arrow"] is not None:
        raise click.UsageError("--json and --arrow exclude each other; give one")
    from streamjoin.cli.query import Options, run_query

    raise SystemExit(run_query(Options(**given)))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="0: any free one.")
@click.option("--address", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--api-token-file", "token_file", type=FILE, metavar="FILE", help="A file with the token that clients must show.")
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True, help="How many queries run at once.")
@click.option("--memory", "memory_bytes", type=Memory(), default="1Gi", show_default=True, help="The memory that each query may take.")
@click.option("--flight", "flight_port", type=click.IntRange(0, 65535), metavar="PORT", help="Also answer over Arrow Flight, at this port.")
def serve(**given: Any) -> None:
    """Answer queries of MANIFEST's join over HTTP, from its storage alone. The driver need not run."""
    from streamjoin.cli.serve import Options, run_server

    raise SystemExit(run_server(Options(**given)))


@main.command()
@click.argument("files", type=click.Path(dir_okay=False, allow_dash=True), nargs=-1, required=True, metavar="FILE...")
@click.option("--offline", is_flag=True, help="Look at nothing outside: no directories, tables or topics.")
def validate(files: tuple[str, ...], offline: bool) -> None:
    """Report all mistakes in each FILE (- for standard input), each with its field, value and remedy."""
    from streamjoin.cli.validate import validate_files

    raise SystemExit(validate_files(files, offline=offline))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--stats", type=FILE, metavar="FILE.json", help="Statistics of the streams. Without it, the estimates of the manifest.")
@click.option("--tasks", type=click.IntRange(1), help="Plan for this number of workers.")
@click.option("--capacity", type=click.IntRange(1), help="Plan for the fewest workers that hold at most this many tuples each.")
@click.option("--from", "running", type=FILE, metavar="PLAN.json", help="Make the next plan after this one: show moved tuples, draw both.")
@click.option("--save", type=FILE, metavar="PLAN.json", help="Write the plan into this file.")
@click.option("--output", type=PICTURE, metavar="FILE", help="Draw the scheme into this file (svg or png).")
@click.option("--explain", "explained", is_flag=True, help="Show what is held, and along which paths new tuples find their results.")
def plan(manifest: Path, **given: Any) -> None:
    """Show how the join of MANIFEST would be divided among workers, and draw it."""
    if given["tasks"] is not None and given["capacity"] is not None:
        raise click.UsageError("--tasks and --capacity exclude each other; give one")
    from streamjoin.cli.plan import Options, plan_manifest

    raise SystemExit(plan_manifest(manifest, Options(**given)))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--trace", type=FILE, metavar="FILE.csv", help="Recorded traffic: time_s, left_rate, right_rate and, if known, skew and hot.")
@click.option(
    "--traffic",
    type=click.Choice(["diurnal", "spike", "ramp", "skew-shift", "ratio-shift", "random", "rush"]),
    help="Made-up traffic.  [default: diurnal, without --trace]",
)
@click.option("--days", type=click.FloatRange(0, 366, min_open=True), help="The length of made-up traffic, in days.  [default: 7]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The seed of everything random.")
@click.option("--rate", type=click.FloatRange(0, 1e9, min_open=True), help="Mean tuples per second of each stream of made-up traffic.")
@click.option("--step", type=Duration(), default="15s", show_default=True, help="The time between two samples.")
@of_workers
@click.option("--policy", type=click.Choice(["thresholds", "esj", "predictive"]), help="Used instead of the manifest's scaling.policy.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE,...", help="Try each value, such as scaling.tau3=0.8,0.9; repeatable.")
@click.option("--explain", "explained", is_flag=True, help="Also print the last decisions of StreamJoin's own rules.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--picture", type=PICTURE, metavar="FILE.png", help="Draw rates, workers and tau (png, svg or pdf).")
def simulate(**given: Any) -> None:
    """Try the thresholds of MANIFEST on traffic. Compare with HPA's rule, Flink's autoscaler's rule and one that knows the future.

    With --set, compare many settings instead: worker-hours against lost tuples.
    """
    if given["trace"] is not None and any(given[name] is not None for name in ("traffic", "days", "rate")):
        raise click.UsageError("--trace has rates of its own; --traffic, --days and --rate are for traffic that is made up")
    if given["explained"] and given["as_json"]:
        raise click.UsageError("--explain is for people, and --json is not; give one")
    if given["explained"] and given["sets"]:
        raise click.UsageError("--explain is of one setting, and --set tries many; give one")
    from streamjoin.cli.simulate import Options, simulate_manifest

    raise SystemExit(simulate_manifest(Options(**given)))


@main.command()
@click.argument("manifest", type=FILE)
@click.option("--trace", type=FILE, required=True, metavar="FILE.csv", help="Recorded traffic, as streamjoin trace writes it.")
@click.option(
    "--held-out", type=click.FloatRange(0.05, 0.9), default=0.3, show_default=True, help="The last part, which only checks the result."
)
@click.option(
    "--loss", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="The share of the input that may be lost, if above today's."
)
@click.option("--step", type=Duration(), default="30s", show_default=True, help="The time between two samples.")
@of_workers
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def tune(**given: Any) -> None:
    """Propose thresholds for MANIFEST on recorded traffic, and compare their cost with that of the present ones."""
    from streamjoin.cli.tune import Options, tune_manifest

    raise SystemExit(tune_manifest(Options(**given)))


@main.command()
@click.argument("source", required=False, metavar="[FILE|URL]")
@click.option("--prometheus", metavar="URL", help="Record the past of a join that this Prometheus has scraped.")
@click.option("--name", help="The join's metadata.name, in Prometheus.")
@click.option("--namespace", help="The join's namespace, in Prometheus; needed if several joins have its name.")
@click.option("--from", "begin", metavar="TIME", help="The start, in Prometheus: 2026-11-23T08:00:00Z, or 7d before --to.  [default: 1d]")
@click.option("--to", "end", metavar="TIME", help="The end, in Prometheus: a time, or a duration before now.  [default: now]")
@click.option("--step", type=Duration(), default="60s", show_default=True, help="The time between two rows, and between two samples.")
@click.option("--for", "seconds", type=Duration(), metavar="DURATION", help="How long to record a running join.  [default: until Ctrl-C]")
@click.option("--token-file", type=FILE, metavar="FILE", help="A file with the token for the server.")
@click.option("--taken-in", is_flag=True, help="Record the rates at which the join read tuples, including tuples that had waited.")
@click.option("--output", "-o", type=FILE, metavar="FILE.csv", help="Write the trace into this file, not to standard output.")
def trace(source: str | None, prometheus: str | None, **given: Any) -> None:
    """Record the traffic of a join, as the CSV that simulate and tune read with --trace.

    The source is FILE with the output of run --json (- is standard input), the running join whose metrics are at URL, or a Prometheus.
    """
    if (source is None) == (prometheus is None):
        raise click.UsageError("name one source: the output of run --json, the URL of a running join, or --prometheus URL")
    if prometheus is not None and given["name"] is None:
        raise click.UsageError("--prometheus has many joins; give --name, which is the manifest's metadata.name")
    if prometheus is None and any(given[name] is not None for name in ("name", "namespace", "begin", "end")):
        raise click.UsageError("--name, --namespace, --from and --to are for --prometheus; leave them out")
    from streamjoin.cli.remote import is_url

    if given["seconds"] is not None and not (source is not None and is_url(source)):
        raise click.UsageError("--for is for a join that runs; name its URL, or leave --for out")
    from streamjoin.cli.trace import Options, record_trace

    raise SystemExit(record_trace(Options(source, prometheus, **given)))


@main.group(cls=Research)
def bench() -> None:
    """Compare this code with published figures (needs the package streamjoin-research)."""


@main.command(hidden=True)
@click.argument("manifest", type=FILE)
@click.option("--revision", help="Wait until the file of that name beside MANIFEST has this text.")
@click.option("--executor-template", "template", type=FILE, required=True, help="The pod template of executors.")
@click.option("--exchange-secret-file", "exchange", type=FILE, required=True, help="The secret with which driver and workers authenticate.")
@click.option("--tls-directory", type=click.Path(file_okay=False, path_type=Path), help="The directory with tls.crt, tls.key and ca.crt.")
@click.option("--tls-name", help="The name that tls.crt is for.")
@click.option("--executor-heap-mib", "heap_mib", type=click.IntRange(64), required=True, help="Heap of an executor's JVM.")
@click.option("--executor-overhead-mib", "overhead_mib", type=click.IntRange(64), required=True, help="Memory of a pod besides the heap.")
@click.option("--executor-cpu", "cpu", default="1", help="Cores of an executor's pod, as Kubernetes writes them.")
@click.option(
    "--executor-grace-seconds", "grace_seconds", type=click.IntRange(0), default=30, help="What an executor has before it is killed."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="The port of metrics, health and plan API.")
@click.option("--api-token-file", type=FILE, required=True, help="The file with the plan API's token.")
@click.option("--standby", is_flag=True, help="Wait until no other driver of the join is at work.")
def driver(manifest: Path, revision: str | None, port: int, api_token_file: Path, standby: bool, **given: Any) -> None:
    """Run the join of MANIFEST in a pod, its executors in others: what the Kubernetes operator starts."""
    if (given["tls_directory"] is None) != (given["tls_name"] is None):
        raise click.UsageError("--tls-directory and --tls-name belong together; give both or neither")
    import os

    from streamjoin.cli.exits import Failure
    from streamjoin.cli.pods import LOGS, Pods, Secrets, run_driver
    from streamjoin.cli.run import Options

    secrets = Secrets(given.pop("exchange"), given.pop("tls_directory"), given.pop("tls_name") or "")
    try:
        pods = Pods.here(os.environ, secrets=secrets, **given)
    except Failure as failure:
        raise click.UsageError(failure.sentence) from failure
    options = Options(
        manifest,
        as_json=True,
        standby=standby,
        log_directory=LOGS,
        metrics_port=port,
        metrics_address="::",  # probes and Prometheus come from other pods
        api_token_file=api_token_file,
        pods=pods,
    )
    raise SystemExit(run_driver(options, revision))


@main.command(hidden=True)
def executor() -> None:
    """Become a Spark executor, in a pod that Spark has made."""
    from streamjoin.cli.pods import run_executor

    raise SystemExit(run_executor())


@main.command(hidden=True)
@click.argument("manifest", type=FILE)
def purge(manifest: Path) -> None:
    """Remove the state of the join of MANIFEST: everything in checkpoint.location."""
    from streamjoin.cli.pods import purge as remove

    raise SystemExit(remove(manifest))


@main.command(hidden=True)
@click.argument("manifest", type=FILE)
@click.option("--every", "pause", type=Duration(), default="2s", show_default=True, help="The time between two questions to the sources.")
@click.option("--answered", type=FILE, metavar="FILE", help="Have this file while all sources answer.")
def watch_sources(manifest: Path, pause: float, answered: Path | None) -> None:
    """Wait until a source of MANIFEST's join, which does not run, has something that it has not read."""
    from streamjoin.cli.watching import watch

    raise SystemExit(watch(manifest, pause, answered))
