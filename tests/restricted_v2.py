"""The rules by which OpenShift's security context constraint *restricted-v2* takes or refuses a pod.

As ``oc get scc restricted-v2 -o yaml`` of OpenShift 4.11 and newer has them. What a pod leaves out, OpenShift fills in: the user and the
group of the namespace, the seccomp profile, the capabilities to drop. So only what a pod says can be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

USERS = range(1000680000, 1000690000)
"""Of a namespace (its annotation openshift.io/sa.scc.uid-range); its groups are the same."""
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def refusals(spec: Object) -> list[str]:
    """What is wrong with a pod's spec, in some words each; empty: it is taken."""
    return list(_refusals(spec))


def _refusals(spec: Object) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes") or []:
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {kinds}"
    security = spec.get("securityContext") or {}
    yield from _of_context("pod", security)
    if security.get("fsGroup") not in (None, *USERS):
        yield f"fsGroup {security['fsGroup']}"
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        yield from _of_container(container)


def _of_container(container: Object) -> Iterator[str]:
    name, security = container["name"], container.get("securityContext") or {}
    yield from _of_context(name, security)
    if security.get("privileged") or security.get("allowPrivilegeEscalation"):
        yield f"{name}: privileges"
    capabilities = security.get("capabilities") or {"drop": ["ALL"]}
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: keeps capabilities"
    if not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield f"{name}: adds capabilities"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name}: ports of the node"


def _of_context(name: str, security: Object) -> Iterator[str]:
    """What a pod and a container may say alike."""
    if security.get("runAsUser") not in (None, *USERS):
        yield f"{name}: runAsUser {security['runAsUser']}"
    # No rule refuses a group. But files that any user may write are those of group 0, which a user without a group of his own has.
    if security.get("runAsGroup") is not None:
        yield f"{name}: runAsGroup {security['runAsGroup']}"
    if security.get("runAsNonRoot") is False:
        yield f"{name}: runs as root"
    if (security.get("seccompProfile") or {"type": "RuntimeDefault"})["type"] != "RuntimeDefault":
        yield f"{name}: seccompProfile"
    if security.get("seLinuxOptions"):
        yield f"{name}: seLinuxOptions"
