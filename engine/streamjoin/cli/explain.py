"""``streamjoin explain``: the ledger of decisions in the checkpoint, for people or as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.run import anchored
from streamjoin.cli.validate import read_text, refusing
from streamjoin.elastic.explain import explain
from streamjoin.elastic.ledger import Ledger
from streamjoin.job import compile_job
from streamjoin.manifest.validate import load
from streamjoin.serve.decisions import LedgerError, load_ledger
from streamjoin.state.storage import ObjectStorage


def explain_manifest(path: Path, limit: int, as_json: bool) -> Exit:
    """Print what was decided. A join that was never scaled has an empty ledger."""
    try:
        with refusing(path):
            job = anchored(compile_job(load(read_text(str(path)))))
        ledger = _read(job.checkpoint)
    except Failure as failure:
        click.echo(failure.sentence, err=True)
        return failure.code
    if not as_json and job.capacity.origin:
        click.echo(f"capacity: {job.capacity.told()}")
    click.echo(json.dumps(ledger.to_json()) if as_json else explain(ledger, limit=limit, now=time.time()), nl=as_json)
    return Exit.DONE


def _read(checkpoint: str) -> Ledger:
    try:
        return load_ledger(ObjectStorage(checkpoint)) or Ledger()
    except LedgerError as error:
        raise Failure(Exit.FAILED, f"streamjoin: {error}") from error
    except OSError as error:
        raise Failure(Exit.STORAGE, f"streamjoin: {error}; look whether the storage can be reached") from error
