"""The operator as a bundle of the Operator Lifecycle Manager (OLM, as on OpenShift), made from the chart's output and the definitions.

OLM makes the Deployment, the rights and the service account itself, as the ClusterServiceVersion says: rights within the watched namespaces
(``permissions``), and those of the cluster. It writes the watched namespaces into an annotation of the pod, where the chart has a value.

Always holds: a commit, its publisher and the images' digests give the same bytes wherever it is made. Nothing is in the bundle that OLM
refuses: neither the admission policy for drivers nor NetworkPolicies.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import kubernetes_programs
from release_steps import archives
from release_steps.failure import ReleaseError, output
from release_steps.packages import CHART, Source

Object = dict[str, Any]

DIRECTORY, PACKAGE, CHANNEL = "bundle", "streamjoin-operator", "alpha"
DEFINITIONS = ("streamjoins.streamjoin.dev", "streamjoinsnapshots.streamjoin.dev")
EXAMPLE = "examples/kubernetes/generator.yaml"
SNAPSHOT: Object = {
    "apiVersion": "streamjoin.dev/v1beta1",
    "kind": "StreamJoinSnapshot",
    "metadata": {"name": "before-the-change"},
    "spec": {"streamJoin": "made-up"},
}
MODES = {"OwnNamespace": True, "SingleNamespace": True, "MultiNamespace": True, "AllNamespaces": True}
"""Ways to install it: which namespaces OLM may have it watch."""
WATCHED = "metadata.annotations['olm.targetNamespaces']"
OWN_NAMESPACE = "metadata.namespace"
SWITCH, CONDITIONS = "urn:alm:descriptor:com.tectonic.ui:booleanSwitch", "urn:alm:descriptor:io.kubernetes.conditions"
SHOWN = {"suspend": SWITCH, "paused": SWITCH, "conditions": CONDITIONS, "phase": "urn:alm:descriptor:io.kubernetes.phase"}
"""How OpenShift's console shows fields, other than as text."""
SAID = """\
StreamJoin joins two to six unbounded streams on any condition, each result exactly once, and adds and removes workers as the load
changes. A `StreamJoin` names sources (files, Kafka, Delta, Iceberg), the condition and the sinks. The operator makes a driver and Spark
executors for it, scales them by utilization, and says in the status what is wrong and what to do. A `StreamJoinSnapshot` keeps a savepoint.

OLM installs no admission policies. The chart's policy, by which a driver makes and deletes its own executors alone, is applied by itself:
`helm template streamjoin-operator CHART --namespace NAMESPACE --show-only templates/driverpolicy.yaml | kubectl apply -f -`.
"""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Who publishes, which a commit does not know."""

    registry: str = ""
    """Where the images are."""
    home: str = ""
    """The address of the repository."""
    maintainer: str = ""
    """As ``Name <name@example.com>``."""


def pack(source: Source, target: Path, publisher: Publisher, digests: Mapping[str, str]) -> Path:
    """Writes the bundle as an archive. Raises ReleaseError."""
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"streamjoin-bundle-{source.version}.tgz"
    with tempfile.TemporaryDirectory(prefix="streamjoin-bundle-") as name:
        archives.pack(build(source, Path(name), publisher, digests), archive, source.epoch, prefix=DIRECTORY)
    return archive


def build(source: Source, target: Path, publisher: Publisher = Publisher(), digests: Mapping[str, str] | None = None) -> Path:
    """Writes the directory of the bundle into ``target``. ``digests``: of images, by name. Raises ReleaseError."""
    chart = yaml.safe_load((source.directory / CHART / "Chart.yaml").read_text())
    objects = _rendered(source.directory / CHART, publisher.registry, digests or {})
    definitions = [yaml.safe_load((source.directory / "crds" / f"{name}.yaml").read_text()) for name in DEFINITIONS]
    example = yaml.safe_load((source.directory / EXAMPLE).read_text())
    icon = (source.directory / "docs/assets/icon.svg").read_bytes()
    when = datetime.datetime.fromtimestamp(source.epoch, datetime.UTC)
    version = service_version(chart, objects, definitions, [example, SNAPSHOT], icon, when)
    version["spec"] |= _published(publisher)
    bundle = target / DIRECTORY
    for directory in ("manifests", "metadata"):
        (bundle / directory).mkdir(parents=True)
    manifests = {f"{PACKAGE}.clusterserviceversion": version, **{f"{each['metadata']['name']}": each for each in _roles(objects)}}
    for name, each in manifests.items():
        _write(bundle / "manifests" / f"{name}.yaml", each)
    for name in DEFINITIONS:  # as text: numbers that go through YAML and back may become others
        shutil.copyfile(source.directory / "crds" / f"{name}.yaml", bundle / "manifests" / f"{name}.yaml")
    _write(bundle / "metadata" / "annotations.yaml", {"annotations": ANNOTATIONS})
    labels = "".join(f"LABEL {name}={value}\n" for name, value in ANNOTATIONS.items())
    (bundle / "bundle.Dockerfile").write_text(f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n")
    return bundle


ANNOTATIONS = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": PACKAGE,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
    "com.redhat.openshift.versions": "v4.18",  # Kubernetes 1.31
}


def _rendered(chart: Path, registry: str, digests: Mapping[str, str]) -> list[Object]:
    """The chart's objects for all namespaces of an OpenShift. Raises ReleaseError."""
    values: Object = {"fullnameOverride": PACKAGE, "openshift": True, "global": {"imageRegistry": registry}}
    for value, image in (("image", "streamjoin-operator"), ("engine", "streamjoin-engine"), ("tables", "streamjoin-engine-tables")):
        if image in digests:
            values[value] = {"digest": digests[image]}
    try:
        helm = kubernetes_programs.obtain("helm")
    except kubernetes_programs.MissingError as error:
        raise ReleaseError(str(error)) from error
    given = [part for name, value in values.items() for part in ("--set-json", f"{name}={json.dumps(value)}")]
    text = output(str(helm), "template", PACKAGE, str(chart), "--namespace", "placeholder", *given)
    return [each for each in yaml.safe_load_all(text) if each]


def service_version(
    chart: Object, objects: list[Object], definitions: list[Object], examples: list[Object], icon: bytes, when: datetime.datetime
) -> Object:
    """The ClusterServiceVersion of the chart's objects."""
    version, (deployment,) = str(chart["version"]), _of_kind(objects, "Deployment")
    images = _images(deployment)
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    annotations = {
        "alm-examples": json.dumps(examples, indent=2),
        "capabilities": "Auto Pilot",
        "categories": "Streaming & Messaging",
        "containerImage": images["operator"],
        "createdAt": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "description": chart["description"],
        "operatorframework.io/suggested-namespace": "streamjoin",
        "features.operators.openshift.io/disconnected": "true",
    }
    spec: Object = {
        "displayName": "StreamJoin",
        "description": SAID,
        "version": version,
        "maturity": CHANNEL,
        "minKubeVersion": chart["kubeVersion"].removeprefix(">=").removesuffix("-0"),
        "keywords": chart["keywords"],
        "provider": {"name": "StreamJoin"},
        "icon": [{"base64data": base64.b64encode(icon).decode(), "mediatype": "image/svg+xml"}],
        "installModes": [{"type": mode, "supported": supported} for mode, supported in MODES.items()],
        "customresourcedefinitions": {"owned": [_owned(each) for each in definitions]},
        "install": {
            "strategy": "deployment",
            "spec": {
                "deployments": [_deployment(deployment)],
                "permissions": [{"serviceAccountName": account, "rules": _rules(objects)}],
                "clusterPermissions": [{"serviceAccountName": account, "rules": _cluster_rules(objects)}],
            },
        },
        "relatedImages": [{"name": name, "image": image} for name, image in images.items()],
    }
    metadata = {"name": f"{PACKAGE}.v{version}", "namespace": "placeholder", "annotations": annotations}
    return {"apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion", "metadata": metadata, "spec": spec}


def _published(publisher: Publisher) -> Object:
    """What the ClusterServiceVersion says of the publisher. Raises ReleaseError."""
    found: Object = {"links": [{"name": "Sources and documentation", "url": publisher.home}]} if publisher.home else {}
    if publisher.maintainer:
        match = re.fullmatch(r"(.+) <([^@<>\s]+@[^@<>\s]+)>", publisher.maintainer)
        if match is None:
            raise ReleaseError(f"maintainer: {publisher.maintainer!r} is not of the form 'Name <name@example.com>'")
        found["maintainers"] = [{"name": match[1], "email": match[2]}]
    return found


def _of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def _variables(deployment: Object) -> dict[str, Object]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each for each in container["env"]}


def _images(deployment: Object) -> dict[str, str]:
    """All that a release may pull."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = _variables(deployment)
    engines = {name: str(variables[f"STREAMJOIN_{of}_IMAGE"]["value"]) for name, of in (("engine", "ENGINE"), ("engine-tables", "TABLES"))}
    return {"operator": container["image"], **engines}


def _deployment(deployment: Object) -> Object:
    """As OLM makes it: what it watches, and where its Lease is, are known once it is installed."""
    spec: Object = deployment["spec"]
    fields = {"STREAMJOIN_WATCH_NAMESPACES": WATCHED, "STREAMJOIN_LEASE_NAMESPACE": OWN_NAMESPACE}
    (container,) = spec["template"]["spec"]["containers"]
    container["env"] = [
        {"name": each["name"], "valueFrom": {"fieldRef": {"fieldPath": fields[each["name"]]}}} if each["name"] in fields else each
        for each in container["env"]
    ]
    labels = {name: value for name, value in deployment["metadata"]["labels"].items() if not name.startswith("helm.sh/")}
    return {"name": deployment["metadata"]["name"], "label": labels, "spec": spec}


def _rules(objects: list[Object]) -> list[Object]:
    """Within the namespaces that are watched: the ClusterRole's, but for those that are of the cluster, and the Lease's."""
    (lease,) = _of_kind(objects, "Role")
    return [*(rule for rule in _operators_rules(objects) if not _is_of_cluster(rule)), *lease["rules"]]


def _cluster_rules(objects: list[Object]) -> list[Object]:
    return [rule for rule in _operators_rules(objects) if _is_of_cluster(rule)]


def _operators_rules(objects: list[Object]) -> list[Object]:
    (binding,) = _of_kind(objects, "ClusterRoleBinding")
    (role,) = (each for each in _of_kind(objects, "ClusterRole") if each["metadata"]["name"] == binding["roleRef"]["name"])
    return list(role["rules"])


def _is_of_cluster(rule: Object) -> bool:
    return bool({"customresourcedefinitions", "nodes", "namespaces"} & set(rule["resources"]))


def _roles(objects: list[Object]) -> list[Object]:
    """Those of people, which Kubernetes adds to its own view, edit and admin."""
    found = []
    for role in _of_kind(objects, "ClusterRole"):
        aggregated = {name: value for name, value in role["metadata"]["labels"].items() if name.startswith("rbac.authorization.k8s.io/")}
        if aggregated:
            name = role["metadata"]["name"].replace("-placeholder", "")
            found.append({**role, "metadata": {"name": name, "labels": aggregated}})
    return found


def _owned(definition: Object) -> Object:
    """How OpenShift's console shows a kind."""
    spec = definition["spec"]
    version = next(each for each in spec["versions"] if each["storage"])
    schema = version["schema"]["openAPIV3Schema"]
    properties = schema["properties"]
    return {
        "name": definition["metadata"]["name"],
        "version": version["name"],
        "kind": spec["names"]["kind"],
        "displayName": _words(spec["names"]["kind"]),
        "description": schema["description"],
        "specDescriptors": _descriptors(properties["spec"]),
        "statusDescriptors": _descriptors(properties["status"]),
    }


def _descriptors(schema: Object) -> list[Object]:
    found = []
    for name, each in schema["properties"].items():
        shown = {"x-descriptors": [SHOWN[name]]} if name in SHOWN else {}
        found.append({"path": name, "displayName": _words(name), "description": each.get("description", ""), **shown})
    return found


def _words(name: str) -> str:
    """``deadLetter`` as Dead Letter."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[0].upper() + name[1:])


def _write(path: Path, document: Object) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=140))
