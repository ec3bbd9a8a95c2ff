"""Fields that need packages of an extra: what an engine without them says; and the larger images, which the operator takes."""

from __future__ import annotations

import copy
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement

from operator_parts import SPEC, Object, streamjoin
from streamjoin.api.join import Join
from streamjoin.cli import main
from streamjoin.manifest import ManifestError, load
from streamjoin.manifest.connector import Connector
from streamjoin.manifest.connectors.delta import DELTA
from streamjoin.manifest.connectors.iceberg import ICEBERG
from streamjoin.manifest.connectors.kafka import PROTOBUF
from streamjoin.manifest.fields import parts_of
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.packages import TABLES, needed_packages
from streamjoin_operator import children
from streamjoin_operator.derived import derive
from streamjoin_operator.pod_templates import cleanup_template, executor_pod, image_for
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings

CATALOG = {"type": "rest", "uri": "http://catalog"}
SETTINGS = Settings(engine_image="engine:1", tables_image="engine-tables:1", spark_image="engine-spark:1")


def with_table(*places: str) -> Object:
    """A spec with tables at these places: ``streams.0.delta``, ``joins.1.iceberg``."""
    spec = copy.deepcopy(SPEC)
    spec["joins"].append({**copy.deepcopy(spec["joins"][0]), "name": "other"})
    spec["joins"][1]["output"]["sink"] = {"files": {"path": "s3://bucket/others", "format": "parquet"}}
    for place in places:
        part, index, kind = place.split(".")
        one = {kind: {"path": f"s3://bucket/{place}"} if kind == "delta" else {"table": "a.b", "catalog": CATALOG}}
        if part == "streams":
            spec[part][int(index)]["source"] = one
        else:
            spec[part][int(index)]["output"]["sink"] = one
    return spec


@pytest.mark.parametrize(
    ("places", "needed"),
    [
        ((), {}),
        (("streams.1.delta",), {"spec.streams[1].source.delta": DELTA}),
        (("streams.0.iceberg",), {"spec.streams[0].source.iceberg": ICEBERG}),
        (("joins.1.delta",), {"spec.joins[1].output.sink.delta": DELTA}),
        (
            ("joins.0.iceberg", "streams.0.delta"),
            {"spec.streams[0].source.delta": DELTA, "spec.joins[0].output.sink.iceberg": ICEBERG},
        ),
    ],
)
def test_the_fields_that_need_a_package_are_named_and_have_the_image_changed(places: tuple[str, ...], needed: dict[str, str]) -> None:
    body = streamjoin(**with_table(*places))
    derived = derive(body)
    assert derived.manifest is not None
    assert derived.memory is not None
    assert needed_packages(derived.manifest) == needed
    resource = Resource.of(body)
    wanted = "engine-tables:1" if needed else "engine:1"
    driver = children.deployment(resource, derived.manifest, derived.memory, SETTINGS, None)["spec"]["template"]
    pods = [driver, executor_pod(resource, derived.manifest, SETTINGS)]
    pods.append(cleanup_template(resource, derived.manifest, "{}", SETTINGS))
    containers = [pod["spec"]["containers"][0] for pod in pods]
    assert [container["image"] for container in containers] == [wanted] * 3
    assert {"name": "STREAMJOIN_IMAGE", "value": wanted} in containers[0]["env"], "executors are made of it"


def test_an_image_that_the_manifest_names_is_taken_with_tables_and_without() -> None:
    for places in ((), ("joins.0.delta",)):
        body = streamjoin(**with_table(*places), image="mine:1")
        derived = derive(body)
        assert derived.manifest is not None
        assert derived.memory is not None
        driver = children.deployment(Resource.of(body), derived.manifest, derived.memory, SETTINGS, None)["spec"]["template"]
        assert driver["spec"]["containers"][0]["image"] == "mine:1"


@pytest.mark.parametrize("place", ["source", "sink"])
def test_a_join_with_spark_runs_in_the_image_that_has_all_of_it_and_has_memory_for_it(place: str) -> None:
    spec = with_table("joins.0.delta")
    if place == "source":
        spec["streams"][0]["source"] = {"spark": {"format": "rate"}}
    else:
        spec["joins"][1]["output"]["sink"] = {"spark": {"format": "orc", "options": {"path": "s3a://bucket/pairs"}}}
    body = streamjoin(**spec)
    derived = derive(body)
    assert derived.problem is None
    assert derived.manifest is not None
    assert derived.memory is not None
    driver = children.deployment(Resource.of(body), derived.manifest, derived.memory, SETTINGS, None)["spec"]["template"]
    container = driver["spec"]["containers"][0]
    assert container["image"] == "engine-spark:1"
    assert container["resources"]["limits"] == {"memory": "4Gi"}


CONNECTORS = {part for part in parts_of(Manifest) if issubclass(part, Connector)}
PACKAGES = {part.package for part in CONNECTORS if part.package is not None} | {PROTOBUF}


def test_every_table_that_a_manifest_may_have_is_known_to_need_a_package() -> None:
    tables = {part for part in CONNECTORS if part.__name__.startswith(("Delta", "Iceberg"))}
    assert tables == {part for part in CONNECTORS if part.package is not None and part.package.extra == TABLES}


def test_every_package_is_of_the_extra_that_the_remedy_names() -> None:
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in PACKAGES:
        assert package.name in {Requirement(each).name for each in extras[package.extra]}
        assert importlib.util.find_spec(package.module) is not None


@pytest.fixture
def join(tmp_path: Path) -> Path:
    """A manifest of a made-up stream, an Iceberg table and a Delta table to write to."""
    spec = with_table("streams.1.iceberg", "joins.0.delta")
    spec["streams"][0]["source"] = {
        "generator": {"rate": {"constant": 1}, "columns": {"id": {"sequence": {}}, "amount": {"uniform": {"min": 0, "max": 1}}}}
    }
    spec["joins"] = spec["joins"][:1]
    spec["checkpoint"] = {"location": str(tmp_path / "state")}
    body = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "one"}, "spec": spec}
    path = tmp_path / "join.yaml"
    path.write_text(yaml.safe_dump(body))
    load(path.read_text())
    return path


IN_PODS = "in pods remove spec.image, or name streamjoin-engine-tables there"
REMEDY = f"{IN_PODS}; elsewhere pip install 'streamjoin[tables]', and in a clone make setup-tables"
SAID = [
    f"spec.streams[1].source.iceberg: needs the package pyiceberg, which is not installed; {REMEDY}",
    f"spec.joins[0].output.sink.delta: needs the package deltalake, which is not installed; {REMEDY}",
]


STORE = {"cassandra": {"hosts": "nowhere", "keyspace": "k"}}
OTHERS = [
    ("cassandra", "cassandra-driver", "spec.joins[0].output.snapshots.store.cassandra"),
    ("protobuf", "grpcio-tools", "spec.streams[0].source.kafka.format"),
]


@pytest.mark.parametrize(("extra", "package", "field"), OTHERS)
def test_what_every_image_has_and_a_laptop_may_lack_is_said_with_the_remedy(
    extra: str, package: str, field: str, join: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = yaml.safe_load(join.read_text())
    body["spec"]["streams"][1]["source"] = body["spec"]["streams"][0]["source"]
    output = body["spec"]["joins"][0]["output"]
    output["sink"] = {"files": {"path": str(join.parent / "out"), "format": "parquet"}}
    if extra == "cassandra":
        output["snapshots"] = {"every": "60s", "store": STORE}
    else:
        registry = {"url": "http://registry"}
        kafka = {"bootstrapServers": "nowhere:9092", "topic": "t", "format": "protobuf", "schemaRegistry": registry}
        body["spec"]["streams"][0]["source"] = {"kafka": kafka}
    derived = derive(streamjoin(**body["spec"]))
    assert derived.manifest is not None
    assert image_for(derived.manifest, SETTINGS) == "engine:1"
    join.write_text(yaml.safe_dump(body))
    for each in PACKAGES:
        monkeypatch.setitem(sys.modules, each.module, None)
    done = CliRunner().invoke(main, ["run", str(join), "--runner", "inline"])
    assert done.exit_code == 2
    remedy = f"in pods remove spec.image, or name streamjoin-engine there; elsewhere pip install 'streamjoin[{extra}]'"
    assert done.stderr.splitlines() == [
        f"{join}: {field}: needs the package {package}, which is not installed; {remedy}, and in a clone make setup-{extra}"
    ]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the engine's image."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)


@pytest.mark.usefixtures("without")
def test_a_run_without_the_packages_names_each_field_and_the_remedy(join: Path) -> None:
    done = CliRunner().invoke(main, ["run", str(join), "--runner", "inline"])
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [f"{join}: {said}" for said in SAID]
    with pytest.raises(ManifestError, match="needs the package pyiceberg"):
        Join.read(join).run(runner="inline")
    assert not (join.parent / "state").exists()


@pytest.mark.usefixtures("without")
def test_results_in_a_table_are_not_read_without_its_package(join: Path) -> None:
    with pytest.raises(ManifestError) as refused:
        Join.read(join).results()
    assert [str(problem) for problem in refused.value.problems] == SAID[1:]


@pytest.mark.usefixtures("without")
def test_a_manifest_for_another_engine_is_valid_and_for_the_image_of_this_pod_it_is_not(
    join: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(main, ["validate", "--offline", str(join)]).exit_code == 0
    monkeypatch.setenv("STREAMJOIN_IMAGE", "engine:1")
    done = CliRunner().invoke(main, ["validate", str(join)])
    assert done.exit_code == 2
    assert done.stdout.splitlines() == [f"{join}: {said}" for said in SAID]


@pytest.mark.usefixtures("without")
def test_state_is_removed_without_the_packages(join: Path) -> None:
    (join.parent / "state").mkdir()
    assert CliRunner().invoke(main, ["purge", str(join)]).exit_code == 0


def test_with_the_packages_nothing_is_missing(join: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMJOIN_IMAGE", "engine-tables:1")
    assert CliRunner().invoke(main, ["validate", "--offline", str(join)]).exit_code == 0
