"""The first phase of a task (``dataplane.join``): the runs that the last commit left to it, or the epoch before, or that it reads back."""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.dataplane.compiled import compiled, plan_of
from streamjoin.dataplane.matches import read_marks
from streamjoin.epoch.reports import TaskReport, sample_of
from streamjoin.epoch.spec import Config, EpochSpec, Handover
from streamjoin.scheme.tiling import Area
from streamjoin.state.blocks import FOLDER
from streamjoin.state.log import Entry
from streamjoin.state.store import HeldRun, JoinMarks, RunStore, Staged, TaskRuns, missing, read_back, slice_keys


def open_runs(
    spec: EpochSpec, task: int, config: Config, areas: dict[int, Area], store: RunStore, report: TaskReport
) -> tuple[TaskRuns, JoinMarks]:
    """The runs that the epoch before left to this task, and which of their tuples have matched."""
    if not areas:
        _retain(spec, config.query, store)
        return {}, {}
    staged = left_here(spec, task, config.query, store, report)
    if staged is not None:
        return staged.runs, staged.marks
    runs, marks = _read_back(spec, config, areas, store, report)
    report.read_back_bytes = sum(held.nbytes for of_place in runs.values() for held in of_place) if report.read_back else 0
    report.held_sample = [
        sample_of(side, slice_keys(held.run.batch, keys), held.run.time_max)
        for (index, side), of_area in runs.items()
        if report.read_back and (keys := areas[index].writes[side]) is not None
        for held in of_area
    ]
    return runs, marks


def left_here(spec: EpochSpec, task: int, query: str, store: RunStore, report: TaskReport) -> Staged | None:
    """The runs that the epoch before left to this task in this process, which drops all others. None: they must be read back, if there are
    any.

    Raises PredecessorMissing. The report says which attempt it goes on from.
    """
    if spec.follows is not None:
        # Before anything is dropped: where the epoch that it follows has yet to run, that needs the runs of the one before. They are kept
        # in any case: the last commit left them, and should what is in flight fail, the next attempt goes on from them.
        report.opened, staged = store.following(query, task, spec.follows)
        store.retain(query, (), spec.follows - 1)
        return staged
    _retain(spec, query, store)
    report.opened = spec.tokens.get(task)
    found = None if report.opened is None else store.get(query, report.opened)
    if found is None:
        report.opened, report.read_back = None, spec.handover is None
    return found


def _retain(spec: EpochSpec, query: str, store: RunStore) -> None:
    tokens = set(spec.tokens.values()) | set(spec.handover.tokens.values() if spec.handover else ())
    store.retain(query, tokens, spec.epoch if spec.follows is None else spec.follows)


def _read_back(spec: EpochSpec, config: Config, areas: dict[int, Area], store: RunStore, report: TaskReport) -> tuple[TaskRuns, JoinMarks]:
    if spec.base is None:
        return {(index, place): () for index, area in areas.items() for place in range(len(area.holds))}, {}
    checkpoint = Entry.decode(config.storage.get(spec.base)).checkpoint
    here = [] if spec.handover is None else _held_here(spec, spec.handover, store)
    worker, held = compiled(spec.config), checkpoint.state
    bounds = tuple((spec.released_before if place in worker.tracked else spec.expired_before)[place] for place in range(len(worker.places)))
    gathered = read_back(
        *(config.storage, held.blocks, areas, spec.generation, bounds), held_as=worker.held, here=here, fetched=store.fetched()
    )
    if spec.handover is not None:
        report.kept_tuples, report.moved_tuples = gathered.kept, gathered.read
    return gathered.runs, {
        join.name: read_marks(config.storage, held.marks, areas, gathered.runs, join) for join in worker.joins if join.type.tracked
    }


def _held_here(spec: EpochSpec, handover: Handover, store: RunStore) -> Iterator[tuple[Area, dict[int, tuple[HeldRun, ...]]]]:
    """Every area of the plan before that this process holds, with its runs by place."""
    before = plan_of(handover.scheme, spec.config).areas
    for task, token in handover.tokens.items():
        staged = store.get(compiled(spec.config).config.query, token)
        if staged is not None:
            for index, area in before.get(task, {}).items():
                yield area, {place: staged.runs[index, place] for place in range(len(area.holds))}


def fetch_upcoming(spec: EpochSpec, task: int, config: Config, areas: dict[int, Area], store: RunStore, report: TaskReport) -> None:
    """Bring the parts of blocks that this worker will need under the upcoming plan into its process, if they are not on this machine."""
    if spec.upcoming is None or config.storage.local_path(FOLDER) is not None:
        store.fetch(config.storage, ())
        return
    after = plan_of(spec.upcoming.scheme, spec.config).areas.get(spec.upcoming.tasks.get(task, -1), {})
    committed = Entry.decode(config.storage.get(spec.upcoming.base)).checkpoint.state.blocks
    wanted = missing(committed, areas.values(), after.values())
    store.fetch(config.storage, wanted)
    here = store.fetched()
    report.to_fetch_bytes = sum(excerpt.nbytes for excerpt in wanted if excerpt not in here)


def unexpired(held: tuple[HeldRun, ...], bound: int | None, report: TaskReport) -> tuple[HeldRun, ...]:
    """Those that have a tuple from ``bound`` on; the others' blocks are reported as replaced."""
    if bound is None:
        return held
    kept = []
    for run in held:
        if run.run.time_max is None or run.run.time_max >= bound:
            kept.append(run)
        else:
            report.replaced.extend(run.blocks)
    return tuple(kept)
