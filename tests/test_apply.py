"""Manifests that are applied again: by whom, and how, and what the API server says of it."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

from operator_cluster import ROOT, Cluster
from operator_parts import SPEC, Object

EXAMPLES = ROOT / "examples" / "kubernetes"
EMPTY: Object = {"driver": {}, "executor": {}, "epoch": {}, "shedding": {}, "scaling": {}, "scheme": {}, "security": {}}
"""Objects of which nothing is given."""


def to_the_console() -> Object:
    joins = copy.deepcopy(SPEC["joins"])
    joins[0]["output"]["sink"] = {"console": {}}
    return {
        "kind": "StreamJoin",
        "apiVersion": "streamjoin.dev/v1beta1",
        "metadata": {"name": "c"},
        "spec": {**SPEC, **EMPTY, "joins": joins},
    }


def manifests() -> dict[str, str]:
    found = {path.name: path.read_text() for path in sorted(EXAMPLES.glob("*.yaml")) if "kind: StreamJoin" in path.read_text()}
    return {**found, "console": json.dumps(to_the_console())}


@pytest.mark.apiserver
@pytest.mark.parametrize("name", manifests())
def test_a_manifest_that_has_not_changed_is_unchanged_and_may_be_taken_over_by_server_side_apply(cluster: Cluster, name: str) -> None:
    def apply(*arguments: str) -> str:
        done = cluster.server.kubectl("apply", *arguments, "-n", cluster.namespace, "-f", "-", stdin=manifests()[name])
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout.strip().rsplit(" ", 1)[-1]

    assert apply() == "created"
    assert [apply(), apply()] == ["unchanged", "unchanged"]
    assert [apply("--server-side") for _ in range(3)] == ["serverside-applied"] * 3
    (generation,) = [body["metadata"]["generation"] for body in cluster.admin.get(cluster.streamjoins)["items"]]
    assert generation == 1


@pytest.mark.apiserver
def test_of_two_who_hold_a_choice_one_may_change_its_kind(cluster: Cluster) -> None:
    body = yaml.safe_load((EXAMPLES / "generator.yaml").read_text())
    column, sink = body["spec"]["streams"][0]["source"]["generator"]["columns"], body["spec"]["joins"][0]["output"]

    def apply(manager: str) -> None:
        cluster.server.kubectl(
            *("apply", "--server-side", f"--field-manager={manager}", "--force-conflicts", "-n", cluster.namespace, "-f", "-"),
            stdin=yaml.safe_dump(body),
        )

    apply("one")
    apply("other")
    column["id"], sink["sink"] = {"uniform": {"min": 0, "max": 9}}, {"console": {}}
    apply("one")
    kept = cluster.get("made-up")["spec"]
    assert kept["streams"][0]["source"]["generator"]["columns"]["id"] == {"uniform": {"min": 0, "max": 9}}
    assert kept["joins"][0]["output"]["sink"] == {"console": {}}
