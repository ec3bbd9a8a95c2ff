"""The chart, rendered by helm, and its objects at a real API server."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_programs
from apiserver import Client, program
from documents import all_parsed
from waiting import PATIENCE_SECONDS

CHART = Path(__file__).resolve().parent.parent / "charts" / "streamjoin-operator"
KUBERNETES = kubernetes_programs.KUBERNETES.removeprefix("v")
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")

Object = dict[str, Any]


def helm(*arguments: str, values: Object | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(program("helm")), *arguments, *(["--values", "-"] if values is not None else [])]
    text = None if values is None else json.dumps(values)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@functools.cache
def _rendered(values: str, namespace: str) -> list[Object]:
    template = ("template", "sj", str(CHART), "--namespace", namespace, "--kube-version", KUBERNETES)
    return all_parsed(helm(*template, values=json.loads(values)).stdout)


def rendered(values: Object, namespace: str = "operators") -> list[Object]:
    """All objects of the chart, its tests included."""
    return copy.deepcopy(_rendered(json.dumps(values, sort_keys=True), namespace))


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def plural(kind: str) -> str:
    return f"{kind.removesuffix('y').lower()}ies" if kind.endswith("Policy") else f"{kind.lower()}s"


def path_of(each: Object) -> str:
    group, _, version = each["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    namespace = each["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{where}/{plural(each['kind'])}/{each['metadata']['name']}"


def install(admin: Client, values: Object, namespace: str, *kinds: str) -> list[Object]:
    """The chart's objects of these kinds, of a release in ``namespace``, and what was made of them."""
    return [admin.apply(path_of(each), each, force=True) for each in of_kind(rendered(values, namespace), *kinds)]
