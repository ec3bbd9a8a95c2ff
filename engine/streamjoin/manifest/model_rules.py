"""The rules on several fields of the parts of ``model``, by part: each said once, for the API server and for ``validate``.

A connector has its own (``Part.api_rules``). What ``cross_field`` looks at, and the operator says in CEL, is more than such rules can say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from streamjoin.manifest import model, prometheus, resolve, sinks, snapshots, sources
from streamjoin.manifest.cel import Rule
from streamjoin.manifest.checks import Check, until_refused
from streamjoin.manifest.part import Part
from streamjoin.manifest.rules import ascending, exactly_one, names_of, only_for, out_of_order, rule
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
