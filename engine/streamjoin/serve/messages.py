"""The messages of the plan API, as typed data (``docs/api.md``).

Always holds: bodies are read strictly; unknown fields are refused, and nothing is converted. A body that cannot be read gives one text that
names each field, its value and the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from streamjoin.controlplane.replan import PlanStatus
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.plan import MOST_AREAS, Plan, PlanError
from streamjoin.manifest.problem import shown
from streamjoin.manifest.text import field_name
from streamjoin.query.continuous import Continuous
from streamjoin.scheme.dichotomy import MOST_TASKS
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.checkpoint import Savepoint


class BodyError(ValueError):
    """A body that cannot be read; the text names fields, values and remedies."""


class Message(BaseModel):
    """What all messages have in common."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    @classmethod
    def of_fields(cls, of: object, **others: Any) -> Self:
        """The message whose fields are the attributes of the same names, but for ``others``."""
        return cls(**{name: getattr(of, name) for name in cls.model_fields if name not in others}, **others)


_Read = TypeVar("_Read", bound=Message)


Going = Annotated[list[str], Field(max_length=MOST_TASKS)]
"""Ids of executors."""


class Wish(Message):
    """``PUT /v1/plan``: so many workers, the plan to be made by the engine from its statistics."""

    workers: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    """From spec.workers.min to spec.workers.max. The model may use fewer."""
    model: Literal["adsp", "square", "hash", "dynamic", "readj", "biclique", "broadcast", "handshake"] | None = None
    """The manifest's by default."""
    replan: bool = False
    """Cut the join anew also where as many workers run under this model already."""
    after: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """Only while this is the generation of the newest plan, the one that is being applied or else the one that runs."""
    going: Going = []
    """Spark's executors that are better gone than others, by their ids: of fewer workers those on them end first."""


class WholePlan(Message):
    """``PUT /v1/plan``: a scheme that somebody has made."""

    generation: Annotated[int, Field(ge=0, lt=2**53)]
    """Above that of the newest plan."""
    scheme: dict[str, Any]
    """As ``GET /v1/plan`` gives it."""
    keep: list[Annotated[int, Field(ge=0)] | None] | None = None
    """By task, the worker of the running plan that goes on as it; null: a new one. Without it, those that hold most go on."""
    going: Going = []
    """As above; without ``keep``."""


MOST_ROWS = 1_000_000
MOST_QUERY_SECONDS = 50.0
"""Less than a client may take for everything (``server.LONGEST_SECONDS``)."""


class QueryWish(Message):
    """``POST /v1/query``."""

    sql: str
    """One SELECT over the streams, in DuckDB's SQL, with ``AS OF epoch`` at its end if not of the last one."""
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 10_000
    """The most rows. An answer with more is cut there, and says so."""
    timeout_seconds: Annotated[float, Field(gt=0, le=MOST_QUERY_SECONDS)] = 20.0


class FollowWish(Message):
    """``GET /v1/queries/{join}``, by its parameters, and such a ticket of Arrow Flight."""

    select: Annotated[str, Field(min_length=1)] = "*"
    """Columns and expressions over them, as in a SELECT of DuckDB's SQL."""
    where: Annotated[str, Field(min_length=1)] | None = None
    """Which results; all by default."""
    after: str | None = None
    """The id of an event, or a snapshot's number: begin after it; -1: with the first. By default with what comes from now on."""

    def query(self, join: str) -> Continuous:
        return Continuous(join, self.select, self.where)


class FollowTicket(FollowWish):
    """``DoGet`` of Arrow Flight."""

    join: str
    """The join whose results are wanted."""


class Following(Message):
    """A plan that is being applied."""

    generation: int
    workers: int
    asked: int
    """The workers that were asked for: more, where the plan was cut for those that came."""
    scheme: dict[str, Any]
    keep: list[int | None]


class SwitchedTo(Message):
    """What the last switch took (:class:`streamjoin.controlplane.replan.Switched`)."""

    generation: int
    epoch: int
    asked: int
    at: float
    waited_seconds: float
    pause_seconds: float
    kept_tuples: int
    moved_tuples: int


class EndedPlan(Message):
    """A plan that was put and accepted, and what became of it (:class:`streamjoin.controlplane.replan.Ended`)."""

    generation: int
    fate: Literal["Switched", "Dropped", "Replaced", "Withdrawn"]
    reason: str


class PlanAnswer(Message):
    """``GET /v1/plan``, and what a plan that was put is answered with (:class:`streamjoin.controlplane.replan.PlanStatus`)."""

    generation: int
    workers: int
    phase: str
    ready_workers: int
    absence: str | None
    to_fetch_bytes: int
    dropped: str | None
    scheme: dict[str, Any]
    wanted: Following | None
    switched: SwitchedTo | None
    ended: list[EndedPlan]
    first_workers: int
    warning: str | None
    reordered: list[dict[str, Any]]
    """As records of a ledger have them (:meth:`streamjoin.elastic.decision.Decision.to_json`)."""

    @classmethod
    def of(cls, status: PlanStatus, warning: str | None = None, reordered: Sequence[Decision] = ()) -> PlanAnswer:
        """``warning``: what is wrong with the newest plan. ``reordered``: the last changes of how streams meet, oldest first."""
        wanted, switched = status.wanted, status.switched
        return cls.of_fields(
            status,
            phase=status.phase.value,
            scheme=status.scheme.to_json(),
            wanted=None
            if wanted is None
            else Following.of_fields(wanted, asked=status.asked or wanted.workers, scheme=wanted.scheme.to_json(), keep=list(wanted.keep)),
            switched=None if switched is None else SwitchedTo.of_fields(switched),
            ended=[EndedPlan.of_fields(plan, fate=plan.fate.value) for plan in status.ended],
            warning=warning,
            reordered=[decision.to_json() for decision in reordered],
        )


class PreviewAnswer(Message):
    """``POST /v1/plan/preview``: what a plan would do."""

    changed: bool
    """False: the plan that runs serves as well, and the rest is of it or null."""
    generation: int
    workers: int
    model: str
    keep: list[int | None] | None = None
    utilization: list[float] | None = None
    """Expected tau, by task."""
    warning: str | None = None
    moved: dict[str, Any] | None = None
    """What would be moved, as of ``coming`` in ``GET /v1/live``."""
    shapes: dict[str, Any] | None = None
    """The scheme as ``GET /v1/live`` draws it."""
    put: str | None = None
    """The body of the ``PUT /v1/plan`` that applies exactly this plan. A text, for keys have 64 bits, and numbers of JavaScript 53."""


class ScalingWish(Message):
    """``PUT /v1/scaling``."""

    paused: bool
    by: Annotated[str, Field(max_length=200)] = "the API"
    """The client that wants it, for the ledger."""


class ScalingAnswer(Message):
    """``GET /v1/scaling``."""

    elastic: bool
    """Whether this run scales itself."""
    mode: str
    """``spec.scaling.mode``."""
    paused: bool
    by: str | None
    """The client that has paused it."""


class SavepointAnswer(Message):
    """``GET /v1/savepoints/{name}``; see :class:`streamjoin.state.checkpoint.Savepoint`."""

    name: str
    state: Literal["asked", "kept", "deleting"]
    """asked: the next commit keeps it; deleting: the next commit forgets it."""
    epoch: int | None = None
    """This and the rest: null while it is asked for."""
    committed_at: float | None = None
    """The time of the commit of that epoch, in seconds since 1970."""
    kept_at: float | None = None
    """The time when it was decided to keep it."""
    nbytes: int | None = Field(default=None, alias="bytes")
    """Of what it keeps. Savepoints, and the join itself, share what they have in common."""

    @classmethod
    def of(cls, name: str, savepoint: Savepoint | None, is_wanted: bool | None) -> SavepointAnswer:
        """``is_wanted``: what was asked for and is not committed yet."""
        if savepoint is None:
            return cls(name=name, state="asked")
        return cls.of_fields(savepoint, name=name, state="deleting" if is_wanted is False else "kept")


class SavepointsAnswer(Message):
    """``GET /v1/savepoints``."""

    savepoints: list[SavepointAnswer]


class Spread(Message):
    """A histogram of encoded keys: one count more than there are inner bounds."""

    bounds: list[int | float]
    counts: list[float]


class SideAnswer(Message):
    """One stream: the tuples that are stored, each counted once, and how their keys are spread (null: unknown)."""

    tuples: float
    weight: float
    """What one of them takes of a worker's capacity: 1, or its bytes where the capacity is in bytes."""
    histogram: Spread | None
    accepted_per_second: float


class StatisticsAnswer(Message):
    """``GET /v1/statistics``."""

    predicate: str
    """The part of the condition whose keys the histograms are of; empty where every pair of tuples is compared."""
    left: SideAnswer
    right: SideAnswer


class Stalled(Message):
    """What stands still now (null: nothing does), and what was given up for that since the last commit."""

    epoch: int | None
    step: str | None
    seconds: float | None
    """Since anything of it moved."""
    waits_for: list[str]
    """Workers that have yet to answer; none: the driver itself waits, for storage or a broker."""
    stalls: int
    """Attempts since the last commit that were given up."""
    last: str | None
    """What the last of these was."""


class HeldAnswer(Message):
    """A part of :class:`HealthAnswer`."""

    by: str
    """The stream, and the partition or file of it."""
    since: float
    """When that had its last record, in seconds since 1970."""


class StandbyAnswer(Message):
    """The driver that stands by for this one."""

    state: Literal["Starting", "Ready"]
    workers: int
    """Those that it has ready."""


class HealthAnswer(Message):
    """``GET /v1/health``."""

    name: str
    state: Literal["standby", "starting", "running", "retrying", "ended"]
    standby: StandbyAnswer | None
    """Null: nobody stands by."""
    took_over_at: float | None
    """When this driver took over from one that it stood by for, in seconds since 1970; null: it started otherwise."""
    epoch: int | None
    seconds_since_commit: float | None
    committed_at: float | None
    """The time of the last commit, in seconds since 1970."""
    stalled: Stalled | None
    """Null: epochs get on, or nothing is new."""
    last_error: str | None
    """The kind of the last failure."""
    last_failure: str | None
    """What it said."""
    snapshots_wait: str | None
    """Why snapshots of results wait for their stores, while the join goes on; null: they do not."""
    watermark_held: HeldAnswer | None
    """What has held back the watermarks for a minute or longer; null: nothing has."""
    idle_seconds: float | None
    """For how long nothing has been left to do, by the latest answer of the sources; null: something is left, or it is not known yet."""
    generation: int | None
    workers: int | None
    phase: str | None


class ErrorAnswer(Message):
    """Every answer that is not a success."""

    error: str


_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "a text",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "list_type": "a list",
}
"""By pydantic's name of an error, what a value must be."""


def read_plan(body: bytes) -> Wish | tuple[WholePlan, Scheme]:
    """What ``PUT /v1/plan`` asks for. Raises BodyError."""
    value = _object(body, ", of workers or of generation and scheme")
    is_plan = bool({"generation", "scheme", "keep"} & set(value))
    if is_plan and "workers" in value:
        raise BodyError("workers: excludes generation, scheme and keep; give a number of workers, or a plan")
    if not is_plan:
        return _validated(Wish, value)
    plan = _validated(WholePlan, value)
    areas, tasks = plan.scheme.get("areas"), plan.scheme.get("tasks")
    if not isinstance(areas, list) or not 1 <= len(areas) <= MOST_AREAS:
        raise BodyError(f"scheme.areas: must be a list of 1 to {MOST_AREAS:,} areas")
    if isinstance(tasks, bool) or not isinstance(tasks, int) or not 1 <= tasks <= len(areas):
        raise BodyError(f"scheme.tasks: {shown(tasks)} must be from 1 to the number of areas, {len(areas)}; each task has at least one")
    try:
        scheme = Scheme.from_json(plan.scheme)
        if plan.keep is not None:
            Plan(plan.generation, scheme, tuple(plan.keep))
    except PlanError as error:
        raise BodyError(str(error).removeprefix("plan.")) from error
    except (ValueError, ArithmeticError, AttributeError) as error:
        raise BodyError(f"scheme: {error}; take one from GET /v1/plan as the pattern") from error
    return plan, scheme


def read_scaling(body: bytes) -> ScalingWish:
    """What ``PUT /v1/scaling`` asks for. Raises BodyError."""
    return _validated(ScalingWish, _object(body, " with paused"))


def read_query(body: bytes) -> QueryWish:
    """What ``POST /v1/query`` asks. Raises BodyError."""
    return _validated(QueryWish, _object(body, " with sql"))


def read_following(parameters: str) -> FollowWish:
    """What ``GET /v1/queries/{join}`` asks. Raises BodyError."""
    try:
        given = parse_qsl(parameters, keep_blank_values=True, strict_parsing=bool(parameters), errors="strict", max_num_fields=16)
    except ValueError as error:
        text = f"the parameters: {shown(parameters)}: {error}; write select=...&where=..., with percent signs as in URLs"
        raise BodyError(text) from error
    return _validated(FollowWish, _once(given))


def read_ticket(ticket: bytes) -> QueryWish | FollowTicket:
    """What ``DoGet`` of Arrow Flight asks. Raises BodyError."""
    value = _parsed(ticket)
    if not isinstance(value, dict) or ("sql" in value) == ("join" in value):
        raise BodyError(f"the ticket: {shown(value)} must be an object, of sql or of join, select, where and after")
    return _validated(QueryWish, value) if "sql" in value else _validated(FollowTicket, value)


def _object(body: bytes, of_what: str) -> dict[str, Any]:
    value = _parsed(body)
    if not isinstance(value, dict):
        raise BodyError(f"the body: {shown(value)} must be an object{of_what}")
    return value


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant, object_pairs_hook=_once)
    except BodyError:
        raise
    except json.JSONDecodeError as error:
        raise BodyError(f"the body: line {error.lineno}, column {error.colno}: {error.msg}; it must be JSON") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, brackets without end
        raise BodyError(f"the body: {type(error).__name__}; it must be JSON in UTF-8") from error


def _no_constant(name: str) -> Any:
    raise BodyError(f"the body: {name} is no JSON; write a number")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise BodyError(f"{next(name for name in names if names.count(name) > 1)}: is there twice; give it once")
    return value


def _validated(kind: type[_Read], value: dict[str, Any]) -> _Read:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise BodyError("; ".join(_sentence(kind, details) for details in error.errors(include_url=False))) from error


def _sentence(kind: type[Message], details: ErrorDetails) -> str:
    field, value = field_name(tuple(part for part in details["loc"] if part != "constrained-int")), shown(details["input"])
    if details["type"] == "missing":
        return f"{field}: is missing; give it"
    if details["type"] == "extra_forbidden":
        known = ", ".join(info.alias or name for name, info in kind.model_fields.items())
        return f"{field}: {value} is given to a field that does not exist; the fields are {known}"
    if wanted := _TYPES.get(details["type"]):
        return f"{field}: {value} must be {wanted}"
    return f"{field}: {value} is refused: {details['msg'][0].lower()}{details['msg'][1:]}"
