"""``health.lua`` in a real Lua: by its own samples as Argo CD's repository runs them, and for all that a StreamJoin may be."""

from __future__ import annotations

import pytest
import yaml

from argocd import DIRECTORY, Lua, samples
from kstatus import Status, computed
from streamjoin_operator.convergence import outcome
from test_convergence import resource, standings

EXPECTED = yaml.safe_load((DIRECTORY / "health_test.yaml").read_text())["tests"]
ALIKE = {
    Status.CURRENT: {"Healthy", "Suspended"},
    Status.FAILED: {"Degraded"},
    Status.IN_PROGRESS: {"Progressing", "Suspended", "Degraded"},
    Status.TERMINATING: {"Progressing"},
}


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda expected: expected["inputPath"])
def test_each_sample_has_the_health_that_is_expected(expected: dict[str, object]) -> None:
    body = yaml.safe_load((DIRECTORY / str(expected["inputPath"])).read_text())
    status, message = Lua().health(body)
    assert {"status": status, "message": message} == expected["healthStatus"]
    assert status in ALIKE[computed(body)[0]]


def test_the_samples_are_what_the_operator_writes_today_and_each_is_as_healthy_as_its_name_says() -> None:
    assert [each["inputPath"] for each in EXPECTED] == [f"testdata/{name}.yaml" for name in samples()], "python tests/argocd.py"
    lua = Lua()
    for name, (status, body) in samples().items():
        stored = yaml.safe_load((DIRECTORY / "testdata" / f"{name}.yaml").read_text())
        assert stored == yaml.safe_load(yaml.safe_dump(body)), "python tests/argocd.py"
        assert lua.health(body)[0] == status == name.partition("_")[0].capitalize(), name


def test_whatever_is_so_argo_cd_and_kstatus_agree_whether_a_spec_is_carried_out() -> None:
    lua = Lua()
    for standing in standings():
        found = outcome(standing)
        body = resource(standing, found)
        body["spec"] = {"suspend": standing.suspended, "paused": standing.paused}
        body["status"]["phase"] = found.phase
        health = lua.health(body)[0]
        assert health in ALIKE[computed(body)[0]], standing
        if health == "Healthy":
            assert standing.available.status, standing
            assert found.applied == standing.generation, standing
