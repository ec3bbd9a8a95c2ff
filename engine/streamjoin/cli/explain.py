"""``streamjoin explain``: the ledger of decisions in the checkpoint, for people or as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from streamjoin.cli.exits import Exit, Failure, ending
from streamjoin.cli.validate import job_at
from streamjoin.controlplane.deployment import as_it_lies
from streamjoin.controlplane.flowing import flowing_of
from streamjoin.elastic.explain import explain
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.path_plans import told
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.serve.decisions import LedgerError, load_ledger
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage


@ending()
def explain_manifest(path: Path, limit: int, as_json: bool) -> None:
    """Print what was decided. A join that was never scaled has an empty ledger."""
    job = job_at(path)
    ledger = _read(job.checkpoint)
    sequences = [] if as_json else _sequences(job)
    if not as_json and job.capacity.origin:
        click.echo(f"capacity: {job.capacity.told()}")
    for line in sequences:
        click.echo(line)
    click.echo(json.dumps(ledger.to_json()) if as_json else explain(ledger, limit=limit, now=time.time()), nl=as_json)


def _sequences(job: Job) -> list[str]:
    """In which order the streams of joins over three and more meet, by the last commit, and what that has sent."""
    if not job.multiway:
        return []
    try:
        latest = read_latest(ObjectStorage(job.checkpoint))
    except OSError as error:
        raise Failure(Exit.STORAGE, f"streamjoin: {error}; look whether the storage can be reached") from error
    if latest is None or not latest.checkpoint.plan.flowing:
        return []
    checkpoint = latest.checkpoint
    try:
        lying = as_it_lies(job, checkpoint, job.checkpoint)
    except CheckpointMismatch as error:
        raise Failure(Exit.FAILED, f"streamjoin: {error}") from error
    lines = []
    for placed, flowing, own in flowing_of(lying.multiway, checkpoint):
        lines += [f"{job.joins[placed.join].name}:"] if len(job.joins) > 1 else []
        lines += told(placed.graph, flowing, checkpoint.plan.path_plans[own])
    tuples, nbytes = (checkpoint.totals.get(name, [0])[0] for name in ("partial", "partial_bytes"))
    return [*lines, f"Sent between steps so far: {tuples:,} partial results, {nbytes:,} bytes.", ""]


def _read(checkpoint: str) -> Ledger:
    try:
        return load_ledger(ObjectStorage(checkpoint)) or Ledger()
    except LedgerError as error:
        raise Failure(Exit.FAILED, f"streamjoin: {error}") from error
    except OSError as error:
        raise Failure(Exit.STORAGE, f"streamjoin: {error}; look whether the storage can be reached") from error
