"""Joins with tables run in an image of their own: who needs it, what the operator takes, and what an engine without its packages says."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from click.testing import CliRunner

from operator_parts import SPEC, Object, streamjoin
from streamjoin.api.join import Join
from streamjoin.cli import main
from streamjoin.manifest import ManifestError, load
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.packages import PACKAGES, needed_packages
from streamjoin.manifest.part import Part
from streamjoin_operator import children
from streamjoin_operator.derived import derive
from streamjoin_operator.pod_templates import cleanup_template, executor_pod
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings

CATALOG = {"type": "rest", "uri": "http://catalog"}
SETTINGS = Settings(engine_image="engine:1", tables_image="engine-tables:1")


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
        (("streams.1.delta",), {"spec.streams[1].source.delta": "deltalake"}),
        (("streams.0.iceberg",), {"spec.streams[0].source.iceberg": "pyiceberg"}),
        (("joins.1.delta",), {"spec.joins[1].output.sink.delta": "deltalake"}),
        (
            ("joins.0.iceberg", "streams.0.delta"),
            {"spec.streams[0].source.delta": "deltalake", "spec.joins[0].output.sink.iceberg": "pyiceberg"},
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
    pods = [driver, executor_pod(resource, derived.manifest, derived.memory, SETTINGS)]
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


def models(kind: Any, seen: set[type[Part]]) -> Iterator[type[Part]]:
    """All parts that a manifest may have."""
    if isinstance(kind, type) and issubclass(kind, Part) and kind not in seen:
        seen.add(kind)
        yield kind
        for field in kind.model_fields.values():
            yield from models(field.annotation, seen)
    for argument in get_args(kind):
        yield from models(argument, seen)


def test_every_table_that_a_manifest_may_have_is_known_to_need_a_package() -> None:
    tables = {part for part in models(Manifest, set()) if part.__name__.startswith(("Delta", "Iceberg"))}
    assert tables == set(PACKAGES)


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


REMEDY = "in pods remove spec.image, or name streamjoin-engine-tables there; elsewhere pip install 'streamjoin[engine]'"
SAID = [
    f"spec.streams[1].source.iceberg: needs the package pyiceberg, which is not installed; {REMEDY}",
    f"spec.joins[0].output.sink.delta: needs the package deltalake, which is not installed; {REMEDY}",
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
def test_a_manifest_for_another_engine_is_valid_and_for_the_image_of_this_pod_it_is_not(
    join: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(main, ["validate", str(join)]).exit_code == 0
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
    assert CliRunner().invoke(main, ["validate", str(join)]).exit_code == 0
