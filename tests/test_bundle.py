"""The operator's bundle for OLM, by the rules of ``operator-sdk bundle validate`` (github.com/operator-framework/api, pkg/validation)."""

from __future__ import annotations

import base64
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import release
from apiserver import program
from chart import of_kind, rendered
from release_steps.bundle import ANNOTATIONS, DEFINITIONS, MODES, PACKAGE, Publisher, build, pack
from release_steps.failure import ReleaseError
from release_steps.packages import Source
from restricted_v2 import refusals
from streamjoin.manifest import parse
from streamjoin_operator.settings import read

pytestmark = pytest.mark.helm

SOURCE = Source(Path(__file__).resolve().parents[1], "0" * 40, 1_767_225_600)
SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CAPABILITIES = {"Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"}
KINDS = {"ClusterServiceVersion", "CustomResourceDefinition", "ClusterRole"}
"""Of the kinds that OLM takes from a bundle, those that are in this one."""
PUBLISHER = Publisher("ghcr.io/owner", "https://github.com/owner/repository", "A Person <person@example.com>")
DIGESTS = {name: f"sha256:{number * 64}" for name, number in (("streamjoin-operator", "1"), ("streamjoin-engine", "2"))}

Object = dict[str, Any]


def made(target: Path, publisher: Publisher = PUBLISHER) -> Path:
    """Of the working tree, which a release would take from a commit."""
    program("helm")
    return build(SOURCE, target, publisher, DIGESTS)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def manifests(bundle: Path) -> list[Object]:
    return [yaml.safe_load(path.read_text()) for path in sorted((bundle / "manifests").iterdir())]


@pytest.fixture
def version(manifests: list[Object]) -> Object:
    found: Object = next(each for each in manifests if each["kind"] == "ClusterServiceVersion")
    return found


def test_annotations_say_where_everything_is_and_the_image_has_them_as_labels(bundle: Path) -> None:
    annotations = yaml.safe_load((bundle / "metadata" / "annotations.yaml").read_text())["annotations"]
    of_bundle = {name.removeprefix("operators.operatorframework.io.bundle."): value for name, value in annotations.items()}
    assert (of_bundle["mediatype.v1"], of_bundle["manifests.v1"], of_bundle["metadata.v1"]) == ("registry+v1", "manifests/", "metadata/")
    assert of_bundle["package.v1"] == PACKAGE
    assert of_bundle["channel.default.v1"] in of_bundle["channels.v1"].split(",")
    lines = (bundle / "bundle.Dockerfile").read_text().splitlines()
    assert lines[0] == "FROM scratch"
    assert [line for line in lines if line.startswith("LABEL")] == [f"LABEL {name}={value}" for name, value in ANNOTATIONS.items()]


def test_all_kinds_are_taken_by_olm_and_nothing_is_too_large(bundle: Path, manifests: list[Object]) -> None:
    assert {each["kind"] for each in manifests} == KINDS
    assert len(of_kind(manifests, "ClusterServiceVersion")) == 1
    for path in (bundle / "manifests").iterdir():
        assert path.stat().st_size < 1 << 20, "of an object of etcd"
    for each in manifests:
        assert SUBDOMAIN.fullmatch(each["metadata"]["name"])
        assert "namespace" not in each["metadata"] or each["kind"] == "ClusterServiceVersion"


def test_the_version_is_named_and_says_what_it_must(version: Object) -> None:
    metadata, spec = version["metadata"], version["spec"]
    assert metadata["name"] == f"{PACKAGE}.v{spec['version']}"
    assert SEMANTIC.fullmatch(spec["version"])
    assert spec["minKubeVersion"] == "1.31.0"
    assert metadata["annotations"]["capabilities"] in CAPABILITIES
    assert metadata["annotations"]["categories"] == "Streaming & Messaging", "of operatorhub.io's list"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["annotations"]["createdAt"])
    for field in ("displayName", "description", "maturity", "keywords", "provider", "maintainers", "links"):
        assert spec[field], field
    assert spec["maintainers"] == [{"name": "A Person", "email": "person@example.com"}]
    (icon,) = spec["icon"]
    assert icon["mediatype"] == "image/svg+xml"
    assert base64.b64decode(icon["base64data"]).startswith(b"<svg")
    assert {mode["type"]: mode["supported"] for mode in spec["installModes"]} == MODES


def test_owned_kinds_are_those_of_the_definitions_with_an_example_each(version: Object, manifests: list[Object]) -> None:
    owned = version["spec"]["customresourcedefinitions"]["owned"]
    definitions = {each["metadata"]["name"]: each for each in of_kind(manifests, "CustomResourceDefinition")}
    assert [each["name"] for each in owned] == list(DEFINITIONS)
    assert set(definitions) == set(DEFINITIONS)
    for each in owned:
        spec = definitions[each["name"]]["spec"]
        assert each["kind"] == spec["names"]["kind"]
        (schema,) = (one["schema"]["openAPIV3Schema"] for one in spec["versions"] if one["name"] == each["version"])
        for part in ("spec", "status"):
            descriptors = each[f"{part}Descriptors"]
            assert [one["path"] for one in descriptors] == list(schema["properties"][part]["properties"])
            assert all(one["displayName"] and one["description"] for one in descriptors)
    examples = json.loads(version["metadata"]["annotations"]["alm-examples"])
    kinds = [(each["kind"], each["apiVersion"].rpartition("/")[2]) for each in examples]
    assert kinds == [(each["kind"], each["version"]) for each in owned]
    [document] = parse(yaml.safe_dump(examples[0]))
    assert document.problems == ()


def test_the_operator_watches_what_olm_says_and_has_the_charts_rights(version: Object) -> None:
    spec = version["spec"]["install"]["spec"]
    assert version["spec"]["install"]["strategy"] == "deployment"
    (deployment,) = spec["deployments"]
    pod = deployment["spec"]["template"]["spec"]
    variables = {each["name"]: each for each in pod["containers"][0]["env"]}
    assert variables["STREAMJOIN_WATCH_NAMESPACES"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['olm.targetNamespaces']"
    assert variables["STREAMJOIN_LEASE_NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert "placeholder" not in json.dumps(version["spec"])
    settings = read({name: each["value"] for name, each in variables.items() if "value" in each})
    assert settings.assigned_users
    assert settings.lease_name == PACKAGE
    assert refusals(pod) == []
    assert deployment["spec"]["selector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    given = [*spec["permissions"], *spec["clusterPermissions"]]
    assert {each["serviceAccountName"] for each in given} == {pod["serviceAccountName"]}

    def allowed(rules: list[Object]) -> set[tuple[str, str, str, str]]:
        return {
            (group, resource, verb, name)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", [""])
        }

    chart = rendered({"fullnameOverride": PACKAGE, "rbac": {"aggregate": False}}, "operators")
    of_chart = [rule for role in of_kind(chart, "Role", "ClusterRole") for rule in role["rules"]]
    assert allowed([rule for each in given for rule in each["rules"]]) == allowed(of_chart)
    of_cluster = {resource for rule in spec["clusterPermissions"][0]["rules"] for resource in rule["resources"]}
    assert of_cluster == {"customresourcedefinitions"}, "all else is granted where joins are watched, and nowhere else"


def test_related_images_are_all_that_is_pulled_and_by_digest_where_that_is_known(version: Object) -> None:
    images = {each["name"]: each["image"] for each in version["spec"]["relatedImages"]}
    assert images == {
        "operator": f"ghcr.io/owner/streamjoin-operator@sha256:{'1' * 64}",
        "engine": f"ghcr.io/owner/streamjoin-engine@sha256:{'2' * 64}",
        "engine-tables": f"ghcr.io/owner/streamjoin-engine-tables:{version['spec']['version']}",
    }
    (deployment,) = version["spec"]["install"]["spec"]["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = {each["value"] for each in container["env"] if each["name"].endswith("_IMAGE")}
    assert {container["image"], *told} == set(images.values())
    assert version["metadata"]["annotations"]["containerImage"] == images["operator"]


def test_the_same_commit_gives_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    one, other = (pack(SOURCE, tmp_path / name, PUBLISHER, DIGESTS) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        packed = {entry.name for entry in archive if entry.isfile()}
    assert packed == {f"bundle/{path.relative_to(bundle)}" for path in bundle.rglob("*") if path.is_file()}


def test_without_a_publisher_nobody_is_made_up(tmp_path: Path) -> None:
    (path,) = (made(tmp_path, Publisher()) / "manifests").glob("*.clusterserviceversion.yaml")
    spec = yaml.safe_load(path.read_text())["spec"]
    assert not {"maintainers", "links"} & set(spec)
    with pytest.raises(ReleaseError, match="maintainer: 'nobody' is not of the form"):
        made(tmp_path, Publisher(maintainer="nobody"))
    assert release.main(["bundle", "--commit", "no-such-commit"]) == 1
