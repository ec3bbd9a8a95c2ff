"""Chooses what a join runs with: its predicate and first plan, from a sample of its input; another plan, if the manifest asks for one at a
restart, or has other joins then; and the part of the tasks' instructions that stays the same.

Nothing here writes. A plan that is chosen here is in the checkpoint that is returned, and durable with the next commit: a crash before that
leaves the checkpoint as it was, and the next driver chooses again. A predicate stays once it is chosen, as blocks lie in the order of its
key; but a join of three and more streams may be laid by another graph later (``graphs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.controlplane.fingerprint import JoinChanges
from streamjoin.controlplane.joins import candidates, continued, key_spaces_of
from streamjoin.controlplane.planning import tuple_bytes
from streamjoin.controlplane.snapshots import StorageSnapshots
from streamjoin.controlplane.timelines import forms_of
from streamjoin.dataplane.apart import read_apart
from streamjoin.dataplane.event_times import event_times_of
from streamjoin.elastic.deployment import Deployment
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.epoch.spec import Config, Join, Stream
from streamjoin.io.base import Keeping, Source, SourceError, SourcePlan, UnavailableError
from streamjoin.io.deadletter import DeadLetters
from streamjoin.io.factory import make_sink, make_source
from streamjoin.io.refused import RefusedResults
from streamjoin.io.replays import Replayable, Replays
from streamjoin.io.results_source import Feed, ResultsSource
from streamjoin.io.several import Sinks, tags
from streamjoin.job import Job, JoinSource, StreamJob
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import take
from streamjoin.kernel.types import arrow_schema, output_schema
from streamjoin.language.choice import choose
from streamjoin.language.graph import Place
from streamjoin.language.key_spaces import KeySpaces
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import KeyExpression, MainPredicate, seeded
from streamjoin.language.sides import SIDES
from streamjoin.language.window import WindowKind
from streamjoin.retention import expected_of_sides
from streamjoin.scheme.capacity import TUPLE_OVERHEAD
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.sizing import deployed
from streamjoin.state.blocks import DOWNLOADS, Block, load_all
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import Storage, StorageError

SAMPLE_RECORDS = 50_000
SAMPLE_BYTES = 32 << 20
SAMPLE_AHEAD_SECONDS = 60.0
SAMPLE_BLOCKS = 64
"""The number of each side's blocks that are read for the spread of its keys."""


@dataclass(frozen=True)
class Deployed:
    """A checkpoint with a plan to run."""

    checkpoint: Checkpoint
    warning: str | None = None
    """What is wrong with a plan that was made anew."""


def first_plan(
    job: Job, checkpoint: Checkpoint, sources: Sequence[Source], inputs: Sequence[SourcePlan], now: float, *, apart: bool = False
) -> Deployed:
    """The checkpoint with the main predicate and the first plan, chosen from a sample of the first input, and how large its records are.

    ``apart``: the sample is read in processes of their own."""
    samples = _samples(job, sources, inputs, now, apart=apart)
    for source in sources:  # from now on workers read, and what the driver kept open would go on fetching
        if isinstance(source.reader, Keeping):
            source.reader.close()
    checkpoint = replace(checkpoint, input=replace(checkpoint.input, widths=tuple(map(_width, samples))))

    @cache
    def keys_of(stream: int, key: KeyExpression | None) -> np.ndarray:
        return _encoded(samples[stream], key, job.streams[stream], checkpoint.seed)

    encoded = [[keys_of(place.stream, place.key) for place in each.places] for each in job.layouts]
    rates = [stream.expected_rate for stream in job.streams]
    of_streams = [float(rate or 1) for rate in rates] if all(rates) else [float(max(1, plan.records)) for plan in inputs]

    def deployment(layout: Layout) -> Deployment:
        """The first plan by this layout."""
        of_places = zip(layout.places, encoded[job.layouts.index(layout)], strict=True)
        encoded_keys = [layout.encoded_keys(place, keys) for place, keys in of_places]
        volumes = [of_streams[place.stream] for place in layout.places]
        known = _statistics(layout.places, volumes, [(keys, np.ones(len(keys))) if layout.is_keyed else None for keys in encoded_keys])
        sampled = [_tuple_bytes(job, place.stream, samples[place.stream]) for place in layout.places]
        return deployed(job.lying(layout), known, layout.main, tuple_bytes=sampled, held=volumes)

    if any(layout.is_apart for layout in job.layouts):
        made = {layout: deployment(layout) for layout in job.layouts}
        layout = min(made, key=lambda each: made[each].volume)
    else:
        layout = choose(job.layouts, encoded)
        made = {layout: deployment(layout)}
    checkpoint = checkpoint.on(KeySpaces.of(layout, [join.name for join in job.joins], job.window))
    return _deployed(checkpoint, layout.main, made[layout])


def plan_as_asked(job: Job, checkpoint: Checkpoint, storage: Storage) -> Deployed:
    """The checkpoint with a plan that the manifest allows: its own, or, where another model or number of workers is asked for, a new one.

    A new one is made for what is held, of which a sample of the keys is read, or what is expected where that is more. Raises
    CheckpointMismatch.
    """
    scheme = Scheme.from_json(checkpoint.plan.scheme)
    if scheme.model == job.model and job.min_workers <= scheme.tasks <= job.max_workers:
        return Deployed(checkpoint)
    lying = as_it_lies(job, checkpoint, storage.url)
    layout = lying.layouts[0]
    held, samples = _held(checkpoint, layout, storage)
    deployment = _for_held(lying, checkpoint, layout, held, samples)
    deployed = _deployed(checkpoint, layout.main, deployment)
    after = Scheme.from_json(deployed.checkpoint.plan.scheme)
    # The model may have no scheme for as many workers as were asked for.
    return Deployed(checkpoint) if (after.model, after.tasks) == (scheme.model, scheme.tasks) else deployed


def other_joins(
    job: Job,
    checkpoint: Checkpoint,
    changes: JoinChanges,
    storage: Storage,
    sources: Sequence[Source],
    inputs: Sequence[SourcePlan],
    now: float,
    *,
    apart: bool = False,
) -> Deployed:
    """The checkpoint with the manifest's joins, and a plan for what is held of those that it had, and what is expected of those that were
    added, whose predicate is chosen by a sample of what comes next. Raises CheckpointMismatch."""
    added: Layout | None = None
    samples: list[list[pa.RecordBatch]] = [[] for _ in sources]
    if changes.added:
        found = candidates(job, changes)
        samples = _samples(job, sources, inputs, now, apart=apart)
        encoded = [
            [_encoded(samples[held.stream], held.key, job.streams[held.stream], checkpoint.seed) for held in each.places] for each in found
        ]
        added = choose(found, encoded) if len(changes.added) == 1 else found[0]
    lying, after, was = continued(job, checkpoint, changes, added, storage.url)
    layout = lying.layouts[0]
    held, sampled = _held(after, layout, storage)
    for number, place in enumerate(layout.places):
        if was[number] is None:  # nothing is held there yet
            held[number] = max([1.0, *(tuples for at, tuples in zip(layout.places, held, strict=True) if at.stream == place.stream)])
            keys = _encoded(samples[place.stream], place.key, job.streams[place.stream], checkpoint.seed)
            sampled[number] = (layout.encoded_keys(place, keys), np.ones(len(keys))) if layout.is_keyed else None
    return _deployed(after, layout.main, _for_held(lying, after, layout, held, sampled))


def for_held(job: Job, checkpoint: Checkpoint, storage: Storage, workers: int) -> Deployed:
    """The checkpoint with a plan for so many workers, or fewer where the model has none for as many, for what it holds now. ``job``: as it
    lies."""
    layout = job.layouts[0]
    held, sampled = _held(checkpoint, layout, storage)
    job = replace(job, min_workers=workers, max_workers=workers)
    return _deployed(checkpoint, layout.main, _for_held(job, checkpoint, layout, held, sampled))


def _held(checkpoint: Checkpoint, layout: Layout, storage: Storage) -> tuple[list[float], list[_Sampled | None]]:
    """How many tuples the checkpoint has in each place, at least one, and a sample of their keys."""
    blocks = [[block for block in checkpoint.state.blocks if block.place == place] for place in range(len(layout.places))]
    held = [float(max(1, sum(block.rows for block in of_place))) for of_place in blocks]
    return held, [_sampled(storage, of_place, layout, place) for of_place, place in zip(blocks, layout.places, strict=True)]


def _for_held(job: Job, checkpoint: Checkpoint, layout: Layout, held: list[float], samples: list[_Sampled | None]) -> Deployment:
    """A plan for what is held, or what is expected where that is more."""
    known = _statistics(layout.places, held, samples)
    totals = [side.tuples for side in known.sides]
    left, right = (max(tuples, expected or 0.0) for tuples, expected in zip(totals, expected_of_sides(job), strict=True))
    return deployed(job, known, layout.main, (left, right), tuple_bytes=tuple_bytes(job, checkpoint), held=held)


_Sampled = tuple[np.ndarray, np.ndarray]
"""Levels of some tuples, and how many tuples each stands for."""


def _statistics(places: Sequence[Place], volumes: Sequence[float], samples: Sequence[_Sampled | None]) -> Statistics:
    """Of the sides, from the volume and a sample of each place: of several on one side, in proportion to their volumes."""
    sides = []
    for side in SIDES:
        numbers = [number for number, place in enumerate(places) if place.side == side]
        known = [(volumes[number], sample) for number in numbers if (sample := samples[number]) is not None and len(sample[0])]
        histogram = None
        if known:
            encoded_keys = np.concatenate([encoded_keys for _, (encoded_keys, _) in known])
            weight = np.concatenate([weights * (tuples / weights.sum()) for tuples, (_, weights) in known])
            histogram = Histogram.from_sample(encoded_keys, weight=weight)
        sides.append(SideStatistics(sum(volumes[number] for number in numbers), histogram))
    return Statistics(tuple(sides))


def _deployed(checkpoint: Checkpoint, main: MainPredicate, deployment: Deployment) -> Deployed:
    plan = replace(
        checkpoint.plan,
        main=str(main),
        scheme=deployment.planned.plan.scheme.to_json(),
        first_workers=checkpoint.plan.first_workers or deployment.workers,
        generation=checkpoint.plan.generation + 1,
    )
    return Deployed(replace(checkpoint, plan=plan, state=replace(checkpoint.state, tokens={})), deployment.warning)


def as_it_lies(job: Job, checkpoint: Checkpoint, location: str) -> Job:
    """The job with the layout alone that the checkpoint's blocks are sorted by. Raises CheckpointMismatch when the joins no longer have
    it."""
    lying = job.continuing(key_spaces_of(checkpoint))
    if lying is not None:
        return lying
    raise CheckpointMismatch(
        f"{location}: its tuples are sorted by the key of {checkpoint.plan.main}, which the conditions in spec.joins no longer offer"
        f" to model {job.model}; use the version or the model that wrote it, or choose a new checkpoint.location"
    )


def make_config(job: Job, seed: int, query: str, storage: Storage, sources: Sequence[Source], sink: Sinks) -> Config:
    """What the tasks of all epochs must know. ``seed``: of hashes. ``query`` is unique to the driver."""
    layout = seeded(job.layouts[0], seed)
    return Config(
        query=query,
        streams=tuple(
            Stream(
                *(each.name, each.schema, each.payload, each.where, each.event_time, each.punctuation, each.derived_time),
                fails_on_bad=each.fails_on_bad,
            )
            for each in job.streams
        ),
        joins=tuple(Join(each.name, each.type, each.streams, each.window, each.where, each.output) for each in job.joins),
        layout=layout,
        window=job.window,
        storage=storage,
        sink=sink,
        readers=tuple(source.reader for source in sources),
        snapshots=forms_of(job),
    )


def make_sources(job: Job, storage: Storage, *, writes: bool = True) -> tuple[Source, ...]:
    """The sources that the manifest names. ``writes``: whether what they plan may be committed."""
    exact, snapshots = job.window.kind is WindowKind.ROWS, StorageSnapshots(storage, writes=writes)
    stored = [stream.name for stream in job.streams if stream.source.is_outside]
    replays = Replays(storage, job.dead_letter, stored)

    def source(stream: StreamJob) -> Source:
        if isinstance(stream.source, JoinSource):
            return ResultsSource(job.joins[stream.source.join].name, storage, arrow_schema(stream.schema))
        made = make_source(
            *(stream.source, stream.schema, stream.event_time),
            snapshots=snapshots,
            exact_counts=exact,
            stream=stream.name,
            query=job.name,
            times=_least_time(stream) if job.window.kind is WindowKind.RANGE else None,
        )
        return Replayable(made, stream.name, replays, arrow_schema(stream.schema)) if stream.name in stored else made

    return tuple(map(source, job.streams))


def _least_time(stream: StreamJob) -> Callable[[pa.RecordBatch], int | None] | None:
    """The least event time of a batch."""
    times = event_times_of(stream)
    if times is None:
        return None

    def least(batch: pa.RecordBatch) -> int | None:
        found: int | None = pc.min(times.of(times.added(batch)).cast(pa.int64())).as_py()
        return found

    return least


def make_sinks(job: Job, storage: Storage) -> Sinks:
    """The sinks that the manifest names."""
    known = tags(join.name for join in job.joins)
    read = {stream.source.join for stream in job.streams if isinstance(stream.source, JoinSource)}
    made = {
        join.name: make_sink(
            join.sink,
            output_schema(join.output),
            storage=storage,
            query=job.name,
            join=known[join.name],
            refused=None if join.fails_on_bad else RefusedResults(job.dead_letter, join.name),
        )
        for join in job.joins
        if join.sink is not None
    }
    feeds = {join.name: Feed(storage, output_schema(join.output)) for number, join in enumerate(job.joins) if number in read}
    return Sinks(made, feeds, tuple(known), DeadLetters(job.dead_letter, job.most_late_letters, job.letters_retention))


def _samples(job: Job, sources: Sequence[Source], inputs: Sequence[SourcePlan], now: float, *, apart: bool) -> list[list[pa.RecordBatch]]:
    """By stream, some of the first records. What a record may have failed is read again in a process of its own."""
    schemas = [arrow_schema(stream.schema) for stream in job.streams]
    try:
        known = zip(sources, inputs, schemas, strict=True)
        return [_sample(source, plan, now, schema if apart else None) for source, plan, schema in known]
    except (SourceError, UnavailableError, StorageError):
        raise
    except Exception:
        if apart:
            raise
        return _samples(job, sources, inputs, now, apart=True)


def _sample(source: Source, plan: SourcePlan, now: float, apart: pa.Schema | None) -> list[pa.RecordBatch]:
    """Some of the first records, for the choice of predicate and scheme; ``apart``: their schema, if processes of their own read them.

    A stream that has only begun has too few; where a source knows what comes next (a generator always does), that counts too.
    """
    found: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for ahead in (False, True):
        splits = source.plan(plan.position, SAMPLE_RECORDS - rows, now + SAMPLE_AHEAD_SECONDS).splits if ahead else plan.splits
        for split in splits:
            for records in source.reader.read(split) if apart is None else read_apart(source.reader, split, apart):
                found.append(records.batch)
                rows += records.batch.num_rows
                nbytes += records.batch.nbytes
                if rows >= SAMPLE_RECORDS or nbytes >= SAMPLE_BYTES:
                    return found
    return found


def _width(sample: list[pa.RecordBatch]) -> float:
    """Bytes per record; 0 where there is none."""
    nbytes: int = sum(batch.nbytes for batch in sample)
    rows: int = sum(batch.num_rows for batch in sample)
    return nbytes / max(1, rows)


def _tuple_bytes(job: Job, number: int, sample: list[pa.RecordBatch]) -> float:
    """Bytes of a held tuple: by the sample, if it has records, or by the schema."""
    stream = job.streams[number]
    held = [batch.select(list(stream.payload)) for batch in sample if batch.num_rows]
    return TUPLE_OVERHEAD + _width(held) if held else stream.tuple_bytes


def _encoded(sample: list[pa.RecordBatch], key: KeyExpression | None, stream: StreamJob, seed: int) -> np.ndarray:
    if key is None or not sample:
        return np.empty(0, dtype=np.int64)
    parts = []
    for batch in sample:
        keys, valid = encode_keys(batch, seeded(key, seed), stream.schema)
        parts.append(keys if valid is None else keys[valid])
    return np.concatenate(parts)


def _sampled(storage: Storage, blocks: Sequence[Block], layout: Layout, place: Place) -> _Sampled | None:
    """Levels of tuples in these blocks of one place, from at most ``SAMPLE_BLOCKS`` of them. Memory: ``DOWNLOADS`` blocks."""
    if not layout.is_keyed or not blocks:
        return None
    encoded_keys: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for batch, weight in drawn_from(storage, blocks, SAMPLE_RECORDS, ["_key"]):
        encoded_keys.append(layout.encoded_keys(place, batch.column("_key").to_numpy()))
        weights.append(np.full(len(encoded_keys[-1]), weight))
    return np.concatenate(encoded_keys), np.concatenate(weights)


def drawn_from(
    storage: Storage, blocks: Sequence[Block], records: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Some of the tuples of these blocks of one place, about so many in all, evenly along their keys, from at most ``SAMPLE_BLOCKS`` of
    them; with each part, how many tuples each of its stands for. Memory: ``DOWNLOADS`` blocks. Raises StorageError."""
    if not blocks:
        return
    ordered = sorted(blocks, key=lambda block: (block.key_min, block.key_max))
    ends = np.cumsum([block.rows for block in ordered])
    total, draws = int(ends[-1]), min(len(blocks), SAMPLE_BLOCKS)
    if draws == len(blocks):
        shares = {number: float(block.rows) for number, block in enumerate(ordered)}
    else:
        # Evenly along the tuples, so that a block is drawn as often as its size asks for, and each draw stands for as many tuples.
        drawn = np.searchsorted(ends, (np.arange(draws) + 0.5) * total / draws, side="right")
        shares = {number: count * total / draws for number, count in Counter(drawn.tolist()).items()}
    numbers = iter(shares)
    while chunk := list(islice(numbers, DOWNLOADS)):
        for number, batch in zip(chunk, load_all(storage, [ordered[number] for number in chunk]), strict=True):
            every = max(1, batch.num_rows * draws // records)
            # A copy: a view would keep the block mapped, or in a scratch file.
            rows = pa.array(np.arange(every // 2, batch.num_rows, every))
            yield (taken := take(batch if columns is None else batch.select(columns), rows)), shares[number] / taken.num_rows
