"""The rules on several fields of the parts of ``model``, by part: each said once, for the API server and for ``validate``.

A connector has its own (``Part.api_rules``). What ``cross_field`` looks at is more than such rules can say; what CEL can say of it
approximately, the operator has (``crd_rules``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from streamjoin.manifest import model, prometheus, resolve, sinks, snapshots, sources
from streamjoin.manifest.cel import Rule, has_one, one_holds, seconds
from streamjoin.manifest.checks import Check, until_refused, value_at
from streamjoin.manifest.part import Part, has_unknown
from streamjoin.manifest.problem import Problem, listed, meant
from streamjoin.manifest.rules import ascending, exactly_one, is_given, names_of, only_for, out_of_order, rule, rule_of_items, value_of
from streamjoin.manifest.text import Path, field_name


def _below(low: str, high: str) -> Rule:
    """Of the thresholds of scaling."""
    by_default = "by default half of tau2"
    in_cel = {"tau1": "(has(self.tau1) ? self.tau1 : 0.5 * self.tau2)"}

    def check(where: str, scaling: model.Scaling) -> Check:
        tau1 = scaling.target
        lower, higher = (tau1 if name == "tau1" else getattr(scaling, name) for name in (low, high))
        if not lower < higher:
            yield out_of_order(where, scaling, (low, "below"), (high, "above"), tau1=(tau1, by_default))

    lower, higher = (in_cel.get(name, f"self.{name}") for name in (low, high))
    message = f"{low} must be below {high}" + (f" ({by_default})" if high == "tau1" else "")
    return Rule(f"{lower} < {higher}", message, field=None if low == "tau1" else low, check=check)


TIMES = ("within", "each", "before", "after")
"""Fields of windows of time."""
ROWS = ("rows", "eachRows")
"""Fields of windows of rows."""
UNBOUNDED = "(has({0}.unbounded) && {0}.unbounded)"
_FORMS = {"within": ("within",), "each": ("each",), "(before and after)": ("before", "after")}
_FORMS |= {name: (name,) for name in (*ROWS, "unbounded")}
_SLIDE = "must be at most {}, or tuples would lie between two windows; shorten it"


def _forms(window: model.Window) -> list[str]:
    """The forms of window that are given; before and after are one form, and unbounded: false is none."""
    given = [form for form, names in _FORMS.items() if any(is_given(window, name) for name in names)]
    return [form for form in given if form != "unbounded" or getattr(window, "unbounded", True)]


def window_kinds(window: model.Window) -> set[str]:
    """The kinds that its forms are of: time, rows, unbounded."""
    return {"rows" if form in ROWS else form if form == "unbounded" else "time" for form in _forms(window)}


def _one_form(where: str, window: model.Window) -> Check:
    forms = _forms(window)
    if not forms and not has_unknown(window):
        others = "or each, or rows, or eachRows, or unbounded: true, or, for two streams, before and after"
        yield Problem(where, None, f"is empty; give within, {others}")
    elif len(forms) > 1:
        yield Problem(where, None, f"has {listed(forms, 'and')}; keep one")


def _slides_within(name: str, window: model.Window) -> bool:
    slide, length = window.slide, value_of(window, name)
    return slide is None or length is None or not length.micros or slide <= length


def _slides_past_each(where: str, window: model.Window) -> Check:
    for name, length in (window.each or {}).items():
        if window.slide is not None and length < window.slide:
            yield Problem(f"{where}.slide", str(window.slide), _SLIDE.format(f"each.{name} ({length})"))


def _repeated(field: str, where: str, spec: model.Spec) -> Check:
    first: dict[str, int] = {}
    for index, part in enumerate(getattr(spec, field)):
        name = value_at(part, "name")
        if isinstance(name, str) and first.setdefault(name.casefold(), index) != index:
            message = f"is the name of {where}.{field}[{first[name.casefold()]}] too (case does not count); choose another"
            yield Problem(f"{where}.{field}[{index}].name", name, message)


def _as_the_first(spec: model.Spec, join: model.Join) -> bool:
    """Whether the join's window is of the first one's kind, where both are of one."""
    first, own = window_kinds(spec.joins[0].window), window_kinds(join.window)
    return own == first or len(own) != 1 or len(first) != 1


def _joins_not_there(where: str, spec: model.Spec) -> Check:
    names = [join.name for join in spec.joins]
    for index, stream in enumerate(spec.streams):
        read = stream.source.join
        if read is not None and names and read not in names:
            message = f"is not a join of this resource; {meant(read, names, 'the joins are')}"
            yield Problem(f"{where}.streams[{index}].source.join", read, message)


def _may_stand_by(spec: model.Spec) -> bool:
    checkpoint = spec.checkpoint
    return not spec.driver.standby or checkpoint.size is None or "ReadWriteMany" in (checkpoint.access_modes or ())


RULES: Mapping[type[Part], tuple[Rule, ...]] = {
    sources.Source: (exactly_one(*names_of(sources.Source)),),
    sinks.Sink: (exactly_one(*names_of(sinks.Sink)),),
    model.Checkpoint: (exactly_one("location", "persistentVolumeClaim"),),
    snapshots.SnapshotStore: (exactly_one(*names_of(snapshots.SnapshotStore)),),
    snapshots.Snapshots: (
        rule(
            "self.punctuation || has(self.every) || has(self.size)",
            lambda each: each.punctuation or each.every is not None or each.size is not None,
            "does not say when a snapshot ends; give every, or size, or both, or punctuation: true",
        ),
        rule(
            "!self.punctuation || !(has(self.every) || has(self.size))",
            lambda each: not each.punctuation or each.every is each.size is None,
            "excludes every and size; keep one",
            field="punctuation",
        ),
        rule(
            "self.maxDelay == 0 || (has(self.every) && has(self.size))",
            lambda each: not each.max_delay or (each.every is not None and each.size is not None),
            "needs every and size; give both, or remove maxDelay",
            field="maxDelay",
        ),
    ),
    model.Window: (
        Rule(
            one_holds(*(UNBOUNDED.format("self") if form == "unbounded" else has_one("self", *names) for form, names in _FORMS.items())),
            "give exactly one of within, before and after, each, rows, eachRows, and unbounded: true",
            check=_one_form,
        ),
        rule(
            f"!has(self.slide) || {has_one('self', *TIMES)}",
            lambda window: window.slide is None or "time" in (window_kinds(window) or {"time"}),
            "is for windows of time; remove it, or give one",
            field="slide",
        ),
        *(
            rule(
                f"!has(self.slide) || !has(self.{name}) || !self.{name}.matches('[1-9]')"
                f" || {seconds('self.slide')} <= {seconds(f'self.{name}')}",
                partial(_slides_within, name),
                _SLIDE.format(f"{name} ({{{name}}})"),
                field="slide",
                shows=True,
            )
            for name in ("within", "before", "after")
        ),
        Rule(
            f"!has(self.slide) || !has(self.each) || self.each.all(s, {seconds('self.slide')} <= {seconds('self.each[s]')})",
            _SLIDE.format("each"),
            field="slide",
            check=_slides_past_each,
        ),
    ),
    model.Stream: (
        Rule(
            "has(self.schema) != has(self.source.join)",
            "must be given, but where the source is a join, whose output it follows from",
            field="schema",
        ),
        rule(
            "!has(self.source.join) || !has(self.idleTimeout)",
            lambda stream: stream.source.join is None or stream.idle_timeout is None,
            "is of no use where the source is a join, whose own streams may be idle; give it to those, and remove it here",
            field="idleTimeout",
        ),
    ),
    model.SchemeSpec: tuple(
        only_for(
            *(name, "model", (owner,)),
            f"is only for model {owner}, and the model is {{model}}; remove one of them",
            f"is only for model {owner}; remove one of them",
            shows=True,
        )
        for name, owner in (("sigma", "readj"), ("groups", "biclique"), ("alpha", "handshake"))
    ),
    model.Workers: (
        ascending("min", "max"),
        rule(
            "self.floor <= 1 || (self.min <= self.floor && self.floor <= self.max)",
            lambda workers: workers.floor <= 1 or workers.min <= workers.floor <= workers.max,
            "must be at least min ({min}) and at most max ({max}), or 1 for none",
            field="floor",
        ),
        rule(
            "!has(self.capacity) || !has(self.capacityTuples)",
            lambda workers: workers.capacity is None or workers.capacity_tuples is None,
            "excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them",
            field="capacity",
        ),
        rule(
            "!has(self.maxMemory) || quantity(string(self.maxMemory)).isGreaterThan(quantity(string(self.resources.memory)))",
            lambda workers: workers.max_memory is None or workers.max_memory > workers.resources.memory,
            "must be above resources.memory, which is what every worker gets; raise it, or remove it",
            field="maxMemory",
        ),
        ascending("perExecutor", "max", ", or each pod would have room for workers that never come"),
    ),
    prometheus.Prometheus: (
        rule(
            "!has(self.bearer) || !has(self.basic)",
            lambda each: each.bearer is None or each.basic is None,
            "excludes basic; keep one",
            field="bearer",
        ),
    ),
    model.Spec: (
        rule(
            "!has(self.idle) || !(self.streams.exists(s, has(s.source.spark))"
            " || self.joins.exists(j, has(j.output.sink) && has(j.output.sink.spark)))",
            lambda spec: spec.idle is None or not resolve.has_spark(spec),
            "has no use with spark as source or sink, which only a join that runs has read and written; remove it",
            field="idle",
        ),
        *(
            Rule(
                f"self.{name}.all(a, self.{name}.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",
                f"two {name} have the same name (case does not count); choose another",
                field=name,
                check=partial(_repeated, name),
            )
            for name in ("streams", "joins")
        ),
        rule_of_items(
            " || ".join(
                f"self.joins.all(j, {form})"
                for form in (has_one("j.window", *TIMES), has_one("j.window", *ROWS), UNBOUNDED.format("j.window"))
            ),
            _as_the_first,
            "the windows must be of one kind (time, rows or unbounded), as joins over the same streams hold them together; move the others"
            " into a manifest of their own",
            field="joins",
            blamed="window",
        ),
        Rule(
            "self.streams.all(s, !has(s.source.join) || self.joins.exists(j, j.name == s.source.join))",
            "a stream reads a join that is not there; name one of joins",
            field="streams",
            check=_joins_not_there,
        ),
        rule_of_items(
            "self.streams.size() > 2 || !self.streams.exists(s, has(s.source.join))",
            lambda spec, stream: len(spec.streams) != 2 or stream.source.join is None,
            "a stream of results needs that join's two streams beside it, and one to join its results with; give them",
            field="streams",
            blamed="source.join",
        ),
        rule_of_items(
            "self.joins.all(j, has(j.output.sink) || has(j.output.snapshots)"
            " || self.streams.exists(s, has(s.source.join) && s.source.join == j.name))",
            lambda spec, join: join.output.sink or join.output.snapshots or join.name in {each.source.join for each in spec.streams},
            f"a join needs a sink, a stream that reads its results, or snapshots of them; give {listed(sinks.SUGGESTED)}",
            field="joins",
            blamed="output.sink",
        ),
        rule_of_items(
            "!self.joins.exists(j, has(j.output.snapshots) && has(j.output.snapshots.punctuation) && j.output.snapshots.punctuation)"
            " || self.streams.all(s, has(s.punctuation))",
            lambda spec, stream: stream.punctuation or not any(value_at(join.output, "snapshots", "punctuation") for join in spec.joins),
            "snapshots that end by punctuation need it of every stream; give when and id",
            field="streams",
            blamed="punctuation",
        ),
        rule(
            "!self.joins.exists(j, has(j.type) && j.type == 'anti') || self.shedding.model == 'off'",
            lambda spec: spec.shedding.model == "off" or all(join.type != "anti" for join in spec.joins),
            'makes results of anti joins wrong: a tuple whose match was shed seems to have none; set "off"',
            field="shedding.model",
        ),
        rule(
            "!has(self.scaling.budget) || self.shedding.model != 'off'",
            lambda spec: spec.scaling.budget is None or spec.shedding.model != "off",
            'has nothing to spend, as nothing is shed; set spec.shedding.model to "linear" or "quadratic", or remove it',
            field="scaling.budget",
        ),
        rule(
            "self.scaling.vertical == 'Off' || has(self.workers.maxMemory)",
            lambda spec: spec.scaling.vertical == "Off" or spec.workers.max_memory is not None,
            'needs the most memory that a worker may get; give workers.maxMemory, such as 8Gi, or set "Off"',
            field="scaling.vertical",
        ),
        rule(
            "self.scaling.vertical == 'Off' || !(has(self.workers.capacity) || has(self.workers.capacityTuples))",
            lambda spec: spec.scaling.vertical == "Off" or spec.workers.capacity is spec.workers.capacity_tuples is None,
            'needs a capacity that follows from the memory; remove workers.capacity and workers.capacityTuples, or set "Off"',
            field="scaling.vertical",
        ),
        rule(
            "!self.driver.standby || !has(self.checkpoint.size)"
            " || (has(self.checkpoint.accessModes) && self.checkpoint.accessModes.exists(m, m == 'ReadWriteMany'))",
            _may_stand_by,
            "needs a checkpoint that pods on several nodes reach, and the claim that is created is ReadWriteOnce; add ReadWriteMany to"
            " checkpoint.accessModes, or give checkpoint.location an object store",
            field="driver.standby",
        ),
        rule(
            "!has(self.scaling.budget) || self.joins.exists(j, !has(j.type) || j.type == 'inner')",
            lambda spec: spec.scaling.budget is None or not spec.joins or any(join.type == "inner" for join in spec.joins),
            "counts results of inner joins, and there are none; remove it",
            field="scaling.budget",
        ),
    ),
    model.Scaling: tuple(itertools.starmap(_below, itertools.pairwise(model.TAUS))),
}


def rules_of(part: type[Part]) -> tuple[Rule, ...]:
    """A part's rules."""
    return part.api_rules + RULES.get(part, ())


def rule_checks(path: Path, value: Any) -> Iterator[Check]:
    """The checks of the rules of all parts within a value."""
    if isinstance(value, Part):
        field = field_name(path)
        yield from (until_refused(each.check(field, value)) for each in rules_of(type(value)) if each.check is not None)
        for name, info in type(value).model_fields.items():
            yield from rule_checks((*path, info.alias or name), value.__dict__.get(name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from rule_checks((*path, key), item)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from rule_checks((*path, index), item)
