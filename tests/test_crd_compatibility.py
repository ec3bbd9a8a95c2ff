"""A change of the definition takes nothing away from who uses the release before, but for what is listed here with its reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from definition_changes import incompatible
from documents import parsed

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ROOT / "tests" / "releases"
NAME = "streamjoins.streamjoin.dev.yaml"

NEW_FIELD = "it asks nothing where the field, which is new, is not given"
FORMER_NAME = "it asks what it did, also where the condition is given under its former name"
ONE_JOIN = "it asks nothing of a single join, and there could be no more"
TWO_STREAMS = "it asks nothing of two streams, and there could be no more"
UNWRITTEN = "nobody ever wrote it"
NEVER = "a settle of never is taken besides"
ANY_EVENT_TIME = "text is taken as before, and fields besides; the API server knows no alternatives"
ANY_EVENT_TIME = "text is taken as before, and fields besides; the API server knows no alternatives"
OPTIONAL = "the field had to be given before"
RENAMED = "what is stored is counted on from zero: a count of executors is not one of workers"
ACCEPTED: dict[str, str] = {
    "spec.streams[].eventTime: type string became None": ANY_EVENT_TIME,
    "spec.streams[].eventTime: x-kubernetes-preserve-unknown-fields None became True": ANY_EVENT_TIME,
    r"spec.streams[].source.files.settle: pattern ^([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?h)?([0-9]+(\.[0-9]+)?m)?(["
    r"0-9]+(\.[0-9]+)?s)?([0-9]+(\.[0-9]+)?ms)?([0-9]+(\.[0-9]+)?us)?$ became ^never$|^([0-9]+(\.[0-9]+)?d)?([0-9]+("
    r"\.[0-9]+)?h)?([0-9]+(\.[0-9]+)?m)?([0-9]+(\.[0-9]+)?s)?([0-9]+(\.[0-9]+)?ms)?([0-9]+(\.[0-9]+)?us)?$": NEVER,
    "spec.streams[].source.files.settle: rule: must be at least 0s and at most 36500d": NEVER,
    "v1alpha1: storage became False": "v1beta1 is stored; both are served and converted, and an upgrade stores them as it found them",
    "spec: rule: the budget has nothing to spend, as nothing is shed; set shedding.model, or remove it": NEW_FIELD,
    "spec: rule: the budget counts results of inner joins, and there are none; remove it": NEW_FIELD,
    "spec.streams[]: rule: is of no use where the source is a join, whose own streams may be idle; give it to those, and remove it here": (
        NEW_FIELD
    ),
    "spec.workers: rule: excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them": NEW_FIELD,
    "spec.workers: rule: must be at most max, or each pod would have room for workers that never come": NEW_FIELD,
    "spec.workers.capacityTuples: default 2000000 became None": "it is the same without one, unless capacity is given, which excludes it",
    "names.categories: all is gone": "kubectl delete all --all took joins along",
    "spec: rule: shedding makes results of anti joins wrong: a tuple whose match was shed seems to have none; set shedding.model to off": (
        NEW_FIELD
    ),
    "spec: rule: snapshots that end by punctuation need streams[].punctuation of every stream; give when and id": NEW_FIELD,
    "spec: rule: a join's type may not change under the same checkpoint; give another checkpoint, or make another StreamJoin": NEW_FIELD,
    "spec: rule: two joins have the same name (case does not count); choose another": ONE_JOIN,
    "spec: rule: the windows must be of one kind (time, rows or unbounded), as joins over the same streams hold them together; move the"
    " others into a manifest of their own": ONE_JOIN,
    "spec.scheme: rule: is only for model handshake; remove one of them": NEW_FIELD,
    "spec.scheme.model: enum lacks chain": "it is called broadcast, as the message says, since there is a real chain",
    "spec.workers.floor: default 0 became 1": "either says that there is none, and an HPA takes a scale of 0 for disabled",
    "spec.workers: rule: must be at least min and at most max, or 1 for none": "0 is taken as before; the message names the new default",
    "spec.epoch.interval: rule: must be at least 0s and at most 1h": "from 10ms on before: the bound is looser",
    "spec.joins[]: rule: must be given: when tuples match (SQL over the columns of all streams); and on, its former name, must not be given"
    " too": FORMER_NAME,
    "spec: rule: the name of a join of three and more streams may not change; make another StreamJoin": TWO_STREAMS,
    "spec: rule: a stream reads the results of a join that is not there; name one of joins": NEW_FIELD,
    "spec: rule: a stream of results needs the two streams of that join beside it, and one to join its results with; give them": NEW_FIELD,
    "spec: rule: a join has no sink, and no stream reads its results; give files, delta, iceberg, postgres, kafka or console": OPTIONAL,
    "spec: rule: a stream's source (its kind, directory or topic, and format) may not change under the same checkpoint; give another"
    " checkpoint, or make another StreamJoin": NEW_FIELD,
    "spec.streams[].source.kafka: rule: give exactly one of topic and topicPattern": OPTIONAL,
    "spec.streams[].source.kafka: rule: is not the name of a topic; use letters, digits, ., _ and -": OPTIONAL,
    "spec.streams[].source.kafka: rule: is for topicPattern, and there is none; remove it, or give topicPattern": NEW_FIELD,
    "spec: rule: a stream's schema may not change under the same checkpoint; give another checkpoint, or make another StreamJoin": OPTIONAL,
    "spec: rule: a stream's select may not change under the same checkpoint; give another checkpoint, or make another StreamJoin": (
        "it may now, where joins come or go"
    ),
    "spec.streams[]: rule: must be given, but where the source is a join, whose output it follows from": OPTIONAL,
    "spec.streams[].source: rule: give exactly one of files, generator, kafka, delta, iceberg and join": NEW_FIELD,
    "spec.joins[].output.sink: rule: give exactly one of files, console, kafka, delta, iceberg and postgres": NEW_FIELD,
    "spec: rule: a type other than inner is for two streams; remove it, for inner": TWO_STREAMS,
    "spec: rule: before, after and slide of a window are for two streams; give within, or each, or rows, or unbounded: true": TWO_STREAMS,
    "spec: rule: each of a window must name every stream and no other; say how long before the newest tuple of a result the stream's may"
    " be": NEW_FIELD,
    "spec: rule: a join's window may not change under the same checkpoint; give another checkpoint, or make another StreamJoin": NEW_FIELD,
    "spec.joins[].window: rule: give exactly one of within, before and after, each, rows, and unbounded: true": NEW_FIELD,
    "spec: rule: condition refers to a stream that is not there; write stream.column with the names of streams": FORMER_NAME,
    "spec: rule: a join's condition may not change under the same checkpoint; give another checkpoint, or make another StreamJoin": (
        FORMER_NAME
    ),
    "status.plan.lowerBoundTuples: is gone": UNWRITTEN,
    "status.scheduling: is gone": UNWRITTEN,
    "status.restarts: is gone": UNWRITTEN,
    "status.cost.workers: is gone": RENAMED,
    "status.cost.maxWorkers: is gone": RENAMED,
}
"""What a change takes away, by the line that tells of it, and why that is right."""


def definition() -> Object:
    return dict(parsed((ROOT / "crds" / NAME).read_text()))


def newest() -> Path:
    """Of the releases that are kept; their names sort by age."""
    return max(path for path in RELEASES.iterdir() if path.is_dir())


def test_nothing_is_taken_away_that_is_not_listed() -> None:
    before = parsed((newest() / "chart" / "files" / NAME).read_text())
    found = list(incompatible(before, definition()))
    assert [line for line in found if line not in ACCEPTED] == [], "mend it, or list it in ACCEPTED with the reason"
    assert [line for line in ACCEPTED if line not in found] == [], "listed, and not so: remove it from ACCEPTED"
    assert all(ACCEPTED.values())


def test_a_definition_is_compatible_with_itself() -> None:
    assert list(incompatible(definition(), definition())) == []


def schema(body: Object) -> Object:
    return body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def workers(body: Object) -> Object:
    return schema(body)["spec"]["properties"]["workers"]


MUTATIONS: list[tuple[Callable[[Object], Any], str]] = [
    (lambda body: body["spec"].update(group="other.dev"), "group: streamjoin.dev became other.dev"),
    (lambda body: body["spec"].update(scope="Cluster"), "scope: Namespaced became Cluster"),
    (lambda body: body["spec"]["names"].update(shortNames=[]), "names.shortNames: sj is gone"),
    (lambda body: body["spec"]["versions"][0].update(served=False), "v1beta1: is served no more"),
    (lambda body: body["spec"]["versions"][0].update(name="v1"), "v1beta1: is served no more"),
    (lambda body: body["spec"]["versions"][0].update(storage=False), "v1beta1: storage became False"),
    (lambda body: body["spec"]["versions"][0]["subresources"].pop("scale"), "v1beta1: subresource scale changed"),
    (lambda body: workers(body)["properties"].pop("floor"), "spec.workers.floor: is gone"),
    (lambda body: schema(body)["status"]["properties"].pop("image"), "status.image: is gone"),
    (lambda body: workers(body)["properties"]["min"].update(type="number"), "spec.workers.min: type integer became number"),
    (lambda body: workers(body)["properties"]["min"].update(format="int32"), "spec.workers.min: format int64 became int32"),
    (lambda body: workers(body)["properties"]["min"].update(minimum=2), "spec.workers.min: minimum 1 became 2"),
    (lambda body: workers(body)["properties"]["perExecutor"].update(maximum=8), "spec.workers.perExecutor: maximum 16 became 8"),
    (lambda body: workers(body)["properties"]["perExecutor"].update(default=2), "spec.workers.perExecutor: default 1 became 2"),
    (lambda body: workers(body)["default"].update(perExecutor=2), "spec.workers.perExecutor: default 1 became 2"),
    (lambda body: workers(body)["properties"]["perExecutor"].pop("default"), "spec.workers.perExecutor: default 1 became None"),
    (lambda body: workers(body).update(required=["max"]), "spec.workers.max: is required"),
    (lambda body: workers(body)["properties"]["perExecutor"].update(enum=[1, 2]), "spec.workers.perExecutor: enum [1, 2] is new"),
    (lambda body: schema(body)["status"]["properties"]["phase"]["enum"].remove("Paused"), "status.phase: enum lacks Paused"),
    (lambda body: schema(body)["spec"]["properties"]["streams"].update(maxItems=1), "spec.streams: maxItems 6 became 1"),
    (
        lambda body: schema(body)["spec"]["properties"]["streams"]["items"]["properties"]["name"].update(maxLength=3),
        "spec.streams[].name: maxLength",
    ),
    (
        lambda body: schema(body)["spec"]["properties"]["operatorClass"].update(pattern="^a$"),
        "spec.operatorClass: pattern",
    ),
    (
        lambda body: workers(body)["x-kubernetes-validations"].append({"rule": "self.max < 9", "message": "too many"}),
        "spec.workers: rule: too many",
    ),
    (
        lambda body: schema(body)["spec"]["properties"]["streams"].update({"x-kubernetes-list-type": "atomic"}),
        "spec.streams: x-kubernetes-list-type map became atomic",
    ),
]


@pytest.mark.parametrize(("mutate", "line"), MUTATIONS, ids=[line for _, line in MUTATIONS])
def test_what_is_taken_away_is_noticed(mutate: Callable[[Object], Any], line: str) -> None:
    after = copy.deepcopy(definition())
    mutate(after)
    assert [found for found in incompatible(definition(), after) if found.startswith(line)]


@pytest.mark.parametrize(
    "mutate",
    [
        lambda body: workers(body)["properties"].update(more={"type": "integer"}),
        lambda body: workers(body)["properties"]["perExecutor"].update(maximum=32),
        lambda body: schema(body)["status"]["properties"]["phase"]["enum"].append("Asleep"),
        lambda body: workers(body)["x-kubernetes-validations"].clear(),
        lambda body: workers(body).update(description="otherwise"),
        lambda body: schema(body)["spec"].update(required=[]),
        lambda body: workers(body)["default"].update(more=1),
    ],
)
def test_what_is_only_added_or_loosened_is_no_difference(mutate: Callable[[Object], Any]) -> None:
    after = copy.deepcopy(definition())
    mutate(after)
    assert list(incompatible(definition(), after)) == []
