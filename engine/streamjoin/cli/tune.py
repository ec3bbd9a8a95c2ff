"""``streamjoin tune``: thresholds for a trace, what they would have cost beside the present ones, and the YAML to paste."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import ending
from streamjoin.cli.simulate import Options as Simulated
from streamjoin.cli.simulate import Prepared, heading, heading_json, prepare
from streamjoin.cli.validate import simulated_job_at
from streamjoin.cli.variants import Simulations, simulations
from streamjoin.job import Job
from streamjoin.manifest.quantity import Duration
from streamjoin.simulation.run import Outcome, SimulatedJoin, table
from streamjoin.simulation.tuning import Thresholds, Tuned, split, tune

SHORT_SECONDS = 86_400.0
"""A trace that does not have a day says nothing of the other hours."""
ABOUT_AS_MANY = 200


@dataclass(frozen=True, kw_only=True)
class Options(Simulated):
    """What the command line says. Times in seconds."""

    held_out: float
    """The part of the trace that takes no part in the search."""
    loss: float
    """The part of the input that may be lost, where that is more than is lost now."""


@ending()
def tune_manifest(options: Options) -> None:
    """Print the proposal."""
    job = simulated_job_at(options.manifest)
    prepared = prepare(options, job)
    join, traffic = prepared.join, prepared.traffic
    parts = split(traffic, options.held_out)
    searched_seconds = parts[0].seconds
    # Windows of quiet times go on by the clock of the whole trace.
    joins = (join, replace(join, settings=replace(join.settings, clock_offset=join.settings.clock_offset + searched_seconds)))
    with simulations((*parts, traffic), ABOUT_AS_MANY) as many:
        found = tune(join.settings, _Evaluation(joins, many), options.loss, _progress)
        whole = None
        if found.proposed is not None:
            both = (found.present.thresholds, found.proposed.thresholds)
            whole = many.run([_set(join, one) for one in both], traffic=2)
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
    if options.as_json:
        click.echo(json.dumps(_json(options, job, prepared, found, whole), ensure_ascii=False, allow_nan=False))
        return
    click.echo(heading(job, prepared))
    span = f"the first {wording.duration(searched_seconds)}, held out: the last {wording.duration(parts[1].seconds)}"
    click.echo(f"Tried {wording.plural(found.tried, 'setting')} on {span}.\n")
    if traffic.seconds < SHORT_SECONDS:
        click.echo("note: a trace of less than a day says nothing about the other hours; record a week, if you can", err=True)
    click.echo(table(_rows(found, whole)), nl=False)
    if found.proposed is None:
        why = f"; {found.vetoed} that were cheaper there are dearer, or lose more, on the last part" if found.vetoed else ""
        click.echo(f"\nNothing is proposed: on the first part, no setting that loses no more is cheaper by 1 % or more{why}.")
        return
    assert whole is not None
    saved = 1 - whole[1].bill / whole[0].bill if whole[0].bill else 0.0
    click.echo(f"\nOver the whole trace the bill would have been {saved:.1%} lower. To paste, instead of these fields of spec.scaling:\n")
    click.echo(yaml_of(found.proposed.thresholds), nl=False)


class _Evaluation:
    """Simulates thresholds on the parts of the trace (``tuning.Evaluate``)."""

    def __init__(self, joins: tuple[SimulatedJoin, SimulatedJoin], many: Simulations) -> None:
        self._joins, self._many = joins, many

    def __call__(self, candidates: Sequence[Thresholds], *, held_out: bool) -> list[Outcome]:
        return self._many.run([_set(self._joins[held_out], one) for one in candidates], traffic=int(held_out))


def _set(join: SimulatedJoin, thresholds: Thresholds) -> SimulatedJoin:
    return replace(join, settings=thresholds.applied(join.settings))


def _progress(tried: int) -> None:
    if sys.stderr.isatty():
        with contextlib.suppress(OSError):
            click.echo(f"\rtried {wording.plural(tried, 'setting')} ...", err=True, nl=False)


def _rows(found: Tuned, whole: Sequence[Outcome] | None) -> list[Outcome]:
    rows = [("first part, as it is", found.present.searched)]
    if found.proposed is not None:
        rows.append(("first part, proposed", found.proposed.searched))
    rows.append(("held out, as it is", found.present.held_out))
    if found.proposed is not None and whole is not None:
        rows += [("held out, proposed", found.proposed.held_out), ("whole, as it is", whole[0]), ("whole, proposed", whole[1])]
    return [replace(outcome, name=name) for name, outcome in rows]


def yaml_of(thresholds: Thresholds) -> str:
    """The thresholds as YAML, as a manifest has them."""
    lines = [f"  {name}: {value}" for name, value in written(thresholds).items()]
    return "\n".join(["scaling:", *lines]) + "\n"


def written(thresholds: Thresholds) -> dict[str, float | str]:
    """The thresholds by the manifest's names, as a manifest writes them."""
    return {
        "policy": thresholds.policy.value,
        **{name: getattr(thresholds, name) for name in thresholds.taus},
        "scaleUpAfter": str(Duration(round(thresholds.scale_up_after * 1e6))),
        "scaleDownAfter": str(Duration(round(thresholds.scale_down_after * 1e6))),
    }


def _json(options: Options, job: Job, prepared: Prepared, found: Tuned, whole: Sequence[Outcome] | None) -> dict[str, Any]:
    def told(index: int) -> dict[str, Any] | None:
        one = found.proposed if index else found.present
        if one is None:
            return None
        of_whole = None if whole is None else whole[index].to_json()
        return {"scaling": written(one.thresholds), "first": one.searched.to_json(), "heldOut": one.held_out.to_json(), "whole": of_whole}

    record = heading_json("tuning", options, job, prepared)
    del record["picture"]
    return record | {
        "heldOut": options.held_out,
        "loss": options.loss,
        "tried": found.tried,
        "vetoed": found.vetoed,
        "present": told(0),
        "proposed": told(1),
    }
