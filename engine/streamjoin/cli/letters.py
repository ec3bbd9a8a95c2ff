"""``streamjoin letters``: the dead letters of a join, by stream and reason, with examples.

Also those that the last commit keeps and no file has yet. Memory: that of one file's line, and of ``MOST_KINDS`` reasons.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyarrow import ipc

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, ending
from streamjoin.cli.validate import job_at
from streamjoin.io.base import SourceError, Staged
from streamjoin.io.deadletter import TAG, is_letters, kind_of
from streamjoin.io.folder import folder_at
from streamjoin.io.replays import KEY, LOOK_SECONDS, ask, asked_for, letters_in
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


@ending()
def show_letters(manifest: Path, examples: int, as_json: bool) -> None:
    """Print the letters, most frequent reasons first."""
    job = job_at(manifest)
    groups = grouped(job, examples)
    ordered = sorted(groups, key=lambda group: (group.stream, -group.count, group.reason))
    for line in _json_lines(ordered) if as_json else _lines(job, ordered):
        click.echo(line)


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


@ending()
def replay_letters(manifest: Path) -> None:
    """Ask the join's driver to read the letters again whose records can be, and say which these are."""
    click.echo(_asked(job_at(manifest)))


def _asked(job: Job) -> str:
    """Raises Failure."""
    storage = ObjectStorage(job.checkpoint)
    try:
        latest = read_latest(storage)
        if latest is None:
            raise Failure(Exit.UNUSABLE, f"streamjoin: no join has run with the checkpoint {job.checkpoint}: nothing can be read again")
        known = {stream.name for stream in job.streams}
        counts: dict[str, int] = {}
        others = 0
        for name in _files(job):  # before the requests: what is done is gone from these files before its request is
            counts[name] = 0
            for letter, origin in letters_in(job.dead_letter, name):
                can_be = origin is not None and letter["stream"] in known
                counts[name] += can_be
                others += not can_be
        named = asked_for(storage)
        files = [name for name, count in counts.items() if count and name not in named]
        waiting = sum(staged.rows for staged in map(Staged.from_json, latest.checkpoint.output.waiting) if staged.join == TAG)
        lines = []
        if files:
            count = sum(counts[name] for name in files)
            last = max((position or {}).get(KEY, {}).get("request", 0) for position in latest.checkpoint.input.positions)
            ask(storage, files, last)
            when = f"within {LOOK_SECONDS:.0f} s if it runs, or when it starts"
            lines.append(f"{wording.plural(count, 'dead letter')} will be read again by the join, {when}")
        else:
            lines.append(f"no dead letters in {job.dead_letter} are to be read again")
        if already := sum(counts[name] for name in named if name in counts):
            lines.append(f"{already:,} were asked for before, and are yet to be read")
        if waiting:
            lines.append(f"{waiting:,} of the last epochs are not in a file yet: ask again in a minute, or when the join has ended")
        if others:
            lines.append(f"{others:,} stay as they are: late, refused by a sink, or of a file that was read in part")
        return "\n".join(lines)
    except (OSError, SourceError) as error:
        raise Failure(Exit.STORAGE, f"streamjoin: {error}; look whether {job.dead_letter} and {job.checkpoint} can be read") from error


def _files(job: Job) -> list[str]:
    """The files of dead letters, by name."""
    if not (is_url(job.dead_letter) or Path(job.dead_letter).is_dir()):
        return []
    return sorted(entry.name for entry in folder_at(job.dead_letter).scan(is_deep=False) if is_letters(entry))


def _whose(letter: dict[str, Any]) -> str:
    """The stream; of a result that its sink has refused, the join."""
    return f"join {letter['join']}" if "join" in letter else str(letter["stream"])


def letters_of(job: Job) -> Iterator[dict[str, Any]]:
    """Each letter as it was written (``io.deadletter.SCHEMA``, ``io.refused``); first those in files. Raises OSError, SourceError."""
    for name in _files(job):
        for letter, _ in letters_in(job.dead_letter, name):
            yield letter
    storage = ObjectStorage(job.checkpoint)
    latest = read_latest(storage)
    waiting = [Staged.from_json(value) for value in latest.checkpoint.output.waiting] if latest else []
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
