"""``streamjoin letters``: the dead letters of a join, by stream and reason, with examples.

Also those that the last commit keeps and no file has yet. Memory: that of one file's line, and of ``MOST_KINDS`` reasons.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyarrow import ipc

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.validate import job_at
from streamjoin.io.base import SourceError, Staged
from streamjoin.io.deadletter import TAG, is_letters, kind_of
from streamjoin.io.folder import folder_at
from streamjoin.io.lines import JSON_SPACE, Framing, read_range
from streamjoin.job import Job
from streamjoin.location import is_url
from streamjoin.state.extent import read_extents
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage

MOST_KINDS = 1000
"""Of which letters are told apart."""
OTHERS = "others"
RAW_CHARACTERS = 200


@dataclass
class Group:
    """The letters of one stream, or of one join's sink, and one reason."""

    stream: str
    reason: str
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


def show_letters(manifest: Path, examples: int, as_json: bool) -> Exit:
    """Print the letters, most frequent reasons first."""
    try:
        job = job_at(manifest)
        groups = grouped(job, examples)
    except Failure as failure:
        click.echo(failure.sentence, err=True)
        return failure.code
    ordered = sorted(groups, key=lambda group: (group.stream, -group.count, group.reason))
    for line in _json_lines(ordered) if as_json else _lines(job, ordered):
        click.echo(line)
    return Exit.DONE


def grouped(job: Job, examples: int) -> list[Group]:
    """All letters. O(letters). Raises Failure."""
    groups: dict[tuple[str, str], Group] = {}
    try:
        for letter in letters_of(job):
            key = _whose(letter), kind_of(letter["error"])
            if key not in groups and len(groups) >= MOST_KINDS:
                key = _whose(letter), OTHERS
            group = groups.setdefault(key, Group(*key))
            group.count += 1
            if len(group.examples) < examples:
                group.examples.append({"error": letter["error"], "where": letter["split"], "raw": letter["raw"]})
    except (OSError, SourceError) as error:
        raise Failure(Exit.STORAGE, f"streamjoin: {error}; look whether {job.dead_letter} can be read") from error
    return list(groups.values())


def _whose(letter: dict[str, Any]) -> str:
    """The stream; of a result that its sink has refused, the join."""
    return f"join {letter['join']}" if "join" in letter else str(letter["stream"])


def letters_of(job: Job) -> Iterator[dict[str, Any]]:
    """Each letter as it was written (``io.deadletter.SCHEMA``, ``io.refused``); first those in files. Raises OSError, SourceError."""
    if is_url(job.dead_letter) or Path(job.dead_letter).is_dir():
        folder = folder_at(job.dead_letter)
        for entry in sorted(folder.scan(is_deep=False), key=lambda entry: entry.name):
            if is_letters(entry):
                with contextlib.closing(folder.open(entry.name)) as file:
                    for block in read_range(file, 0, entry.stat().st_size, Framing(JSON_SPACE)):
                        yield from map(json.loads, block.text.splitlines())
    storage = ObjectStorage(job.checkpoint)
    latest = read_latest(storage)
    waiting = [Staged.from_json(value) for value in latest.checkpoint.waiting] if latest else []
    extents = [staged.extent for staged in waiting if staged.join == TAG and staged.extent is not None]
    for data in read_extents(storage, extents):
        with ipc.open_stream(data) as reader:
            for batch in reader:
                yield from batch.to_pylist()


def _json_lines(groups: list[Group]) -> Iterator[str]:
    for group in groups:
        yield json.dumps({"stream": group.stream, "reason": group.reason, "count": group.count, "examples": group.examples})


def _lines(job: Job, groups: list[Group]) -> Iterator[str]:
    if not groups:
        yield f"no dead letters in {job.dead_letter}"
    stream = None
    for group in groups:
        if group.stream != stream:
            stream = group.stream
            total = sum(each.count for each in groups if each.stream == stream)
            yield f"{stream}: {wording.plural(total, 'dead letter')}, in {job.dead_letter}"
        yield f"  {group.count:>9,}  {group.reason}"
        for example in group.examples:
            text = io.StringIO(example["raw"]).readline().rstrip("\n")
            yield f"{'':13}{example['where']}: {wording.cut(text, RAW_CHARACTERS)}"
            if example["error"] != group.reason:
                yield f"{'':15}{wording.cut(example['error'], RAW_CHARACTERS)}"
