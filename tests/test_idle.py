"""An operator with nothing to do writes nothing: joins of the examples (each by ``make test-all``) and every pod template of the docs.

On a real API server, by a clock that only the test moves. All joins are in one namespace and come to rest together; then ten minutes pass,
with all polls and checks that fall into them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import some
from operator_cluster import PATHS, STREAMJOINS, Cluster
from operator_parts import Object, joined, parsed_once
from stepped_cluster import SteppedCluster, stepped
from streamjoin_operator import names
from streamjoin_operator.driver import Answered, Report, distrust, measure

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parent.parent
IDLE_SECONDS = 600.0


def documents(text: str) -> list[Object]:
    return [found for found in yaml.safe_load_all(text) if isinstance(found, dict)]


def examples() -> dict[str, Object]:
    """By file, the StreamJoins of the examples."""
    found = {}
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        for document in documents(file.read_text()):
            if document.get("kind") == "StreamJoin" and "testdata" not in file.parts:
                found[str(file.relative_to(ROOT))] = in_a_store(document)
    return found


def in_a_store(value: Any, name: str = "") -> Any:
    """A manifest whose local directories, which no cluster takes, are in a bucket."""
    if isinstance(value, dict):
        return {key: in_a_store(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [in_a_store(part) for part in value]
    is_local = name in ("path", "location") and isinstance(value, str) and ":" not in value and not value.startswith("/var/lib/streamjoin")
    return f"s3://bucket/{value.strip('/')}" if is_local else value


def of_pods(spec: Object) -> Object:
    """What of a spec, or of a part of one, becomes the pods'."""
    parts = {name: part for name, part in spec.items() if name in ("driver", "executor") and isinstance(part, dict)}
    workers = spec.get("workers") if isinstance(spec.get("workers"), dict) else {}
    shared = {name: workers[name] for name in ("resources", "perExecutor") if name in workers}
    return parts | ({"workers": shared} if shared else {})


def templates() -> list[Object]:
    """What each snippet of the documentation says of pods; first of all nothing."""
    found: list[Object] = [{}]
    for file in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        for block in re.findall(r"```yaml\n(.*?)```", file.read_text(), re.DOTALL):
            for document in documents(block):
                spec = document.get("spec")
                parts = of_pods(spec if isinstance(spec, dict) else document)
                if parts and parts not in found:
                    found.append(parts)
    return found


class Drivers:
    """One for each StreamJoin: it runs what its manifest asks for, and nothing is new."""

    def __init__(self) -> None:
        self.specs: dict[str, Object] = {}
        self.wishes: list[Object] = []

    async def read(self, url: str, token: str) -> Report:
        spec = self.specs[url]
        workers = max(spec["workers"].get("min", 1), spec["workers"].get("floor") or 0)
        model = (spec.get("scheme") or {}).get("model", "adsp")
        plan = {"generation": 1, "workers": workers, "phase": "Running", "readyWorkers": workers, "wanted": None, "dropped": None}
        plan |= {"scheme": {"model": model, "areas": [{}] * workers}, "switched": None, "ended": []}
        lines = ['streamjoin_plan_generation{name="x"} 1.0', *joined(7)]
        for task in range(workers):
            lines.append(f'streamjoin_worker_utilization_ratio{{name="x",task="{task}"}} 0.5')
            lines.append(f'streamjoin_worker_shed_ratio{{name="x",task="{task}"}} 0.0')
            lines += [f'streamjoin_worker_tuples{{name="x",side="{side}",task="{task}"}} 2e4' for side in ("left", "right")]
            lines.append(f'streamjoin_worker_bytes{{name="x",task="{task}"}} 4e6')
        for stream in spec["streams"]:
            for counter in ("shed_tuples_total", "accepted_tuples_total", "backlog_records"):
                lines.append(f'streamjoin_{counter}{{name="x",stream="{stream["name"]}"}} 0.0')
        text = "\n".join(lines) + "\n"
        measured = measure(text)
        health = {"state": "running", "lastError": None, "stalled": None, "committedAt": 1.8e9}
        return Report(health, plan, measured, text, metrics_problem=distrust(measured, plan))

    async def statistics(self, url: str, token: str) -> None:
        return None

    async def put(self, url: str, token: str, wish: Object) -> Answered:
        self.wishes.append(wish)
        return Answered(202, "")


def everything(world: SteppedCluster) -> dict[str, str]:
    """What any write would change."""
    paths = {**PATHS, "StreamJoin": STREAMJOINS, "Event": "/api/v1/namespaces/{}/events", "Pod": "/api/v1/namespaces/{}/pods"}
    found = {kind: world.admin.get(path.format(world.namespace))["items"] for kind, path in paths.items()}
    return {f"{kind} {body['metadata']['name']}": body["metadata"]["resourceVersion"] for kind, many in found.items() for body in many}


def submitted(world: SteppedCluster, drivers: Drivers) -> dict[str, str]:
    """The first example with each template, and others with one of them; where each comes from, by its name."""
    origins, known, (first, *others) = {}, templates(), examples().items()
    for number, (file, document) in enumerate([first, *some(others, of=3)]):
        for version, parts in enumerate(known):
            if number and version != number % len(known):
                continue
            name = f"{Path(file).stem}-{number}-{version}".replace("_", "-")
            spec: dict[str, Any] = {**document["spec"], **parts}
            spec["workers"] = {**document["spec"].get("workers", {}), **parts.get("workers", {})}
            if "perExecutor" in spec["workers"]:  # as kubernetes.md has it: multiples of it leave no room unused
                spec["workers"]["max"] = max(spec["workers"].get("max", 1), spec["workers"]["perExecutor"])
            body = {"apiVersion": document["apiVersion"], "kind": "StreamJoin", "metadata": {"name": name}, "spec": spec}
            stored = world.admin.create(STREAMJOINS.format(world.namespace), body)
            drivers.specs[name], origins[name] = stored["spec"], f"{file} with {parts or 'no template'}"
    return origins


def test_ten_idle_minutes_have_no_write(cluster: Cluster) -> None:
    drivers = Drivers()
    with parsed_once(), stepped(cluster, drivers=drivers, driver_url="{name}") as world:
        origins = submitted(world, drivers)
        assert len(templates()) >= 3, "the documentation shows some"
        assert len(examples()) >= 6
        world.settle()
        for name in origins:
            if world.admin.exists(f"{PATHS['Deployment'].format(world.namespace)}/{names.base_name(name)}"):
                cluster.ready(names.base_name(name))
        world.pass_seconds(90.0)
        running = [name for name in origins if cluster.condition("Ready", name) == ("True", "JoinRunning")]
        degraded = {origins[name]: cluster.status(name)["conditions"][-1]["message"] for name in origins if name not in running}
        assert len(running) >= 0.8 * len(origins), degraded
        before, writes, requests = everything(world), world.writes, world.requests.copy()
        world.pass_seconds(IDLE_SECONDS)
        checks = (world.requests - requests)["list"]
        assert checks >= 8 * len(running), "all children were compared meanwhile"
        after = everything(world)
        assert [origins[name] for name in origins if after[f"StreamJoin {name}"] != before[f"StreamJoin {name}"]] == []
        assert after == before
        assert world.writes == writes
        assert drivers.wishes == []
