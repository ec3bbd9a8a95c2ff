"""Versions of the manifest: one made of the other, files rewritten, what is deprecated."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.cli import main
from streamjoin.manifest import check, deprecations, parse
from streamjoin.manifest.rewriting import rewritten
from streamjoin.manifest.versions import FIELDS, FORMER, NEWEST, ConversionError, convert

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
RELEASED = sorted((ROOT / "tests" / "releases").glob("*/examples/*.yaml"))
Object = dict[str, Any]

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
REST = st.dictionaries(st.sampled_from(["type", "window", "output", "later"]), VALUES, max_size=3)
NAMES = st.sampled_from(["join", "a", "b", "gone", "ü"])


@st.composite
def resources(draw: st.DrawFn, version: str) -> Object:
    """What an API server may store: names of joins are unique, and each has a condition by one name."""
    former = ["on", "true"] if version == FORMER else []
    joins = []
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        fields = [("name", name), (draw(st.sampled_from(["condition", *former])), draw(st.text(max_size=5))), *draw(REST).items()]
        joins.append(dict(draw(st.permutations(fields))))
    kept = draw(st.dictionaries(NAMES, st.sampled_from(["on", "true"]), min_size=1, max_size=2))
    if version == FORMER:  # of joins that are there it says nothing, as their fields do
        kept = {name: value for name, value in kept.items() if name not in {join["name"] for join in joins}}
    written = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    foreign = st.sampled_from(["", "{}", "[1]", "nonsense", '{"a": "on"}', '{"a":"off"}', '{"b":"on","a":"on"}'])
    annotations = draw(st.dictionaries(st.sampled_from(["other", "another"]), st.text(max_size=3), max_size=1))
    match draw(st.sampled_from(["none", "ours", "foreign"])):
        case "ours" if kept:
            annotations[FIELDS] = written
        case "foreign" if version == NEWEST:
            annotations[FIELDS] = draw(foreign)
    metadata: Object = {"name": "near", "namespace": "joins", "labels": {"a": "b"}}
    if annotations:
        metadata["annotations"] = annotations
    resource: Object = {"apiVersion": version, "kind": "StreamJoin", "metadata": metadata, "status": draw(REST)}
    return resource | {"spec": {"joins": joins, **draw(REST)}} if draw(st.booleans()) or joins else resource


@pytest.mark.parametrize(("version", "other"), [(NEWEST, FORMER), (FORMER, NEWEST)])
@given(data=st.data())
def test_to_another_version_and_back_is_what_was_given(version: str, other: str, data: st.DataObject) -> None:
    resource = data.draw(resources(version))
    before = copy.deepcopy(resource)
    there = convert(resource, other)
    assert resource == before, "the argument stays as it is"
    assert there["apiVersion"] == other
    back = convert(there, version)
    assert back == resource
    orders = [[list(join) for join in each.get("spec", {}).get("joins", [])] for each in (resource, back)]
    assert orders[0] == orders[1], "fields keep their places"


@given(resource=resources(FORMER))
def test_the_newest_version_has_no_former_name_and_all_else(resource: Object) -> None:
    found = convert(resource, NEWEST)
    for before, after in zip(resource.get("spec", {}).get("joins", []), found.get("spec", {}).get("joins", []), strict=True):
        assert {"on" if name in ("on", "true", "condition") else name: value for name, value in before.items()} == {
            "on" if name == "condition" else name: value for name, value in after.items()
        }
    others = [{name: value for name, value in each.items() if name not in ("apiVersion", "metadata", "spec")} for each in (resource, found)]
    assert others[0] == others[1]
    annotations = [dict(each["metadata"].get("annotations") or {}) for each in (resource, found)]
    for each in annotations:
        each.pop(FIELDS, None)
    assert annotations[0] == annotations[1]


def test_renaming_the_condition_in_the_version_before_is_kept() -> None:
    resource = {"apiVersion": FORMER, "kind": "StreamJoin", "metadata": {"name": "near"}, "spec": {"joins": [{"name": "a", "on": "x"}]}}
    stored = convert(resource, NEWEST)
    assert stored["metadata"]["annotations"] == {FIELDS: '{"a":"on"}'}
    seen = convert(stored, FORMER)
    assert seen == resource
    seen["spec"]["joins"][0] = {"name": "a", "condition": "x"}
    assert convert(convert(seen, NEWEST), FORMER) == seen
    assert "annotations" not in convert(seen, NEWEST)["metadata"]


@pytest.mark.parametrize(
    ("resource", "version", "said"),
    [
        ({"apiVersion": FORMER, "kind": "StreamJoin"}, "streamjoin.dev/v2", '"streamjoin.dev/v2" is no version of StreamJoin; ask for'),
        ({"apiVersion": FORMER, "kind": "Pod", "metadata": {"namespace": "a", "name": "b"}}, NEWEST, "Pod a/b is no StreamJoin; send"),
        ({"apiVersion": "v1", "kind": "StreamJoin", "metadata": {"name": "b"}}, NEWEST, 'StreamJoin b: apiVersion: "v1" is not known;'),
        ("text", NEWEST, '"text" is no StreamJoin'),
        (None, NEWEST, "null is no StreamJoin"),
        (
            {"apiVersion": FORMER, "kind": "StreamJoin", "metadata": {"name": "b"}, "spec": {"joins": [{}, {"on": "x", "condition": "y"}]}},
            NEWEST,
            "StreamJoin b: spec.joins[1]: on and condition are given; keep condition alone",
        ),
        ({"apiVersion": FORMER, "kind": "StreamJoin", "spec": {"joins": [{"on": "x", "true": "y"}]}}, NEWEST, "without a name: spec.joins"),
    ],
)
def test_what_cannot_be_converted_is_named(resource: object, version: str, said: str) -> None:
    with pytest.raises(ConversionError) as refused:
        convert(resource, version)
    assert said in str(refused.value)


ODD = [{}, {"metadata": None}, {"spec": None}, {"spec": {"joins": [1, None]}}, {"metadata": {"annotations": None}}]


@pytest.mark.parametrize("body", ODD)
def test_what_an_api_server_would_not_store_is_converted_all_the_same(body: Object) -> None:
    resource = {"apiVersion": FORMER, "kind": "StreamJoin", **body}
    assert convert(convert(resource, NEWEST), FORMER) == resource


@pytest.mark.parametrize("path", [*EXAMPLES, *RELEASED], ids=lambda path: path.name)
def test_both_versions_of_a_manifest_mean_the_same(path: Path) -> None:
    for resource in yaml.safe_load_all(path.read_text()):
        if not resource or resource.get("kind") != "StreamJoin":
            continue
        newest, former = (check(convert(resource, version)) for version in (NEWEST, FORMER))
        assert newest.problems == ()
        assert newest.manifest == former.manifest
        assert {remark.field for remark in newest.remarks} <= {remark.field for remark in former.remarks}


FORMER_TEXT = (ROOT / "examples" / "band.yaml").read_text().replace(NEWEST, FORMER).replace(" condition:", " on:")


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
def test_a_rewritten_file_differs_in_those_words_alone_and_means_the_same(path: Path) -> None:
    text = path.read_text()
    new = rewritten(text)
    changed = [(old, now) for old, now in zip(text.splitlines(), new.splitlines(), strict=True) if old != now]
    (version, newest), (on, condition) = changed
    assert newest == version.replace(FORMER, NEWEST)
    assert condition == re.sub(r'^( *- |  +)("?)on\b', r"\1\2condition", on)
    (before,), (after,) = parse(text), parse(new)
    assert before.manifest == after.manifest
    assert after.deprecated == ()
    assert before.deprecated != ()
    assert rewritten(new) == new


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{apiVersion: 'A', kind: StreamJoin, spec: {joins: [{\"on\": x}, {on : y}]}}", None),
        ('{"apiVersion": "A", "kind": "StreamJoin", "spec": {"joins": [{"true": "on"}]}}', None),
        ("apiVersion: A\r\nkind: StreamJoin # on\r\nspec:\r\n  joins:\r\n  - on: |\r\n      on: x\r\n", None),
        ("# on: x\n---\nkind: Pod\napiVersion: A\non: x\n---\nkind: StreamJoin\napiVersion: A\nspec: {joins: [{on: x}]}\n", "Pod"),
        ("kind: StreamJoin\napiVersion: A\nspec: {joins: [&j {on: x}, *j, {<<: *j, name: b}]}\n", None),
        ("kind: StreamJoin\napiVersion: A\nspec:\n  joins:\n  - ? on\n    : x # ü on\n", None),
    ],
)
def test_text_of_any_shape_is_rewritten(text: str, wanted: str | None) -> None:
    text = text.replace("A", FORMER)
    new = rewritten(text)
    for document in yaml.safe_load_all(new):
        if document["kind"] == "Pod":
            assert document["apiVersion"] == FORMER
            continue
        assert document["apiVersion"] == NEWEST
        assert all("condition" in join and not {"on", "true", True} & set(join) for join in document["spec"]["joins"])
    assert len(new.splitlines()) == len(text.splitlines())
    assert new.count("ü") == text.count("ü")


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "x", "kind: StreamJoin", "\t", "apiVersion: [1]\nkind: StreamJoin"])
def test_what_is_no_manifest_is_not_rewritten(text: str) -> None:
    assert rewritten(text) == text


def test_convert_writes_files_in_place_and_prints_others(tmp_path: Path) -> None:
    one, two, bad = (tmp_path / f"{name}.yaml" for name in ("one", "two", "bad"))
    one.write_bytes(b"\xef\xbb\xbf" + FORMER_TEXT.encode())
    one.chmod(0o640)
    two.write_text((ROOT / "examples" / "band.yaml").read_text())
    bad.write_text(FORMER_TEXT.replace(" on:", " on: 5 #"))
    cli = CliRunner()
    printed = cli.invoke(main, ["convert", str(one)])
    assert (printed.exit_code, printed.stdout) == (0, (ROOT / "examples" / "band.yaml").read_text())
    done = cli.invoke(main, ["convert", "--write", str(one), str(two), str(bad), str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert done.stdout == f"{one}: v1beta1\n{two}: is v1beta1 already\n"
    assert "bad.yaml:45: spec.joins[0].condition: 5 must be text" in done.stderr
    assert "none.yaml: cannot be read" in done.stderr
    assert one.read_bytes() == b"\xef\xbb\xbf" + (ROOT / "examples" / "band.yaml").read_bytes()
    assert one.stat().st_mode & 0o777 == 0o640
    assert bad.read_text() == FORMER_TEXT.replace(" on:", " on: 5 #")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "one.yaml", "two.yaml"]
    back = cli.invoke(main, ["convert", "--to", "v1alpha1", str(two)])
    assert back.stdout == two.read_text().replace(NEWEST, FORMER)
    assert cli.invoke(main, ["convert", str(one), str(two)]).exit_code == 2
    assert cli.invoke(main, ["convert", "--write", "-"]).exit_code == 2
    from_input = cli.invoke(main, ["convert", "-"], input=FORMER_TEXT.encode())
    assert from_input.stdout == two.read_text()


def test_validate_run_and_plan_read_the_version_before_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(FORMER_TEXT)
    cli = CliRunner()
    for command in (["validate", str(path)], ["plan", str(path), "--tasks", "2"]):
        done = cli.invoke(main, command)
        assert done.exit_code == 0, done.output
        assert f"old.yaml:5: warning: apiVersion: {deprecations.VERSION.message}" in done.stderr
        assert f"old.yaml:45: warning: spec.joins[0].on: {deprecations.ON.message}" in done.stderr


def test_the_newest_version_has_nothing_that_is_deprecated() -> None:
    for path in EXAMPLES:
        for document in parse(path.read_text()):
            assert document.deprecated == (), path


def test_each_deprecation_has_a_line_in_the_documentation() -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text()
    begin, end = "<!-- deprecations: streamjoin.manifest.deprecations.table() -->\n", "<!-- end of deprecations -->"
    assert text.split(begin)[1].split(end)[0].strip() == deprecations.table().strip()
