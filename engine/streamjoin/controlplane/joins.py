"""Going on from a checkpoint with other joins than it was made with: some were added to the manifest, some removed.

What is held of joins that stay, stays where it is, on its key spaces. A join that is added has key spaces of its own
(:mod:`streamjoin.language.key_spaces`), which begin with nothing: it sees what is read from then on, as if it ran alone from there.
Key spaces of which no join is left go, with what is held on them. All of this is one commit, with the plan that it takes. A crash before it
leaves the checkpoint as it was, with the joins that it had.

Results of a join that was removed must be visible by then, as nobody else knows where they go: a driver that stops in order sees to that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamjoin.controlplane.fingerprint import JoinChanges, fingerprint
from streamjoin.controlplane.results import SINK
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.io.deadletter import TAG
from streamjoin.io.several import tags
from streamjoin.job import Job
from streamjoin.language.graph import JoinGraph
from streamjoin.language.key_spaces import KeySpaces
from streamjoin.language.layout import Layout, PlacedGraph, layouts
from streamjoin.language.sides import SIDES
from streamjoin.manifest import holding, resolve
from streamjoin.state.blocks import Block
from streamjoin.state.checkpoint import Checkpoint


def key_spaces_of(checkpoint: Checkpoint) -> KeySpaces:
    """The key spaces on which the tuples of a checkpoint with a plan lie."""
    key_spaces = checkpoint.plan.key_spaces
    assert key_spaces is not None, "they come with the first plan"
    return key_spaces


def as_named_now(job: Job, checkpoint: Checkpoint, changes: JoinChanges, location: str) -> Checkpoint:
    """The checkpoint with key spaces and results under what the joins are known by now. Raises CheckpointMismatch where results are of a
    removed join."""
    known = tags(join.name for join in job.joins)
    alone = changes.alone or next(iter(known))

    def named(value: dict[str, Any]) -> dict[str, Any]:
        name = value.get("join") or alone
        if name == TAG:
            return value
        if name not in known:
            raise CheckpointMismatch(
                f"spec.joins: {name} was removed while results of it are committed that may not be visible yet; run with {name} until the"
                f" driver stops in order, then remove it (the checkpoint is {location})"
            )
        return {**{field: of for field, of in value.items() if field != "join"}, **({"join": known[name]} if known[name] else {})}

    if checkpoint.plan.key_spaces is not None and changes.alone is not None:
        checkpoint = checkpoint.on(checkpoint.plan.key_spaces.renamed(changes.alone))
    output = checkpoint.output
    kept = (place for place in output.places if place["of"] != SINK or (place.get("join") or alone) in known)
    places = tuple(named(place) if place["of"] == SINK else place for place in kept)
    staged, waiting = tuple(map(named, output.staged)), tuple(map(named, output.waiting))
    return replace(checkpoint, output=replace(output, staged=staged, waiting=waiting, places=places))


def candidates(job: Job, changes: JoinChanges) -> tuple[Layout, ...]:
    """The layouts that could serve the joins that were added, best static choice first; of several, that of key spaces, if there is one."""
    found = _layouts(job, changes.added)
    return tuple(layout for layout in found if layout.has_key_spaces) or found


def _layouts(job: Job, joins: Collection[str]) -> tuple[Layout, ...]:
    """The layouts that could serve these joins, best static choice first."""
    if resolve.names_streams(job.manifest.spec):
        schemas = {stream.name: stream.schema for stream in job.streams}
        return holding.layouts_among(job.manifest.spec, schemas, [at for at, join in enumerate(job.joins) if join.name in joins])
    if any(join.condition is None for join in job.joins):
        return job.layouts
    return layouts([join.condition for join in job.joins if join.condition is not None and join.name in joins])


def continued(
    job: Job, checkpoint: Checkpoint, changes: JoinChanges, added: Layout | None, location: str
) -> tuple[Job, Checkpoint, tuple[int | None, ...]]:
    """The job and the checkpoint with the manifest's joins, those that were added as in ``added``; and by place, which place that was.

    What was staged must be visible. O(blocks). Raises CheckpointMismatch.
    """
    key_spaces = key_spaces_of(checkpoint)
    left, place_of = key_spaces.without(changes.removed)
    left = left.held_for([join.window for join in job.joins if len(join.streams) == len(SIDES)])
    after = left if added is None else _beside(left, KeySpaces.of(added, list(changes.added), left.window), location)
    lying = job.continuing(after)
    if lying is None:
        raise CheckpointMismatch(
            f"spec.scheme.model: {job.model} divides along keys, and a join that the checkpoint was made with has none; choose another"
            f" model, or a new checkpoint.location (this one is {location})"
        )
    was: list[int | None] = [None] * len(lying.places)
    for before, now in place_of.items():
        was[now] = before
    known = tags(join.name for join in job.joins)
    moved = _placed_anew(checkpoint.on(after), lying, place_of, was)
    expired = list(moved.state.expired)
    for name, placed in left.joins.items():
        if not placed.is_multiway:
            bounds = tuple(checkpoint.state.expired[place] for place in key_spaces.joins[name].places)
            for place, bound in zip(placed.places, left.window.expired_within(key_spaces.window, bounds), strict=True):
                expired[place] = bound
    moved = replace(
        moved,
        state=replace(moved.state, marks=tuple(_marks(moved.state.marks, known, changes.alone)), expired=tuple(expired)),
        totals={name: counts for name, counts in checkpoint.totals.items() if name.partition("/")[2] not in changes.removed},
        fingerprint=fingerprint(job),
    )
    return lying, moved, tuple(was)


def by_graph(job: Job, checkpoint: Checkpoint, placed: PlacedGraph, graph: JoinGraph) -> tuple[Job, Checkpoint, dict[int, int]] | None:
    """The job and the checkpoint where a join over three and more streams lies by another graph of its condition: without blocks of that
    join, and for each of its places one that had the same tuples, by another key. None: there would be too many key spaces, or the model
    has no use for them. O(blocks)."""
    key_spaces = key_spaces_of(checkpoint)
    try:
        after, place_of = key_spaces.by_graph(job.joins[placed.join].name, placed.streams, graph)
    except ValueError:
        return None
    lying = job.continuing(after)
    if lying is None:
        return None
    # Of each stream all places of the join have the same tuples.
    had = dict(zip(placed.streams, placed.first_places, strict=True))
    anew = {place: had[lying.places[place].stream] for place in range(len(place_of), len(lying.places))}
    was = {now: before for before, now in place_of.items()} | anew
    moved = _placed_anew(checkpoint.on(after), lying, place_of, [was[place] for place in range(len(lying.places))])
    return lying, moved, anew


def _placed_anew(checkpoint: Checkpoint, lying: Job, place_of: Mapping[int, int], was: Sequence[int | None]) -> Checkpoint:
    """The checkpoint with blocks and marks of the places that are left, under the numbers that they have in ``lying``; what is counted by
    place is that of the place that each ``was``. O(blocks)."""
    held = checkpoint.state
    return replace(
        checkpoint,
        plan=replace(checkpoint.plan, main=str(lying.layouts[0].main), path_plans=(), flowing={}),  # ways are chosen anew
        state=replace(
            held,
            blocks=_moved(held.blocks, place_of),
            marks=_moved(held.marks, place_of),
            expired=tuple(None if place is None else held.expired[place] for place in was),
            held=_by_place(held.held, was),
            held_bytes=_by_place(held.held_bytes, was),
        ),
        losses=checkpoint.losses.without_memories(),
    )


def _beside(left: KeySpaces, added: KeySpaces, location: str) -> KeySpaces:
    if not left.key_spaces:
        return added
    try:
        return left.beside(added)
    except ValueError as error:
        raise CheckpointMismatch(
            f"spec.joins: tuples would lie by {error}, because joins that are added later have keys of their own; remove a join,"
            f" or choose a new checkpoint.location (this one is {location})"
        ) from None


def _moved(blocks: Iterable[Block], place_of: Mapping[int, int]) -> tuple[Block, ...]:
    return tuple(replace(block, place=place_of[block.place]) for block in blocks if block.place in place_of)


def _marks(blocks: Iterable[Block], known: Mapping[str, str], alone: str | None) -> Iterable[Block]:
    """Those of joins that are left, under what these are known by now."""
    for block in blocks:
        name = block.join or alone
        if name is not None and name in known:
            yield replace(block, join=known[name])


def _by_place(counts: Mapping[int, tuple[int, ...]], was: Sequence[int | None]) -> dict[int, tuple[int, ...]]:
    return {task: tuple(0 if place is None else of_places[place] for place in was) for task, of_places in counts.items()}
