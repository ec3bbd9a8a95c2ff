"""``streamjoin savepoint``: lists, makes and deletes savepoints: of a running join by its driver, of one that does not run in its storage
alone; and takes the latter back to one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, ending
from streamjoin.cli.remote import asked, authorization, is_url, refusal
from streamjoin.cli.validate import job_at
from streamjoin.controlplane.rollback import repeated, roll_back
from streamjoin.controlplane.savepoints import (
    SavepointMissing,
    SavepointRefused,
    delete_of_stopped,
    keep_of_stopped,
    savepoints_in,
)
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.serve.messages import SavepointAnswer
from streamjoin.serve.savepoints import PATH
from streamjoin.state.log import Superseded
from streamjoin.state.storage import ObjectStorage, StorageError

ASK_SECONDS = 0.2
"""The pause between two questions whether a driver has committed what it was asked for."""
ANSWER_SECONDS = 60.0
_Told = Mapping[str, Any]
"""A savepoint, as ``GET /v1/savepoints`` tells it."""


@ending()
def list_savepoints(target: str, token_file: Path | None, *, as_json: bool) -> None:
    """Print the savepoints, oldest first."""
    if is_url(target):
        status, data = _asked(target, "GET", PATH, token_file)
        found: Sequence[_Told] = json.loads(_required(target, status, data))["savepoints"]
    else:
        storage = _storage(target)
        found = [_told(name, savepoint) for name, savepoint in _in_storage(lambda: savepoints_in(storage)).items()]
    for each in sorted(found, key=lambda told: (told["keptAt"] or 0, told["name"])):
        click.echo(json.dumps(each) if as_json else _line(each))
    if not found and not as_json:
        click.echo(f"no savepoints in {target}")


@ending()
def make_savepoint(target: str, name: str, token_file: Path | None, seconds: float) -> None:
    """Keep the last commit by this name, and print it once it is durable."""
    if is_url(target):
        made = _until_done(target, "PUT", name, token_file, seconds)
    else:
        job = job_at(Path(target))
        made = _told(name, _in_storage(lambda: keep_of_stopped(job, ObjectStorage(job.checkpoint), name, clock=time.time)))
    click.echo(_line(made or {}))


@ending()
def delete_savepoint(target: str, name: str, token_file: Path | None, seconds: float) -> None:
    """Forget what was kept by this name."""
    if is_url(target):
        _until_done(target, "DELETE", name, token_file, seconds)
    else:
        storage = _storage(target)
        _in_storage(lambda: delete_of_stopped(storage, name, clock=time.time))
    click.echo(f"{name}: deleted")


@ending()
def roll_back_to(manifest: Path, name: str, keep: str | None, *, repeats: bool) -> None:
    """Take a join that does not run back to what was kept by this name. ``repeats``: results may appear again."""
    job = job_at(manifest)
    again = repeated(job)
    if again and not repeats:
        where = ", ".join(f"{to} ({join})" for join, to in again.items())
        raise Failure(
            Exit.USAGE,
            f"results that were found after savepoint {name} will be found again, and appear a second time in {where}. Give the joins other"
            " outputs, or begin another join with the savepoint (checkpoint.cloneOf); or say --repeat-results",
        )
    before, after = _in_storage(lambda: roll_back(job, ObjectStorage(job.checkpoint), name, keep=keep, clock=time.time))
    savepoint = after.savepoints[name]
    kept = "" if keep is None else f"; what was is kept as {keep}"
    click.echo(f"{name}: the join goes on from epoch {savepoint.epoch}, and its next one is {before.epoch + 1}{kept}")


def _storage(manifest: str) -> ObjectStorage:
    return ObjectStorage(job_at(Path(manifest)).checkpoint)


def _in_storage(do: Any) -> Any:
    """What ``do`` returns. Raises Failure."""
    try:
        return do()
    except (SavepointRefused, SavepointMissing) as error:
        raise Failure(Exit.USAGE, str(error.args[0])) from error
    except CheckpointMismatch as error:
        raise Failure(Exit.MISMATCH, f"{error}") from error
    except Superseded as error:
        raise Failure(Exit.SUPERSEDED, f"{error}; name the URL of the driver that runs instead of the manifest") from error
    except StorageError as error:
        raise Failure(Exit.STORAGE, f"{error}") from error


def _told(name: str, savepoint: Any) -> _Told:
    return SavepointAnswer.of(name, savepoint, None).model_dump(by_alias=True)


def _line(told: _Told) -> str:
    if told["epoch"] is None:
        return f"{told['name']}: asked for"
    at = wording.moment(round(told["committedAt"] * 1e6))
    state = ", being deleted" if told["state"] == "deleting" else ""
    return f"{told['name']}: epoch {told['epoch']} of {at}, {told['bytes']:,} bytes{state}"


def _until_done(url: str, method: str, name: str, token_file: Path | None, seconds: float) -> _Told | None:
    """The savepoint once a commit has made it; None once one has deleted it. Raises Failure."""
    deadline, path = time.monotonic() + seconds, f"{PATH}/{quote(name, safe='')}"
    status, data = _asked(url, method, path, token_file)
    if method == "DELETE" and status == HTTPStatus.NOT_FOUND:
        raise refusal(url, status, data)
    while status == HTTPStatus.ACCEPTED:
        if time.monotonic() > deadline:
            raise Failure(Exit.FAILED, f"{url}: the driver has not committed this within {seconds:g} s, and does so with its next epoch")
        time.sleep(ASK_SECONDS)
        status, data = _asked(url, "GET", path, token_file)
    if method == "DELETE" and status == HTTPStatus.NOT_FOUND:
        return None
    told: _Told = json.loads(_required(url, status, data))
    return told


def _required(url: str, status: int, data: bytes) -> bytes:
    if status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
        raise refusal(url, status, data)
    return data


def _asked(url: str, method: str, path: str, token_file: Path | None) -> tuple[int, bytes]:
    """Status and body of the answer. Raises Failure."""
    status, _, data = asked(url, method, path, authorization(token_file), ANSWER_SECONDS)
    return status, data
