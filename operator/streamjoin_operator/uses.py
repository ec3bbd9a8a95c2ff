"""What of its namespace an executor's pod uses: by that the chart's admission policy knows which pods a driver may make.

Whoever may make pods may mount any Secret and act as any service account of the namespace, whatever else he may not. So a driver's Role
names, with the verb ``use``, which has no other meaning, its own account, the StreamJoin whose executors it runs and the Secrets, claims
and the service account of their template; the policy asks the API server for that verb. A Role is what every driver has already, and only
the operator writes it.

Always holds: pure. A template that is no pod uses nothing: the API server refuses its pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamjoin_operator import names
from streamjoin_operator.drift import Object

VERB = "use"
DRIVERS = "drivers"
"""No resource of the API: to use one of these is to be the driver of that service account, and so held to the policy."""


def rules(name: str, account: str, pod: Object) -> list[Object]:
    """Rules of a Role, for the driver of the StreamJoin ``name`` whose executors are made of ``pod``. ``account``: the driver's own."""
    used = {"secrets": _secrets(pod), "persistentvolumeclaims": _claims(pod), "serviceaccounts": _text(pod, "spec", "serviceAccountName")}
    found = {kind: sorted(set(named)) for kind, named in used.items()}
    return [
        {"apiGroups": [names.GROUP], "resources": ["streamjoins"], "resourceNames": [name], "verbs": [VERB]},
        {"apiGroups": [names.GROUP], "resources": [DRIVERS], "resourceNames": [account], "verbs": [VERB]},
        *({"apiGroups": [""], "resources": [kind], "resourceNames": named, "verbs": [VERB]} for kind, named in found.items() if named),
    ]


def _secrets(pod: Object) -> Iterator[str]:
    """As volumes and as variables. Those that images are pulled with are the kubelet's."""
    for volume in _items(pod, "spec", "volumes"):
        yield from _text(volume, "secret", "secretName")
    for container in [*_items(pod, "spec", "containers"), *_items(pod, "spec", "initContainers")]:
        for source in _items(container, "envFrom"):
            yield from _text(source, "secretRef", "name")
        for variable in _items(container, "env"):
            yield from _text(variable, "valueFrom", "secretKeyRef", "name")


def _claims(pod: Object) -> Iterator[str]:
    for volume in _items(pod, "spec", "volumes"):
        yield from _text(volume, "persistentVolumeClaim", "claimName")


def _at(value: Any, *path: str) -> Any:
    """None where there is nothing: people write templates."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _items(value: Any, *path: str) -> list[Any]:
    found = _at(value, *path)
    return found if isinstance(found, list) else []


def _text(value: Any, *path: str) -> list[str]:
    found = _at(value, *path)
    return [found] if isinstance(found, str) and found else []
