"""In which version StreamJoins are stored: an upgrade from a release that knew v1alpha1 alone, the way back, and crashes in between.

On a real API server, whose etcd is looked into; with the chart's own objects, and an operator that has no more rights than they give.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import ApiError, ApiServer, program, running
from converting import Converting, converting
from documents import parsed
from operator_cluster import Running
from operator_parts import contained
from ports import free_ports
from service_proxy import ServiceProxy
from streamjoin.manifest.versions import FORMER, NEWEST
from streamjoin_operator import storage_version
from streamjoin_operator.access import from_kubeconfig
from streamjoin_operator.api import Api
from streamjoin_operator.api import ApiError as Refused
from streamjoin_operator.settings import Settings
from streamjoin_operator.storage_version import NotMigratedError, StorageVersion
from waiting import wait_for

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "streamjoin-operator"
RELEASE = max(path for path in (ROOT / "tests" / "releases").iterdir() if path.is_dir())
NAME = "streamjoins.streamjoin.dev"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
OPERATORS, JOINS = "operators", "joins"
ACCOUNT = "sj-streamjoin-operator"
PATHS = {version: f"/apis/{version}/namespaces/{JOINS}/streamjoins" for version in (FORMER, NEWEST)}
SHORT = {version: version.split("/")[1] for version in PATHS}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    program("helm")
    directory = tmp_path_factory.mktemp("stored")
    with ServiceProxy(directory) as proxy, running(directory, egress=proxy.configuration) as started:
        started.proxy = proxy
        for name in (OPERATORS, JOINS):
            started.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield started


@pytest.fixture(autouse=True)
def _one_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not wait for others to notice."""
    monkeypatch.setattr(storage_version, "SETTLE_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _without_definitions(server: ApiServer) -> Iterator[None]:
    yield
    # To delete what is stored in another version, the API server would ask for a conversion.
    server.admin.patch(DEFINITION, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    server.admin.delete(DEFINITION)
    wait_for("the definition is gone", lambda: not server.admin.exists(DEFINITION))


def released(chart: Path = CHART) -> Object:
    return dict(parsed((chart / "files" / f"{NAME}.yaml").read_text()))


def examples() -> dict[str, Object]:
    found = [yaml.safe_load(path.read_text()) for path in sorted((RELEASE / "examples").glob("*.yaml"))]
    return {body["metadata"]["name"]: body for body in found[:4]}


def versions_in_etcd(server: ApiServer) -> dict[str, str]:
    return {body["metadata"]["name"]: body["apiVersion"] for body in server.stored("/registry/streamjoin.dev/").values()}


def stored_versions(server: ApiServer) -> list[str]:
    return list(server.admin.get(DEFINITION)["status"]["storedVersions"])


def specs(server: ApiServer, version: str) -> dict[str, Object]:
    """By name; as soon as the API server has taken a change of the definition up."""
    answers: list[list[Object]] = []

    def is_answered() -> bool:
        try:
            answers.append(server.admin.get(PATHS[version])["items"])
        except ApiError as error:
            # So any API server answers for a moment, and clients ask again by themselves.
            if str(error) != "429 TooManyRequests: storage is (re)initializing":
                raise
        return bool(answers)

    wait_for("an answer", is_answered)
    return {body["metadata"]["name"]: body["spec"] for body in answers[0]}


class Reader:
    """Reads all objects in v1alpha1 all the while, as an operator of the release before and its users do."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self._stop = server, threading.Event()
        self._before = specs(server, FORMER)
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                found = specs(self._server, FORMER)
            except ApiError as error:
                self.failures.append(str(error))
                continue
            if not all(contained(spec, found.get(name)) for name, spec in self._before.items()):
                self.failures.append(f"another content: {found}")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert kind is not None or self.failures[:3] == []


@contextlib.contextmanager
def operating(server: ApiServer, directory: Path, wanted: str) -> Iterator[Running]:
    """An operator of this release, as the chart's service account, that converts and migrates."""
    way = from_kubeconfig(server.kubeconfig_for("released", server.token(OPERATORS, ACCOUNT)))
    conversions = {"conversion_tls_directory": str(directory), "conversion_port": server.proxy.port}
    operator = Running(way, Settings(port=0, storage_version=wanted, **conversions))
    try:
        yield operator
        assert operator.failure is None
    finally:
        operator.close()


def helm(server: ApiServer, *arguments: str, check: bool = True) -> Any:
    return server.helm(*arguments, "--namespace", OPERATORS, check=check)


def secret(server: ApiServer) -> dict[str, bytes]:
    """The chart's, with its certificate."""
    data = server.admin.get(f"/api/v1/namespaces/{OPERATORS}/secrets/{ACCOUNT}-convert")["data"]
    return {name: base64.b64decode(value) for name, value in data.items()}


def mounted(server: ApiServer, directory: Path) -> None:
    """What the operator's pod would have of it."""
    for name in ("tls.crt", "tls.key"):
        (directory / name).write_bytes(secret(server)[name])


def test_from_the_release_before_to_this_one_and_back_all_stay_readable(server: ApiServer, tmp_path: Path) -> None:
    (server.proxy.port,) = free_ports(1)
    helm(server, "install", "sj", str(RELEASE / "chart"))
    wait_for("StreamJoins are served", lambda: server.admin.serves(PATHS[FORMER]))
    for body in examples().values():
        server.admin.create(PATHS[FORMER], body, fieldValidation="Strict")
    before = specs(server, FORMER)
    with Reader(server):
        helm(server, "upgrade", "sj", str(CHART))
        wait_for("the new definition is there", lambda: "conversion" in server.admin.get(DEFINITION)["spec"])
        webhook = server.admin.get(DEFINITION)["spec"]["conversion"]["webhook"]["clientConfig"]
        assert webhook["service"] == {"namespace": OPERATORS, "name": f"{ACCOUNT}-convert", "path": "/convert", "port": 443}
        # Nobody converts yet. The operator of the release before and its users need nobody to.
        assert stored_versions(server) == ["v1alpha1"]
        name = next(iter(before))
        server.admin.patch(f"{PATHS[FORMER]}/{name}/status", {"status": {"workers": 2}})
        server.admin.patch(f"{PATHS[FORMER]}/{name}", {"metadata": {"labels": {"written": "meanwhile"}}})
        with pytest.raises(ApiError, match="conversion webhook"):
            specs(server, NEWEST)
        mounted(server, tmp_path)

        with operating(server, tmp_path, "v1beta1") as operator:
            operator.await_ready()
            wait_for("all are stored anew", lambda: stored_versions(server) == ["v1beta1"])
            assert set(versions_in_etcd(server).values()) == {NEWEST}
            shown = specs(server, NEWEST)
            for each, spec in before.items():
                assert shown[each]["joins"][0]["condition"] == spec["joins"][0]["on"]
                assert "on" not in shown[each]["joins"][0]
            certificate = secret(server)
            helm(server, "upgrade", "sj", str(CHART))
            assert stored_versions(server) == ["v1beta1"], "another upgrade leaves it so"
            assert secret(server) == certificate, "and keeps the certificate"
            assert server.admin.get(f"{PATHS[NEWEST]}/{name}")["status"]["workers"] is not None
            refused = helm(server, "rollback", "sj", "1", check=False)
            assert "status.storedVersions" in refused.stderr, "the API server does not let objects be lost"

    # The operator is gone: what is stored so can be read and written. What is asked for otherwise may be read from the API server's cache.
    assert specs(server, NEWEST).keys() == before.keys()
    server.admin.patch(f"{PATHS[NEWEST]}/{name}", {"metadata": {"labels": {"written": "later"}}})
    with pytest.raises(ApiError, match="conversion webhook"):
        server.admin.patch(f"{PATHS[FORMER]}/{name}", {"metadata": {"labels": {"written": "never"}}})

    helm(server, "upgrade", "sj", str(CHART), "--set", "crds.storageVersion=v1alpha1", "--set", "conversion.serial=2")
    another = secret(server)
    assert another["tls.crt"] != certificate["tls.crt"]
    trusted = server.admin.get(DEFINITION)["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
    assert base64.b64decode(trusted) == another["ca.crt"]
    assert another["ca.crt"].endswith(certificate["ca.crt"].strip()), "the pod has the certificate before for some time"
    with operating(server, tmp_path, "v1alpha1"):
        wait_for("all are stored as before", lambda: stored_versions(server) == ["v1alpha1"])
    assert set(versions_in_etcd(server).values()) == {FORMER}
    helm(server, "rollback", "sj", "1")
    wait_for("the old definition is served", lambda: len(server.admin.get(DEFINITION)["spec"]["versions"]) == 1)
    wait_for("and alone", lambda: not server.admin.serves(PATHS[NEWEST]))
    after = specs(server, FORMER)
    for each, spec in before.items():
        assert after[each] == spec
    helm(server, "uninstall", "sj")


class CrashError(Exception):
    pass


def migrate(server: ApiServer, wanted: str, crash_at: int | None = None) -> list[str]:
    """The steps of a migration; the one of that number is not taken, nor any after it."""
    steps: list[str] = []

    def on_step(step: str) -> None:
        if len(steps) == crash_at:
            raise CrashError
        steps.append(step)

    async def run() -> None:
        api = Api(from_kubeconfig(server.kubeconfig))
        try:
            await StorageVersion(api, wanted, on_step=on_step).migrate()
        finally:
            await api.close()

    with contextlib.suppress(CrashError):
        asyncio.run(run())
    return steps


def install(server: ApiServer, webhook: Converting, stored: str) -> None:
    definition = webhook.definition(released())
    for version in definition["spec"]["versions"]:
        version["storage"] = version["name"] == stored
    server.install_crd(definition)


def settled(server: ApiServer, stored: str) -> None:
    """The API server has taken the change of the definition up."""
    body = next(iter(examples().values()))

    def is_stored_so() -> bool:
        name = body["metadata"]["name"]
        server.admin.patch(f"{PATHS[NEWEST]}/{name}", {"metadata": {"annotations": {"looked": None}}})
        return SHORT[versions_in_etcd(server)[name]] == stored

    wait_for("it is stored so", is_stored_so)


@pytest.mark.parametrize(("stored", "wanted"), [("v1alpha1", "v1beta1"), ("v1beta1", "v1alpha1")])
def test_a_crash_at_any_step_forgets_no_version_that_is_stored_and_the_next_attempt_ends_it(
    server: ApiServer, tmp_path: Path, stored: str, wanted: str
) -> None:
    with converting(tmp_path) as webhook:
        install(server, webhook, stored)
        for body in examples().values():
            server.admin.create(PATHS[FORMER], body, fieldValidation="Strict")
        before = specs(server, FORMER)
        crash_at = 0
        while True:
            steps = migrate(server, wanted, crash_at)
            in_etcd = {SHORT[version] for version in versions_in_etcd(server).values()}
            assert in_etcd <= set(stored_versions(server)), steps
            assert specs(server, FORMER) == before
            if steps[-1:] == ["store the wanted version"]:
                settled(server, wanted)
            if len(steps) < crash_at or stored_versions(server) == [wanted]:
                break
            crash_at = crash_at + 1 if len(steps) == crash_at else crash_at
        assert stored_versions(server) == [wanted]
        assert {SHORT[version] for version in versions_in_etcd(server).values()} == {wanted}
        assert crash_at >= len(before) + 1
        assert migrate(server, wanted) == [], "nothing is left to do"


def test_while_nobody_converts_nothing_is_changed(server: ApiServer) -> None:
    definition = released()
    for version in definition["spec"]["versions"]:
        version["storage"] = version["name"] == "v1alpha1"
    server.install_crd(definition)
    for body in examples().values():
        server.admin.create(PATHS[FORMER], body, fieldValidation="Strict")
    with pytest.raises(Refused, match="conversion webhook"):
        migrate(server, "v1beta1")
    assert [(version["name"], version["storage"]) for version in server.admin.get(DEFINITION)["spec"]["versions"]] == [
        ("v1beta1", False),
        ("v1alpha1", True),
    ]
    assert stored_versions(server) == ["v1alpha1"]


def test_a_definition_that_lacks_the_version_is_left_alone(server: ApiServer) -> None:
    server.install_crd(released(RELEASE / "chart"))
    with pytest.raises(NotMigratedError, match="the definition does not serve v1beta1; apply that of the operator's release"):
        migrate(server, "v1beta1")
