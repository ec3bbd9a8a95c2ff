"""``kubectl streamjoin snapshot``, ``clone`` and ``rollback``.

A snapshot is a StreamJoinSnapshot, which the operator has the driver make. A clone is a manifest, which only its author can complete: its
outputs are its own. A rollback is done in the driver's pod, which has the storage and the credentials: it claims the checkpoint, and the
driver that runs there starts anew.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime

import yaml

from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin_operator.kubectl import RESOURCE, SNAPSHOT, Kubectl, Object, Refused, read_one
from streamjoin_operator.names import DRIVER, RESTART, base_name
from streamjoin_operator.pod_templates import CONFIG_PATH
from streamjoin_operator.pod_trouble import condition_of
from streamjoin_operator.snapshot_model import dated_name, resource

_TIME = "%Y%m%d-%H%M%S"


def add_to(actions: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """The actions and their options."""
    snapshot = actions.add_parser("snapshot", parents=[common], help="Keep its last commit: make a StreamJoinSnapshot, and wait for it.")
    snapshot.add_argument("name", help="The StreamJoin.")
    snapshot.add_argument("snapshot", nargs="?", help="Its name; by default that of the StreamJoin, and the time.")
    snapshot.add_argument("--timeout", default="60s", help="How long to wait, as kubectl wait takes it.")
    clone = actions.add_parser("clone", parents=[common], help="Print the manifest of another StreamJoin that begins with a snapshot.")
    clone.add_argument("snapshot", help="The StreamJoinSnapshot.")
    clone.add_argument("name", help="The name of the other StreamJoin.")
    clone.add_argument("--location", help="Its checkpoint.location; not needed if the checkpoint is in a PersistentVolumeClaim.")
    rollback = actions.add_parser("rollback", parents=[common], help="Have it go back to a snapshot, and start anew from there.")
    rollback.add_argument("name", help="The StreamJoin.")
    rollback.add_argument("snapshot", help="The StreamJoinSnapshot.")
    rollback.add_argument("--keep", help="Keep what it is before that as a savepoint of this name.")
    rollback.add_argument("--repeat-results", action="store_true", help="Go back although results since the snapshot appear again.")


def snapshot(kubectl: Kubectl, options: argparse.Namespace) -> str:
    read_one(kubectl, RESOURCE, options.name)
    name = options.snapshot or dated_name(options.name, datetime.now(UTC), _TIME)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(resource(name, options.name), file)
        file.flush()
        kubectl(["create", "-f", file.name])
    try:
        kubectl(["wait", SNAPSHOT, name, "--for=condition=Ready", f"--timeout={options.timeout}"])
    except Refused as refused:
        why = condition_of(read_one(kubectl, SNAPSHOT, name), "Ready").get("message", "no operator has looked at it yet")
        raise Refused(f"{name} is not made yet: {why} ({refused})") from refused
    status = read_one(kubectl, SNAPSHOT, name)["status"]
    return f"{name}: epoch {status['epoch']} of {options.name} is kept, {status['bytes']:,} bytes"


def clone(kubectl: Kubectl, options: argparse.Namespace) -> str:
    kept = read_one(kubectl, SNAPSHOT, options.snapshot)
    location, ready = (kept.get("status") or {}).get("location"), condition_of(kept, "Ready")
    if ready.get("status") != "True" or location is None:
        raise Refused(f"{options.snapshot} is not ready: {ready.get('message', 'no operator has looked at it yet')}")
    origin = read_one(kubectl, RESOURCE, kept["spec"]["streamJoin"])
    spec: Object = origin["spec"]
    checkpoint = {name: value for name, value in spec["checkpoint"].items() if name not in ("location", "cloneOf")}
    if "persistentVolumeClaim" not in checkpoint:
        if options.location is None:
            raise Refused("--location: is missing; give the place of the clone's own checkpoint")
        checkpoint["location"] = options.location
    elif options.location is not None:
        raise Refused("--location: is not for a checkpoint in a PersistentVolumeClaim, whose directory follows from the name")
    spec["checkpoint"] = {**checkpoint, "cloneOf": {"location": location, "savepoint": options.snapshot}}
    lines = []
    for number, join in enumerate(spec["joins"]):
        if (sink := join.get("output", {}).pop("sink", None)) is not None:
            lines.append(f"# spec.joins[{number}].output.sink: give it an output of its own; that of the other join is {json.dumps(sink)}")
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": options.name}, "spec": spec}
    return "\n".join([*lines, yaml.safe_dump(manifest, sort_keys=False, width=120).rstrip()])


def rollback(kubectl: Kubectl, options: argparse.Namespace) -> str:
    read_one(kubectl, RESOURCE, options.name)
    keep = [] if options.keep is None else [f"--keep={options.keep}"]
    repeat = ["--repeat-results"] if options.repeat_results else []
    command = ["streamjoin", "savepoint", "rollback", f"{CONFIG_PATH}/streamjoin.yaml", options.snapshot, *keep, *repeat]
    said = kubectl(["exec", f"deployment/{base_name(options.name)}", f"--container={DRIVER}", "--", *command]).rstrip("\n")
    again = {"metadata": {"annotations": {RESTART: datetime.now(UTC).isoformat()}}}
    kubectl(["patch", RESOURCE, options.name, "--type=merge", "-p", json.dumps(again)])
    return f"{said}\n{options.name}: the driver starts anew"
