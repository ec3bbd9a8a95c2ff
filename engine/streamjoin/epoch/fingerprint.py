"""What a checkpoint knows of the joins that it was made with: what may not change under it (``Job.fingerprint``), by field."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.language.join_type import JoinType
from streamjoin.state.log import Checkpoint

CONDITION = "].condition"
FORMERLY = {"spec.joins[0].on": "spec.joins[0].condition"}
"""Names that fields had in manifests once, as checkpoints have them to this day."""
FORMER = {now: former for former, now in FORMERLY.items()}


def require_same_join(job: Job, checkpoint: Checkpoint, location: str) -> None:
    """Raises CheckpointMismatch when the checkpoint was made with other joins than the manifest asks for."""
    before, now = _as_named_today(checkpoint.fingerprint), job.fingerprint()
    if not before:
        return
    was, joins = _joins_in(before), _joins_in(now)
    had, streams = _streams_in(before), _streams_in(now)
    if len(had) != len(streams):
        lines = [f"spec.streams: {', '.join(streams)} differ from {', '.join(had)}, which the checkpoint was made with"]
    elif set(was) == set(joins):
        changed = [name for name in now if before.get(name) != now[name]]
        lines = [f"{name}: {now[name]} differs from {before.get(name)}, which the checkpoint was made with" for name in changed]
    else:
        named = [", ".join(names) if len(names) > 1 else "one join" for names in (joins, was)]
        lines = [f"spec.joins: {named[0]} differs from {named[1]}, which the checkpoint was made with"]
    if lines:
        raise CheckpointMismatch("; ".join(lines) + f". Restore the manifest, or choose a new checkpoint.location (this one is {location})")


def _joins_in(fingerprint: Mapping[str, str]) -> list[str]:
    """The names of its joins; of one alone its place, as its name may change."""
    return [name.removeprefix("spec.joins[").removesuffix(CONDITION) for name in fingerprint if name.endswith(CONDITION)]


def _streams_in(fingerprint: Mapping[str, str]) -> list[str]:
    """The names of its streams, in their order."""
    return [text for name, text in fingerprint.items() if name.startswith("spec.streams[") and name.endswith("].name")]


def stored(fingerprint: dict[str, str]) -> dict[str, str]:
    """As a checkpoint has it: under the former names, so that a release that knows those alone can still go on from it."""
    return {FORMER.get(name, name): text for name, text in fingerprint.items()}


def _as_named_today(fingerprint: dict[str, str]) -> dict[str, str]:
    """A checkpoint's fingerprint under the names that fields have now; empty where there is none.

    Versions before joins had types wrote none: they were inner joins.
    """
    named = {FORMERLY.get(name, name): text for name, text in fingerprint.items()}
    return {"spec.joins[0].type": JoinType.INNER, **named} if "spec.joins[0].condition" in named else named
