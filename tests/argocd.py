"""The health of StreamJoins as Argo CD finds it, and the samples that its repository wants beside the Lua that finds it.

``python tests/argocd.py`` writes the samples anew, from what the operator says (``examples/argocd``).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from operator_parts import SPEC, Object
from streamjoin_operator import status
from streamjoin_operator.driver import Report
from streamjoin_operator.facts import Facts
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason

DIRECTORY = Path(__file__).resolve().parent.parent / "examples/argocd/resource_customizations/streamjoin.dev/StreamJoin"
AT = "2026-01-01T00:00:00Z"
PLAN = {"generation": 2, "workers": 2, "phase": "Running", "readyWorkers": 2, "scheme": {"model": "adsp", "areas": []}, "wanted": None}
RUNS: Object = {
    "has_acted": True,
    "driver_wanted": True,
    "driver_pods": 1,
    "driver_ready": True,
    "report": Report({"state": "running", "lastError": None}, PLAN),
    "image": "streamjoin-engine:0.1.0",
}
BEFORE = {"appliedGeneration": 2, "observedGeneration": 2, "appliedSpec": "0123456789abcdef"}
SETTLED = {**BEFORE, "appliedGeneration": 3, "observedGeneration": 3}
TRIED = (Reason.TemplateTried, "image b is tried by a pod")
WRONG = 'spec.joins[0].condition: "orders.id =" is refused: an operand is missing; write one Spark SQL expression'
STANDS = {"epoch": 7, "step": "tasks", "waitsFor": ["worker at place 2"], "stalls": 0}
DEPLOYED = {**RUNS, "driver_ready": False, "report": None}

SAMPLES: dict[str, tuple[str, Object, Object, Object]] = {
    "healthy_running": ("Healthy", RUNS, {}, {}),
    "suspended": ("Suspended", {"has_acted": True, "suspended": True}, BEFORE, {"suspend": True}),
    "suspended_paused": ("Suspended", {**RUNS, "paused": True, "has_acted": False}, BEFORE, {"paused": True}),
    "progressing_starting": ("Progressing", DEPLOYED, {}, {}),
    "progressing_trial": ("Progressing", {**RUNS, "has_acted": False, "trying": TRIED}, BEFORE, {}),
    "progressing_suspending": ("Progressing", {**DEPLOYED, "suspended": True}, BEFORE, {"suspend": True}),
    "progressing_workers": ("Progressing", {**RUNS, "plan_unmet": "2 workers run, and spec.workers asks for 4"}, BEFORE, {}),
    "degraded_refused": ("Degraded", {**RUNS, "has_acted": False, "refused": (Reason.InvalidSpec, WRONG)}, BEFORE, {}),
    "degraded_refused_at_first": ("Degraded", {"refused": (Reason.InvalidSpec, WRONG)}, {}, {}),
    "degraded_trial_failed": (
        "Degraded",
        {**RUNS, "has_acted": False, "refused": (Reason.NewTemplateFails, "image b: ImagePullBackOff: no such image; restore spec.image")},
        *(BEFORE, {}),
    ),
    "degraded_crashing": (
        "Degraded",
        {**DEPLOYED, "trouble": Trouble(Reason.DriverCrashing, "pod sj-one-1: exit code 6: no space left on device")},
        *(BEFORE, {}),
    ),
    "degraded_stands_still": ("Degraded", {**RUNS, "report": Report({"state": "running", "stalled": STANDS}, PLAN)}, SETTLED, {}),
}
"""By file: its health, what is observed, the status before, and what its spec has besides."""


def sample(name: str) -> Object:
    """A StreamJoin as the API server has it."""
    _, observed, before, more = SAMPLES[name]
    metadata: Object = {"name": "one", "namespace": "default", "generation": 3}
    body: Object = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": metadata}
    body["spec"] = {**copy.deepcopy(SPEC), **more}
    body["status"] = status.status(Facts(3, **observed), before, AT)
    return body


def others() -> dict[str, tuple[str, Object]]:
    """Samples that the operator has not looked at, or no longer acts on."""
    running = sample("healthy_running")
    new = {**running, "metadata": {**running["metadata"], "generation": 4}}
    going = {**running, "metadata": {**running["metadata"], "deletionTimestamp": AT}}
    return {
        "progressing_new": ("Progressing", {**running, "status": {"observedGeneration": -1}}),
        "progressing_generation_mismatch": ("Progressing", new),
        "progressing_terminating": ("Progressing", going),
    }


def samples() -> dict[str, tuple[str, Object]]:
    """All, by file: the health, and the resource."""
    return {**{name: (found[0], sample(name)) for name, found in SAMPLES.items()}, **others()}


class Lua:
    """``health.lua`` in the Lua that Argo CD's is like (5.1)."""

    def __init__(self) -> None:
        import lupa.lua51

        self._runtime = lupa.lua51.LuaRuntime(unpack_returned_tuples=True)
        self._health = self._runtime.eval("function(obj_, text) obj = obj_; return loadstring(text)() end")
        self._text = (DIRECTORY / "health.lua").read_text()

    def health(self, body: Object) -> tuple[str, str]:
        """The status and the message."""
        found = self._health(self._table(body), self._text)
        return found["status"], found["message"]

    def _table(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._runtime.table_from({key: self._table(part) for key, part in value.items()})
        if isinstance(value, list | tuple):
            return self._runtime.table_from([self._table(part) for part in value])
        return value


def main() -> None:
    """Write the samples, and what is expected of them."""
    tests, lua = [], Lua()
    for name, (_, body) in samples().items():
        (DIRECTORY / "testdata" / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False, width=200))
        found, message = lua.health(body)
        tests.append({"healthStatus": {"status": found, "message": message}, "inputPath": f"testdata/{name}.yaml"})
    (DIRECTORY / "health_test.yaml").write_text(yaml.safe_dump({"tests": tests}, sort_keys=False, width=200))


if __name__ == "__main__":
    main()
