"""What is said of pods that do not run: the same words for the same cause, whoever repeats it and however often."""

from __future__ import annotations

from typing import Any

import pytest

from streamjoin_operator import names
from streamjoin_operator.pod_trouble import EXECUTORS, Trouble, first_unexplained, mismatch_of, trouble_of, trouble_of_several, warnings_of
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]
NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z"""


def event(message: str, at: str = "2027-01-15T07:59:59Z", uid: str = "u", **more: Any) -> Object:
    about = {"involvedObject": {"uid": uid}, "metadata": {"creationTimestamp": at}}
    return {**about, "type": "Warning", "reason": "FailedMount", "message": message, "lastTimestamp": at, **more}


def pod(*containers: Object, uid: str = "u", **state: Any) -> Object:
    return {"metadata": {"name": "p", "uid": uid}, "spec": {}, "status": {"containerStatuses": list(containers), **state}}


def ended(code: int, message: str = "", own: str = names.DRIVER) -> Object:
    return {"name": own, "state": {"terminated": {"exitCode": code, "message": message, "reason": "Error"}}}


def test_each_attempts_own_numbers_are_left_out_and_each_sentence_is_said_once() -> None:
    sandbox = 'Failed to create pod sandbox: network for sandbox "{}": no address'
    events = [
        event(sandbox.format("ab" * 32)),
        event(f"(combined from similar events): {sandbox.format('cd' * 32)}"),
        event("a second\ncause"),
    ]
    assert warnings_of(events, "u") == ['Failed to create pod sandbox: network for sandbox "...": no address', "a second cause"]
    assert warnings_of(events[::-1], "u") == warnings_of(events, "u")


def test_what_says_no_cause_is_said_only_where_nothing_else_is() -> None:
    vague = event("Unable to attach or mount volumes: unmounted volumes=[keys]: timed out waiting for the condition")
    assert warnings_of([vague, event("no such secret")], "u") == ["no such secret"]
    assert warnings_of([vague], "u") == [vague["message"]]


def test_causes_that_kubelet_no_longer_repeats_are_forgotten() -> None:
    mended = event("mended", "2027-01-15T07:50:00Z")
    series = event("repeated", "2027-01-15T07:00:00Z", lastTimestamp=None, series={"lastObservedTime": "2027-01-15T07:59:00.123456Z"})
    assert warnings_of([mended, series], "u") == ["repeated"]
    assert warnings_of([mended], "u") == ["mended"], "by the newest, not by the clock: else the words would change by themselves"


def test_what_is_no_warning_about_this_object_is_left_out() -> None:
    events = [
        event("of another", uid="v"),
        event("started", type="Normal", reason="Started"),
        event("in its status", reason="FailedScheduling"),
        event("no volume fits", type="Normal", reason="FailedBinding"),
    ]
    assert warnings_of(events, "u") == ["no volume fits"]


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (ended(1, "Traceback\nModuleNotFoundError: no module x\n\n"), "exit code 1: the join failed: ModuleNotFoundError: no module x"),
        (ended(1, '{"event": "summary"}'), "exit code 1: the join failed"),
        (ended(137, "an ordinary line"), "exit code 137: it was killed, as when it needs more memory than its limit"),
        (ended(3, "", own="proxy"), "container proxy: exit code 3: see its log"),
    ],
)
def test_how_a_container_ended(container: Object, said: str) -> None:
    trouble = trouble_of([pod(container)], NOW)
    assert trouble is not None
    assert trouble.message in (f"pod p: {said}", f"pod p, {said}")


def test_a_container_beside_the_driver_does_not_speak_of_the_checkpoint() -> None:
    found = pod(ended(5, own="proxy"))
    found["metadata"]["annotations"] = {names.REVISION: "r"}
    assert mismatch_of([found], "r") is None
    found["status"]["containerStatuses"].append(ended(5, "streamjoin: it holds another"))
    assert mismatch_of([found], "r") == "exit code 5: the checkpoint was made for another join: it holds another"


def test_a_container_that_has_failed_and_is_ready_again_is_no_trouble() -> None:
    last = {"terminated": {"exitCode": 1}}
    again = {"name": names.DRIVER, "ready": True, "state": {"running": {"startedAt": "2027-01-15T07:59:00Z"}}, "lastState": last}
    assert trouble_of([pod(again)], NOW) is None
    assert trouble_of([pod({**again, "ready": False})], NOW) is not None


def test_executors_that_are_ready_or_say_what_is_wrong_need_no_events() -> None:
    ready = pod(conditions=[{"type": "Ready", "status": "True"}])
    failed = pod(ended(1, own=names.EXECUTOR), phase="Failed")
    assert first_unexplained([ready, failed], EXECUTORS, NOW) is None
    assert trouble_of_several([ready, failed], EXECUTORS, NOW) == Trouble(
        Reason.ExecutorsFailing, "1 of 2 executors: pod p: exit code 1: see its log"
    )
    starting = pod(phase="Pending")
    assert first_unexplained([ready, failed, starting], EXECUTORS, NOW) is starting
