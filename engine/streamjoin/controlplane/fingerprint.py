"""Compares a manifest with the joins that its checkpoint was made with (``Job.fingerprint``), field by field: these fields of the streams,
and of joins that stay, may not change. Joins may come and go, by name (``controlplane.joins``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.language.sql import parse_boolean
from streamjoin.language.window import window_text
from streamjoin.manifest import holding
from streamjoin.manifest.connector import SourceConnector
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.state.checkpoint import Checkpoint

CONDITION = "].condition"
SELECT = "].select"
MODEL, OTHERS = "spec.scheme.model", "another model"
ALONE = "0"
"""What a join is known by that is the only one, as it may get another name."""


@dataclass(frozen=True, slots=True)
class JoinChanges:
    """Which joins a manifest has that a checkpoint was not made with, and the other way round."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    alone: str | None = None
    """With a checkpoint of one join: the name that this join has now, or had, if it is removed."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def join_changes(job: Job, checkpoint: Checkpoint, location: str) -> JoinChanges:
    """The differences between the manifest's joins and those that the checkpoint was made with. Raises CheckpointMismatch for what may not
    differ."""
    changes, lines = _compared(job, checkpoint)
    if lines:
        remedy = f"Restore the manifest, or choose a new checkpoint.location (this one is {location})"
        raise CheckpointMismatch(f"{'; '.join(lines)}. {remedy}")
    return changes


def require_same(job: Job, kept: Checkpoint, savepoint: str) -> None:
    """Raises CheckpointMismatch for a savepoint, of this name and place, that the manifest's joins cannot begin with."""
    _, lines = _compared(job, kept)
    if lines:
        remedy = f"Correct the manifest, or begin without spec.checkpoint.cloneOf, which is {savepoint}"
        raise CheckpointMismatch(f"{'; '.join(lines)}. {remedy}")


def _compared(job: Job, checkpoint: Checkpoint) -> tuple[JoinChanges, list[str]]:
    """What became of the joins, and what differs that may not."""
    before, now = checkpoint.fingerprint, fingerprint(job)
    if not before:
        return JoinChanges(), []
    before = _widened(job, before)
    had, streams = _streams_in(before), _streams_in(now)
    if len(had) != len(streams):
        return JoinChanges(), [f"spec.streams: {', '.join(streams)} differ from {', '.join(had)}, which the checkpoint was made with"]
    changes, lines = _joins(job, checkpoint, before)
    if (model := before.get(MODEL, OTHERS)) != now.get(MODEL, OTHERS):
        lines.append(f"{MODEL}: {now.get(MODEL, job.model)} differs from {model}, which the checkpoint was made with")
    of_streams = [name for name in now if name.startswith("spec.streams[") and not (changes and name.endswith(SELECT))]
    mended = _mended(job, checkpoint, before)
    of_streams = [name for name in of_streams if name not in mended]
    refusals = {name: text for name, source in _sources(job) if (text := source.refusal(name, before.get(name, "")))}
    lines = [*_differing(before, now, of_streams, refusals), *lines]
    if changes:
        lines += _narrowed(job, before, changes)
    return changes, lines


def _widened(job: Job, before: dict[str, str]) -> dict[str, str]:
    """The fingerprint, with a source's identity now in place of one that it goes on from."""
    return before | {name: source.identity for name, source in _sources(job) if source.goes_on_from(before.get(name, ""))}


def _sources(job: Job) -> Iterator[tuple[str, SourceConnector]]:
    """The sources, each with its field."""
    for index, stream in enumerate(job.streams):
        if isinstance(stream.source, SourceConnector):
            yield f"spec.streams[{index}].source", stream.source


def _mended(job: Job, checkpoint: Checkpoint, before: Mapping[str, str]) -> set[str]:
    """What may be another of a stream all of whose records were rejected or late, so that nothing is held or was found of it. Columns that
    conditions read stay, as tuples of other streams lie by them. O(streams x columns)."""
    may: set[str] = set()
    for number, stream in enumerate(job.streams if checkpoint.epoch >= 0 else ()):
        field, joins = f"spec.streams[{number}]", [join for join in job.joins if number in join.streams]
        found = [checkpoint.totals.get(f"output/{join.name}", [0])[0] for join in joins]
        if any(found) or any(checkpoint.totals[name][number] for name in ("accepted", "shed")):
            continue
        was = f", {before[f'{field}.schema']}, "
        read = {column for join in joins for name, column in _read_by(job, join.name) if name == stream.name}
        if all(f", {column.name} {column.type}, " in was for column in stream.schema if column.name in read):
            may |= {f"{field}.{name}" for name in ("schema", "eventTime", "select")}
    return may


def _read_by(job: Job, join: str) -> frozenset[tuple[str, str]]:
    """The columns that a join's condition reads, each with its stream's name."""
    written = next(each for each in job.manifest.spec.joins if each.name == join) if len(job.joins) > 1 else job.manifest.spec.joins[0]
    return frozenset(parse_boolean(written.condition, {stream.name: stream.schema for stream in job.streams}).columns)


def _differing(before: Mapping[str, str], now: Mapping[str, str], names: list[str], refusals: Mapping[str, str]) -> Iterator[str]:
    """``refusals``: what is said of a field instead of that it differs."""
    for name in names:
        was, is_now = before.get(name), now[name]
        if was != is_now:
            yield refusals.get(name, f"{name}: {is_now} differs from {was}, which the checkpoint was made with")


def _joins(job: Job, checkpoint: Checkpoint, before: Mapping[str, str]) -> tuple[JoinChanges, list[str]]:
    """What became of the joins, and which of those that are left differ from what they were."""
    was = {key: _of_join(before, key) for key in _joins_in(before)}
    joins, alone = [join.name for join in job.joins], None
    if list(was) == [ALONE]:
        alone = _alone(job, checkpoint, was[ALONE])
        if alone is None:
            return JoinChanges(), [f"spec.joins: {', '.join(joins)} differs from one join, which the checkpoint was made with"]
        was = {alone: was[ALONE]}
    added, removed = tuple(name for name in joins if name not in was), tuple(name for name in was if name not in joins)
    lines = [line for name in joins if name in was for line in _changed_join(job, name, was[name])]
    if added and job.model == HANDSHAKE:
        lines.append(f"spec.joins: {', '.join(added)} cannot be added, as some tuples in the chain have met without it")
    return JoinChanges(added, removed, alone), lines


def _alone(job: Job, checkpoint: Checkpoint, was: Mapping[str, str]) -> str | None:
    """What the only join of a checkpoint is called: as it was, or, where there is still one and it is the same, as that is now."""
    joins = [join.name for join in job.joins]
    recorded = None if checkpoint.plan.key_spaces is None else next(iter(checkpoint.plan.key_spaces.joins))
    if recorded is not None and (recorded in joins or len(joins) > 1):
        return recorded
    same = next((name for name in joins if fingerprint_of(job, name) == was), None)
    return same or recorded


def _changed_join(job: Job, name: str, was: Mapping[str, str]) -> Iterator[str]:
    key = name if len(job.joins) > 1 else ALONE
    before, now = ({f"spec.joins[{key}].{field}": text for field, text in of.items()} for of in (was, fingerprint_of(job, name)))
    yield from _differing(before, now, list(now), {})


def _narrowed(job: Job, before: Mapping[str, str], changes: JoinChanges) -> Iterator[str]:
    """What joins that stay would need of tuples that were held without it."""
    schemas = {stream.name: stream.schema for stream in job.streams}
    held = {stream.name: before[f"spec.streams[{number}{SELECT}"].split(", ") for number, stream in enumerate(job.streams)}
    for index, join in enumerate(job.joins):
        if join.name not in changes.added:
            for need in holding.needs_of(job.manifest.spec, index, schemas):
                if need.column not in held[need.stream]:
                    yield f"{need.field}: needs {need.stream}.{need.column}, which held tuples do not carry; add another join instead"


def _of_join(fingerprint: Mapping[str, str], key: str) -> dict[str, str]:
    start = f"spec.joins[{key}]."
    return {name.removeprefix(start): text for name, text in fingerprint.items() if name.startswith(start)}


def _joins_in(fingerprint: Mapping[str, str]) -> list[str]:
    """The names of its joins; of one alone its place, as its name may change."""
    return [name.removeprefix("spec.joins[").removesuffix(CONDITION) for name in fingerprint if name.endswith(CONDITION)]


def _streams_in(fingerprint: Mapping[str, str]) -> list[str]:
    """The names of its streams, in their order."""
    return [text for name, text in fingerprint.items() if name.startswith("spec.streams[") and name.endswith("].name")]


def fingerprint(job: Job) -> dict[str, str]:
    """What may not change under an existing checkpoint, by field: held tuples and positions would no longer fit."""
    prints: dict[str, str] = {}
    for index, stream in enumerate(job.streams):
        field = f"spec.streams[{index}]"
        prints[f"{field}.name"] = stream.name
        prints[f"{field}.source"] = stream.source.identity
        prints[f"{field}.schema"] = ", ".join(f"{column.name} {column.type}" for column in stream.schema)
        prints[f"{field}.eventTime"] = stream.event_time or (stream.derived_time.shown if stream.derived_time else "none")
        prints[f"{field}.select"] = ", ".join(stream.selected) or "none"
    for join in job.joins:
        field = f"spec.joins[{join.name if len(job.joins) > 1 else 0}]"  # one alone may be renamed
        prints |= {f"{field}.{name}": text for name, text in fingerprint_of(job, join.name).items()}
    if job.model == HANDSHAKE:  # its tuples lie by when they came, and have yet to meet
        prints["spec.scheme.model"] = HANDSHAKE
    return prints


def fingerprint_of(job: Job, name: str) -> dict[str, str]:
    """What may not change of a join, by field."""
    join, written = next(each for each in zip(job.joins, job.manifest.spec.joins, strict=True) if each[0].name == name)
    return {
        "condition": " ".join(written.condition.split()),
        "window": window_text(join.window, [job.streams[stream].name for stream in join.streams]),
        "type": join.type,
    }
