"""The conversion webhook: its answers, its certificate, and what a real API server makes of both versions by it."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import ApiError, ApiServer, running
from converting import Converting, authority, converting
from documents import parsed
from streamjoin.manifest.versions import FIELDS, FORMER, NEWEST
from streamjoin_operator import conversion, crd
from waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).resolve().parent.parent
DEFINITION = parsed((ROOT / "crds" / "streamjoins.streamjoin.dev.yaml").read_text())
Object = dict[str, Any]


def streamjoin(name: str, version: str = FORMER, field: str = "on") -> Object:
    body = yaml.safe_load((ROOT / "examples" / "band.yaml").read_text())
    (join,) = body["spec"]["joins"]
    renamed = {field if key == "condition" else key: value for key, value in join.items()}
    return {**body, "apiVersion": version, "metadata": {"name": name}, "spec": {**body["spec"], "joins": [renamed]}}


def review(objects: Any, version: str = NEWEST) -> Object:
    request = {"uid": "u", "desiredAPIVersion": version, "objects": objects}
    return {"apiVersion": conversion.API_VERSION, "kind": conversion.KIND, "request": request}


def test_an_answer_has_all_objects_in_their_order() -> None:
    answered = conversion.answer(review([streamjoin("a"), streamjoin("b", NEWEST, "condition"), streamjoin("c", FORMER, "condition")]))
    response = answered["response"]
    assert (answered["kind"], response["uid"], response["result"]) == ("ConversionReview", "u", {"status": "Success"})
    assert [each["metadata"]["name"] for each in response["convertedObjects"]] == ["a", "b", "c"]
    assert {each["apiVersion"] for each in response["convertedObjects"]} == {NEWEST}


def test_one_that_cannot_be_converted_is_named_and_none_is_answered() -> None:
    response = conversion.answer(review([streamjoin("a"), {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}]))["response"]
    assert response["convertedObjects"] == []
    assert response["result"] == {"status": "Failed", "message": "Pod p is no StreamJoin; send objects of that kind alone"}


@pytest.mark.parametrize("body", [None, [], {}, {"kind": "ConversionReview"}, review(None), review({}), {**review([]), "apiVersion": "v2"}])
def test_what_is_no_review_is_refused(body: Any) -> None:
    with pytest.raises(conversion.ReviewError, match="must be a ConversionReview of"):
        conversion.answer(body)


def post(server: Converting, text: bytes, path: str = crd.PATH) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(server.directory / "ca.crt"))
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(f"https://localhost:{server.port}{path}", text)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_server_answers_over_https_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with converting(tmp_path) as server:
        status, text = post(server, json.dumps(review([streamjoin("a")] * 2000)).encode())
        assert (status, len(json.loads(text)["response"]["convertedObjects"])) == (200, 2000), "more than a megabyte"
        status, text = post(server, b"{")
        assert (status, text[:23]) == (400, "the request is not JSON")
        assert post(server, b"{}")[0] == 400
        assert post(server, b"{}", "/")[0] == 404


def test_a_certificate_that_is_replaced_is_served_and_a_broken_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "CERTIFICATE_SECONDS", 0.05)
    with converting(tmp_path) as server:

        def served() -> str:
            return ssl.get_server_certificate(("localhost", server.port))

        first = served()
        assert first == (server.directory / "tls.crt").read_text()
        (server.directory / "tls.crt").write_text("not a certificate")
        wait_for("some looks", lambda: served() == first)
        authority(tmp_path / "next")
        for name in ("tls.key", "tls.crt", "ca.crt"):  # in between the two do not belong together
            shutil.copy(tmp_path / "next" / name, server.directory / name)
        second = (tmp_path / "next" / "tls.crt").read_text()
        wait_for("the next is served", lambda: served() == second)
        assert post(server, json.dumps(review([])).encode())[0] == 200


def test_files_that_are_replaced_meanwhile_are_taken_as_they_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority(tmp_path / "one")
    authority(tmp_path / "next")
    used = conversion.Certificate(tmp_path / "one")
    read = tuple((tmp_path / "next" / name).read_bytes() for name in ("tls.crt", "tls.key"))
    monkeypatch.setattr(used, "_texts", lambda: read)
    (tmp_path / "one" / "tls.crt").write_bytes(read[0])  # and its key is still that of the one before
    used.look()
    assert used._read == read


def test_a_certificate_that_cannot_be_read_keeps_an_operator_from_starting(tmp_path: Path) -> None:
    async def serve() -> None:
        async with conversion.serving(str(tmp_path), 0):
            pass

    with pytest.raises(FileNotFoundError):
        asyncio.run(serve())
    authority(tmp_path)
    (tmp_path / "tls.key").write_text("")
    with pytest.raises(ssl.SSLError):
        asyncio.run(serve())


@pytest.mark.apiserver
def test_a_real_api_server_shows_and_takes_both_versions(tmp_path: Path) -> None:
    with running(tmp_path) as server, converting(tmp_path) as webhook:
        server.admin.create("/api/v1/namespaces", {"metadata": {"name": "joins"}})
        server.install_crd(webhook.definition(DEFINITION))
        former, newest = (f"/apis/{version}/namespaces/joins/streamjoins" for version in (FORMER, NEWEST))
        takes_both_versions(server, former, newest)
        an_applied_manifest_of_the_version_before_stays_as_it_is(server, former, newest)
        both_scale(server, former, newest)
        bad_objects_are_named(server, former)


def condition(body: Object) -> dict[str, str]:
    return {name: value for name, value in body["spec"]["joins"][0].items() if name in ("on", "true", "condition")}


def takes_both_versions(server: ApiServer, former: str, newest: str) -> None:
    text = streamjoin("x")["spec"]["joins"][0]["on"]
    for field in ("on", "true", "condition"):
        server.admin.create(former, streamjoin(field, FORMER, field), fieldValidation="Strict")
        assert condition(server.admin.get(f"{former}/{field}")) == {field: text}
        shown = server.admin.get(f"{newest}/{field}")
        assert condition(shown) == {"condition": text}
        assert (FIELDS in shown["metadata"].get("annotations", {})) == (field != "condition")
        assert FIELDS not in server.admin.get(f"{former}/{field}")["metadata"].get("annotations", {})
        server.admin.replace(f"{newest}/{field}", shown, fieldValidation="Strict")
        assert condition(server.admin.get(f"{former}/{field}")) == {field: text}, "also after it was written in the other version"
    assert any("streamjoin.dev/v1alpha1 is deprecated" in warning for warning in server.admin.warnings)
    server.admin.create(newest, streamjoin("new", NEWEST, "condition"), fieldValidation="Strict")
    assert condition(server.admin.get(f"{former}/new")) == {"condition": text}
    assert {body["metadata"]["name"] for body in server.admin.get(former)["items"]} == {"on", "true", "condition", "new"}
    assert {each["apiVersion"] for each in server.stored("/registry/streamjoin.dev/").values()} == {NEWEST}


def an_applied_manifest_of_the_version_before_stays_as_it_is(server: ApiServer, former: str, newest: str) -> None:
    """As tools of continuous delivery have it: applied again, it is no change; a changed text is refused as ever; and it may be renamed."""
    body = streamjoin("applied")
    first = server.admin.apply(f"{former}/applied", body)
    for _ in range(2):
        again = server.admin.apply(f"{former}/applied", body)
        assert (again["metadata"]["generation"], again["spec"]) == (first["metadata"]["generation"], first["spec"])
    other = copy.deepcopy(body)
    other["spec"]["joins"][0]["on"] = "trades.price < quotes.price"
    with pytest.raises(ApiError, match="a join's condition may not change under the same checkpoint"):
        server.admin.apply(f"{former}/applied", other)
    merged = server.admin.patch(f"{former}/applied", {"spec": {"workers": {"max": 7}}})
    assert (condition(merged), merged["spec"]["workers"]["max"]) == (condition(body), 7)
    new = streamjoin("applied", NEWEST, "condition")
    with pytest.raises(ApiError, match=r"spec.joins\[0\].condition: Required value"):
        # A server-side apply first takes back what the same manager has applied before, and that is on, which is the condition.
        server.admin.apply(f"{newest}/applied", new, force=True)
    server.admin.patch(f"{newest}/applied", {"metadata": {"annotations": {FIELDS: None}}})
    for _ in range(2):
        server.admin.apply(f"{newest}/applied", new, force=True)
        for path in (former, newest):
            assert condition(server.admin.get(f"{path}/applied")) == {"condition": condition(body)["on"]}


def both_scale(server: ApiServer, former: str, newest: str) -> None:
    for number, path in ((2, former), (3, newest)):
        server.admin.patch(f"{path}/on/scale", {"spec": {"replicas": number}})
        assert server.admin.get(f"{newest}/on")["spec"]["workers"]["floor"] == number
    server.admin.patch(f"{former}/on/status", {"status": {"workers": 5}})
    assert server.admin.get(f"{newest}/on")["status"]["workers"] == 5


def bad_objects_are_named(server: ApiServer, former: str) -> None:
    both = streamjoin("both")
    both["spec"]["joins"][0]["condition"] = "trades.price < quotes.price"
    with pytest.raises(ApiError, match=r"on, its former name, must not be given too|on and condition are given"):
        server.admin.create(former, both)


@pytest.mark.apiserver
def test_without_the_webhook_the_stored_version_alone_is_there(tmp_path: Path) -> None:
    """Nobody is told of objects that lack their condition: the API server says whom it cannot ask."""
    with running(tmp_path) as server:
        server.admin.create("/api/v1/namespaces", {"metadata": {"name": "joins"}})
        server.install_crd(DEFINITION)
        former, newest = (f"/apis/{version}/namespaces/joins/streamjoins" for version in (FORMER, NEWEST))
        server.admin.create(newest, streamjoin("new", NEWEST, "condition"))
        assert len(server.admin.get(newest)["items"]) == 1
        for ask in (lambda: server.admin.get(f"{former}/new"), lambda: server.admin.create(former, streamjoin("old"))):
            with pytest.raises(ApiError, match=r"conversion webhook for streamjoin.dev/v1(alpha1|beta1), Kind=StreamJoin failed"):
                ask()
        with converting(tmp_path) as webhook:
            server.install_crd(webhook.definition(DEFINITION))
            wait_for("both are there", lambda: server.admin.serves(former))
            assert server.admin.get(f"{former}/new")
