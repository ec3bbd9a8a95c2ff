"""Plans how a join would be divided among workers: from its manifest, and statistics if there are any, to a plan and its figures.

Always holds: nothing is read or written but what the arguments say; the same arguments give the same plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from streamjoin.api.areas import CoverageArea, areas_of
from streamjoin.api.key_spaces import KeySpace, key_spaces_of, statistics_of
from streamjoin.api.stats import Stats, expected_statistics, read_stats, read_stats_by_stream
from streamjoin.elastic.admission import FirstPlan
from streamjoin.elastic.deployment import Deployment
from streamjoin.elastic.path_plans import Flowing, PathPlans, assumed, choose, told
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.elastic.planner import Planned, follow, overfull
from streamjoin.elastic.rounds import LEAST_EPOCH_SECONDS, Exchange
from streamjoin.job import Job, JoinSource
from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.manifest.problem import listed
from streamjoin.plan.explaining import explained
from streamjoin.plan.join_plan import JoinPlan
from streamjoin.plan.of_job import join_plan
from streamjoin.retention import expected_of_places
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import DEFAULTS, Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme, SchemeError
from streamjoin.scheme.unknown import unknown
from streamjoin.sizing import carried_bytes, deployed, foreseen_plan, promised, weights_of_sides

UNKNOWN_SECONDS = 60.0
"""The seconds of tuples that a stream is taken to hold, if the manifest does not say what its window holds."""


class PlanRefusal(ValueError):  # noqa: N818 - an answer, with the remedy
    """No plan can be made; the text says why and what to change."""


@dataclass(frozen=True, eq=False)
class Outline:
    """A plan and its figures: the data of ``streamjoin plan``."""

    job: Job
    """The job, with the layout in which its tuples would lie."""
    planned: Planned
    statistics: Statistics
    """What the plan was made for."""
    key_spaces: tuple[KeySpace, ...]
    """The same in keys, for people."""
    capacity: Capacity
    running: Plan | None
    """The plan from which this one goes on."""
    deployment: Deployment | None
    """The first deployment, where the plan is that."""
    first: FirstPlan | None
    """And what it promises."""
    sequences: tuple[str, ...]
    """With three and more streams: the orders in which they would meet, one line each."""
    path_plans: Mapping[int, PathPlans]
    """By join over three and more streams, these orders, for each of its streams."""
    notes: tuple[str, ...]
    """How several joins share their tuples, which conjuncts no index serves and why, and what else could have been the main predicate."""

    @property
    def plan(self) -> Plan:
        """The plan itself: save it (``to_json``), put it to a running join, or go on from it (``current``)."""
        return self.planned.plan

    @property
    def scheme(self) -> Scheme:
        return self.plan.scheme

    @property
    def model(self) -> str:
        return self.scheme.model

    @property
    def workers(self) -> int:
        return self.scheme.tasks

    @cached_property
    def join_plan(self) -> JoinPlan:
        """What the workers' tasks would do: arrangements, paths and their stages."""
        return join_plan(self.job, self.workers, self.path_plans)

    def explain(self) -> str:
        """That, for people."""
        return explained(self.join_plan)

    @cached_property
    def loads(self) -> tuple[float, ...]:
        """What each worker would hold, in the unit of the capacity: tuples or bytes."""
        return tuple(map(float, loads(self.scheme, self.statistics)))

    @property
    def utilization(self) -> tuple[float, ...]:
        """tau of each worker: what it would hold / its capacity."""
        return tuple(load / self.capacity.amount for load in self.loads)

    @property
    def replication(self) -> float:
        """How many workers would hold a tuple, on average; 0 if nothing is held."""
        tuples = sum(side.tuples for side in self.statistics.sides)
        return float(loads(self.scheme, self.statistics.counted).sum()) / tuples if tuples else 0.0

    @cached_property
    def areas(self) -> tuple[CoverageArea, ...]:
        """The coverage areas. O(areas)."""
        return tuple(areas_of(self.scheme, self.statistics, self.key_spaces))

    @property
    def moved_tuples(self) -> float:
        """How many tuples would move from the running plan to this one."""
        return self.planned.migration.moved_tuples if self.running is not None and self.planned.changed else 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with it, although it can run."""
        of_first = None if self.deployment is None else self.deployment.warning
        fullest = overfull(loads(self.scheme, self.statistics), self.model, self.capacity)
        return tuple(dict.fromkeys(text for text in (fullest, of_first) if text is not None))

    def to_json(self) -> dict[str, Any]:
        """Everything, as data that ``json`` can write."""
        return {
            "model": self.model,
            "workers": self.workers,
            "summary": self.scheme.summary,
            "main": [key_space.main.text or str(key_space.main.kind) for key_space in self.key_spaces],
            "loads": list(self.loads),
            "capacity": self.capacity.amount,
            "replication": self.replication,
            "movedTuples": self.moved_tuples,
            "areas": [
                {
                    "floor": area.key_space,
                    "tasks": list(area.tasks),
                    "leftKeys": area.left_keys,
                    "rightKeys": area.right_keys,
                    "leftTuples": area.left_tuples,
                    "rightTuples": area.right_tuples,
                    "fullest": area.fullest,
                }
                for area in self.areas
            ],
            "sequences": list(self.sequences),
            "joinPlan": self.join_plan.to_json(),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "plan": self.plan.to_json(),
        }

    def __str__(self) -> str:
        most = max(self.loads, default=0.0)
        return f"{self.model}, {self.workers} workers: {self.scheme.summary}; at most {self.capacity.words(most)} each"


def outline(
    job: Job, *, stats: str | None = None, tasks: int | None = None, capacity: float | None = None, running: str | None = None
) -> Outline:
    """The plan for ``tasks``, or as few workers as ``capacity`` (tuples each) asks for; without either: for what the statistics say, else
    as the first deployment does.

    ``stats``: JSON text (``api.stats``); ``running``: JSON text of the plan to go on from. Raises PlanRefusal where there can be no plan,
    StatsError and PlanError for texts that are none.
    """
    are_apart = any(layout.is_apart for layout in job.layouts)
    foreseen = {layout: foreseen_plan(job.lying(layout)) for layout in job.layouts} if are_apart else {}
    lying = job.lying(min(foreseen, key=lambda layout: foreseen[layout].volume)) if foreseen else job
    shared = _shared(job, lying.layouts[0], foreseen) if len(job.joins) > 1 else []
    job = lying
    names = tuple(stream.name for stream in job.streams)
    layout, main = job.layouts[0], job.layouts[0].main
    if stats is None:
        given = Stats(_expected(job), None)
    elif isinstance(main, CompositeKey):
        given = read_stats_by_stream(stats, names, job.places)
    else:
        given = read_stats(stats, main, (names[LEFT], names[RIGHT]))
    key_spaces = key_spaces_of(layout, names, given.places)
    current = None if running is None else read_plan(running, main)
    given_tuples = capacity or given.capacity_tuples
    holds = job.capacity if given_tuples is None else Capacity(given_tuples)
    held = [place.tuples for place in given.places]
    known = unknown(job.places, main, held) if stats is None else statistics_of(key_spaces)
    statistics = known.weighed(weights_of_sides(replace(job, capacity=holds), held=held))
    deployment = first = None
    if tasks is None and capacity is None and stats is None:
        deployment = deployed(job, statistics, main)
        first = promised(job, deployment)
        if not deployment.fits:
            raise PlanRefusal(f"{deployment.warning}; {first.remedies}")
        tasks = deployment.workers
    try:
        planned = make_plan(job.model, statistics, main, tasks=tasks, capacity=holds, options=job.scheme_options, current=current)
    except ValueError as error:
        raise PlanRefusal(str(error)) from error
    flowing = {placed.join: _flowing(job, placed, planned.plan.scheme.tasks) for placed in job.multiway}
    path_plans = {placed.join: choose(placed.graph, flowing[placed.join]) for placed in job.multiway}
    sequences = [line for placed in job.multiway for line in _sequences(job, placed, flowing[placed.join], path_plans[placed.join])]
    notes = (*shared, *_alternatives(job))
    return Outline(job, planned, statistics, key_spaces, holds, current, deployment, first, tuple(sequences), path_plans, notes)


def make_plan(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    *,
    tasks: int | None = None,
    capacity: Capacity | None = None,
    options: Options = DEFAULTS,
    current: Plan | None = None,
) -> Planned:
    """The plan for so many tasks or, without ``tasks``, for a capacity, from ``current`` on; proven to be a tiling. Raises ValueError."""
    before = None if current is None else current.scheme
    if tasks is not None:
        scheme = plan_for_tasks(model, statistics, main, tasks, options=options, current=before)
    elif capacity is not None:
        scheme = plan_for_capacity(model, statistics, main, capacity.amount, options=options, current=before)
    else:
        raise ValueError("a plan is made for a number of tasks or for a capacity; give one")
    return follow(current, scheme, statistics, main)


def read_plan(text: str, main: MainPredicate) -> Plan:
    """The plan in this JSON text, its scheme a tiling for ``main``. Raises PlanError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON") from error
    plan = Plan.from_json(value)
    try:
        plan.scheme.check(main)
    except SchemeError as error:
        raise PlanError(f"plan.scheme: {error}; is it a plan of this join?") from error
    return plan


def _expected(job: Job) -> tuple[SideStatistics, ...]:
    """What the manifest alone says of what is held at each place."""
    rates = [job.streams[place.stream].expected_rate for place in job.places]
    return expected_statistics(rates, expected_of_places(job))


def _flowing(job: Job, placed: PlacedGraph, tasks: int) -> Flowing:
    """What the manifest expects of the streams of a join over three and more."""
    graph, rates = placed.graph, [job.streams[stream].expected_rate or 1.0 for stream in placed.streams]
    of_places = expected_of_places(job)
    at = {place.stream: number for number, place in zip(placed.places, graph.places, strict=True)}
    expected = [of_places[at[stream]] for stream in range(len(placed.streams))]
    held = [
        rate * UNKNOWN_SECONDS if tuples is None or math.isinf(tuples) else tuples for tuples, rate in zip(expected, rates, strict=True)
    ]
    by_condition, by_output = zip(*carried_bytes(job, placed, [job.streams[place.stream].tuple_bytes for place in job.places]), strict=True)
    join, exchange = job.joins[placed.join], Exchange(epoch_seconds=max(LEAST_EPOCH_SECONDS, job.interval_micros / 1e6), tasks=tasks)
    return Flowing(rates, held, by_condition, by_output, assumed(graph, held), window=join.window.kind.value, exchange=exchange)


def _sequences(job: Job, placed: PlacedGraph, flowing: Flowing, path_plans: PathPlans) -> list[str]:
    """In which order the streams of a join would meet, and how, beside other ways."""
    of_join = f" of {job.joins[placed.join].name}" if len(job.joins) > 1 else ""
    note = f"sequences{of_join}, where each equality has one match, a band 1 % of all and an order 30 %; a run goes by what it measures:"
    return [note, *(f"  {line}".rstrip() for line in told(placed.graph, flowing, path_plans))]


def _alternatives(job: Job) -> list[str]:
    """What else could have been the main predicate, and why each of the other conjuncts could not."""
    others = [layout.main for layout in job.layouts[1:]]
    lines = []
    for join in job.joins:
        in_join = f" in {join.name}" if len(job.joins) > 1 else ""
        lines += [f"not indexed{in_join}: {each.conjunct}: {each.reason}" for each in (join.condition.unmatched if join.condition else ())]
    if others:
        texts = "; ".join(f"{main.text or main.kind}" for main in others)
        lines.append(f"other candidates: {texts}. A run chooses by a sample of its first input")
    return lines


def _of_named(job: Job, index: int) -> str:
    """What a join of several over different streams is over, and by what it finds its pairs."""
    join, layout = job.joins[index], job.layouts[0]
    placed = layout.joins[index]
    text = placed.graph.text if placed.is_multiway else placed.between.main.text
    readers = [stream.name for stream in job.streams if stream.source == JoinSource(index)]
    read = f"; {listed(readers, 'and')} {'reads' if len(readers) == 1 else 'read'} its results" if readers else ""
    over = listed([job.streams[stream].name for stream in join.streams], "and")
    return f"{join.name}: {over}" + (f", by {text}" if text else ", which no key serves") + read


def _shared(job: Job, chosen: Layout, foreseen: Mapping[Layout, Deployment]) -> list[str]:
    """What tuples lie by, and by what each of several joins finds its pairs.

    ``foreseen``: the first plans, where joins may have key spaces of their own; as a run would, this plan has that which holds less.
    """
    layout, names = job.layouts[0], listed([join.name for join in job.joins], "and")
    if not chosen.is_of_one_pair:
        each = map(partial(_of_named, job), range(len(job.joins)))
        return [f"joins: {names}, each over the streams that its condition names", *(f"  {line}" for line in each)]
    if layout.main.keys:
        return [f"joins: {names}: tuples lie by {layout.text} once for all of them"]
    lines = [f"joins: {names} have no keys in common"]
    if len(foreseen) > 1:
        once = sum(side.total for side in foreseen[layout].statistics.sides)
        where = {each: "on key spaces of their own" if each.has_key_spaces else "where every pair of tuples meets" for each in job.layouts}
        held = ", and ".join(f"{where[each]} a tuple would be held {foreseen[each].volume / once:.2g} times" for each in job.layouts)
        lines = [f"{lines[0]}: {held}; this plan is {where[chosen]}. A run chooses by a sample of its first input"]
    for index, (join, placed) in enumerate(zip(job.joins, chosen.joins, strict=True)):
        text = placed.between.main.text
        if chosen.has_key_spaces:
            lines.append(f"  {join.name}: on key space {placed.key_space + 1}" + (f", by {text}" if text else ", which no key serves"))
        elif chosen.indexes(index):
            lines.append(f"  {join.name} finds its pairs by an index of its own: {text}")
        else:
            lines.append(f"  {join.name} compares all pairs: no key serves it")
    return lines
