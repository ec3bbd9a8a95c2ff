"""``streamjoin watch-sources``: what wakes a join that is asleep, in a pod that the operator makes.

Always holds: it ends with 0 only because the join has something to do, so that it may be killed at any time and started again: the next one
finds the same. What else ends it is a Failure.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import click

from streamjoin.cli.exits import ending


@ending("streamjoin: ")
def watch(manifest: Path, pause: float, answered: Path | None) -> None:
    """Wait until there is something to do. ``pause``: seconds between two questions; ``answered``: a file to have while all sources answer.
    Raises Failure."""
    from streamjoin.api.failure import failure_of
    from streamjoin.cli.pods import LOGS
    from streamjoin.cli.validate import job_at
    from streamjoin.controlplane.watch import Watch
    from streamjoin.state.storage import ObjectStorage

    job = job_at(manifest)
    if answered is not None:
        answered.unlink(missing_ok=True)  # of one that was killed
    try:
        watched = Watch(job, ObjectStorage(job.checkpoint))
        while (found := watched.found(time.time())) is None:
            if answered is not None:
                answered.touch()
            time.sleep(pause)
    except Exception as error:
        raise failure_of(error, traceback.format_exc(), LOGS) from error
    finally:
        if answered is not None:
            answered.unlink(missing_ok=True)
    click.echo(found, err=True)
