"""How far a spec is carried out, for all combinations of what may be so: by what kstatus and ``kubectl wait`` then say of the resource."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kstatus import Object, Status, computed, meets
from streamjoin_operator.conditions import with_transitions
from streamjoin_operator.convergence import PASSING, Condition, Outcome, Standing, outcome
from streamjoin_operator.reasons import Reason

GENERATION = 7
AVAILABLE = {
    True: Condition("Available", True, Reason.JoinRunning),
    False: Condition("Available", False, Reason.DriverStarting, "the driver's pod is not ready"),
}


def standings() -> Iterator[Standing]:
    """All that can be: what is refused, tried, paused or being deleted is not carried out at that moment, and what is suspended does not
    run."""
    flags = (True, False)
    refusals = (None, (Reason.InvalidSpec, "spec.x: is wrong; mend it"), (Reason.SecretUnusable, "Secret one-tls is not there"))
    for refused, trying, deleting, paused, suspended in itertools.product(
        refusals, (None, (Reason.TemplateTried, "image x is tried")), (None, (Reason.PodsEnding, "waiting for p")), flags, flags
    ):
        if paused and suspended:
            continue  # a join that is paused is left alone
        for carried_out, applied, available, stopped, restarting, has_driver in itertools.product(flags, (None, 5, 7), *[flags] * 4):
            if carried_out and (refused or trying or deleting):
                continue
            if (suspended or not has_driver or stopped) and available:
                continue
            yield Standing(
                *(GENERATION, AVAILABLE[available], "Running" if available else "Starting"),
                applied=applied,
                observed=applied,
                is_carried_out=carried_out,
                refused=refused,
                trying=trying,
                restarting=restarting,
                deleting=deleting,
                paused=paused,
                suspended=suspended,
                stopped=stopped,
                has_driver=has_driver,
            )


def resource(standing: Standing, found: Outcome) -> Object:
    """As the API server would have it."""
    written = [found.ready, found.reconciling, found.stalled, standing.available]
    status: Object = {"conditions": with_transitions(written, [], found, GENERATION, "2026-01-01T00:00:00Z")}
    if found.observed is not None:
        status["observedGeneration"] = found.observed
    metadata: Object = {"generation": GENERATION}
    if standing.deleting is not None:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": status}


def expected(standing: Standing) -> Status:
    """What a person would say."""
    if standing.deleting is not None:
        return Status.TERMINATING
    if standing.refused is not None:
        return Status.IN_PROGRESS if standing.refused[0] in PASSING else Status.FAILED
    if standing.trying is not None and not standing.paused and not standing.suspended:
        return Status.IN_PROGRESS
    is_applied = standing.is_carried_out or standing.applied == GENERATION
    if standing.suspended:
        is_there = standing.stopped
    else:
        is_there = standing.available.status is True and (standing.paused or not standing.restarting)
    return Status.CURRENT if is_applied and is_there else Status.IN_PROGRESS


def test_whatever_is_so_others_find_a_spec_current_exactly_when_it_is_carried_out_and_what_it_asks_for_is_there() -> None:
    cases = list(standings())
    assert len(cases) > 1000
    for standing in cases:
        found = outcome(standing)
        body = resource(standing, found)
        assert computed(body)[0] is expected(standing), standing
        assert all(condition["message"] for condition in body["status"]["conditions"]), standing
        if meets(body, "Ready"):
            assert standing.is_carried_out or standing.applied == GENERATION, standing
        if meets(body, "Available"):
            assert standing.available.status, standing
            assert standing.is_carried_out or standing.applied in (GENERATION, None), standing
        if found.observed == GENERATION:
            assert found.applied == GENERATION or found.stalled.status, standing


@pytest.mark.parametrize(
    ("standing", "phase"),
    [
        (Standing(7, AVAILABLE[True], "Rescaling", deleting=(Reason.PodsEnding, "x"), suspended=True), "Deleting"),
        (Standing(7, AVAILABLE[False], "Pending", suspended=True, refused=(Reason.InvalidSpec, "x")), "Suspended"),
        (Standing(7, AVAILABLE[True], "Running", paused=True), "Paused"),
        (Standing(7, AVAILABLE[False], "Pending", refused=(Reason.InvalidSpec, "x"), has_driver=False), "Failed"),
        (Standing(7, AVAILABLE[True], "Rescaling", refused=(Reason.InvalidSpec, "x"), applied=5), "Rescaling"),
        (Standing(7, AVAILABLE[True], "Running", applied=7), "Running"),
    ],
)
def test_the_phase_is_one_word(standing: Standing, phase: str) -> None:
    assert outcome(standing).phase == phase


def test_a_spec_that_is_refused_says_of_which_generation_the_join_runs_on() -> None:
    found = outcome(Standing(7, AVAILABLE[True], "Running", applied=5, refused=(Reason.InvalidSpec, "spec.x: is wrong; mend it")))
    assert found.ready.message == "spec.x: is wrong; mend it; the join runs as of generation 5"
    assert found.stalled == Condition("Stalled", True, Reason.InvalidSpec, "spec.x: is wrong; mend it")
