"""A real Kubernetes API: etcd and kube-apiserver as processes of this test session, on ports of their own.

The fixture ``api_server`` (tests/conftest.py) starts both in a few seconds; tests that use it carry the mark ``apiserver``
and run one after another in one process. RBAC and the default admission plugins, Pod Security among them, are on. No
controller runs: a pod stays Pending, nothing is deleted because its owner is, and a namespace that is deleted stays
Terminating, so each test takes a namespace of its own (``api_server.namespace()``).

Always holds: both processes end with this one, however it ends; nothing listens but on 127.0.0.1.
"""

from __future__ import annotations

import ctypes
import http.client
import itertools
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import yaml

import kubernetes_programs
from ports import free_ports
from skips import lacks
from waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).resolve().parent.parent

Object = dict[str, Any]

JSON = "application/json"
APPLY, MERGE, JSON_PATCH = "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def program(name: str) -> Path:
    """Where tools/kubernetes_programs.py finds a program. Skips the test where it finds none."""
    found = kubernetes_programs.find(name)
    if found is None:
        pytest.skip(lacks(name, "make kubernetes"))
    return found


AUDITED: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
"""What the API server writes down: all requests of service accounts."""


@dataclass(frozen=True, order=True)
class Asked:
    """A request of a service account, as the API server has written it down."""

    verb: str
    group: str
    resource: str
    """With its subresource: ``streamjoins/status``."""
    namespace: str
    """Empty: of all namespaces, or of none."""
    name: str
    code: int
    is_denied: bool
    """For want of a right, and not by an admission plugin, such as those of quotas, which answer with 403 as well."""


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, body: Object) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', body)}")
        self.status = status
        self.reason: str = body.get("reason", "")
        self.message: str = body.get("message", "")
        self.causes: list[Object] = (body.get("details") or {}).get("causes") or []


@dataclass(frozen=True)
class Client:
    """Requests to the API server as one user. Paths are the API's own, such as ``/api/v1/namespaces/x/pods``."""

    url: str
    ca_file: Path
    token: str
    warnings: list[str] = field(default_factory=list)
    """What the API server warned of, as kubectl would show it."""
    _connections: threading.local = field(default_factory=threading.local, compare=False, repr=False)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def request(self, method: str, path: str, body: Any = None, kind: str = JSON, accept: str = JSON, **query: Any) -> Any:
        """The answer's JSON, or its text where it is none. Raises ApiError."""
        data = None if body is None else json.dumps(body).encode()
        texts = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in query.items()}
        headers = {"Authorization": f"Bearer {self.token}", "Accept": accept, "Content-Type": kind}
        answer, text = self._ask(method, f"{path}{'?' if query else ''}{urlencode(texts)}", data, headers)
        answered = _decoded(text)
        if answer.status >= 400:
            raise ApiError(answer.status, answered if isinstance(answered, dict) else {"message": str(answered)})
        self.warnings.extend(answer.headers.get_all("Warning") or [])
        return answered

    def _ask(self, *request: Any) -> tuple[http.client.HTTPResponse, bytes]:
        """Over the connection of this thread, which stays open: to shake hands takes longer than most answers."""
        if not hasattr(self._connections, "mine"):
            self._connections.mine = http.client.HTTPSConnection(urlsplit(self.url).netloc, timeout=PATIENCE_SECONDS, context=self._context)
        connection: http.client.HTTPSConnection = self._connections.mine
        was_open = connection.sock is not None
        try:
            connection.request(*request)
            answer = connection.getresponse()
            return answer, answer.read()
        except BaseException as error:
            connection.close()
            if not was_open or not isinstance(error, ConnectionError | ssl.SSLEOFError):
                raise
        return self._ask(*request)  # the server may have closed what was idle

    def get(self, path: str, **query: Any) -> Object:
        return self.request("GET", path, **query)

    def create(self, path: str, body: Object, **query: Any) -> Object:
        """``path`` is the collection's."""
        return self.request("POST", path, body, **query)

    def replace(self, path: str, body: Object, **query: Any) -> Object:
        return self.request("PUT", path, body, **query)

    def patch(self, path: str, body: Any, kind: str = MERGE, **query: Any) -> Object:
        return self.request("PATCH", path, body, kind, **query)

    def apply(self, path: str, body: Object, manager: str = "test", **query: Any) -> Object:
        """Server-side apply; ``force=True`` takes fields over from their managers."""
        return self.request("PATCH", path, body, APPLY, fieldManager=manager, **query)

    def delete(self, path: str, **query: Any) -> Object:
        return self.request("DELETE", path, **query)

    def serves(self, path: str) -> bool:
        """Whether a collection can be listed now; not so a moment after its kind was defined."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status in (404, 429, 503):
                return False
            raise
        return True

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


class ApiServer:
    """The running API server. ``admin`` may do everything."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.url = f"https://127.0.0.1:{port}"
        self.ca_file = directory / "certificates" / "apiserver.crt"
        self.admin_token = secrets.token_hex(16)
        self.admin = Client(self.url, self.ca_file, self.admin_token)
        self._numbers = itertools.count()

    @cached_property
    def kubeconfig(self) -> Path:
        """The admin's, for kubectl, helm and client libraries."""
        return self.kubeconfig_for("admin", self.admin_token)

    def kubeconfig_for(self, name: str, token: str, namespace: str = "default") -> Path:
        """A kubeconfig for a token, as from :meth:`token`."""
        path = self.directory / f"{name}.kubeconfig"
        cluster = {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}
        context = {"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "test"}
        written = path.with_suffix(f".{next(self._numbers)}")
        written.touch(mode=0o600)
        written.write_text(yaml.safe_dump({**config, "users": [{"name": name, "user": {"token": token}}]}))
        return written.replace(path)  # at once: who has been given it before may read it at any time

    def namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> str:
        """A new namespace with a service account ``default``, which a controller would make."""
        name = f"{prefix}-{next(self._numbers)}"
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        self.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    def token(self, namespace: str, service_account: str) -> str:
        """A token of a service account, which must exist."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 7200}}
        token: str = self.admin.create(path, request)["status"]["token"]
        return token

    def client(self, namespace: str, service_account: str) -> Client:
        """A client that is that service account."""
        return Client(self.url, self.ca_file, self.token(namespace, service_account))

    @cached_property
    def resizes(self) -> bool:
        """Whether it has ``pods/resize``, as from Kubernetes 1.33 on."""
        return any(each["name"] == "pods/resize" for each in self.admin.get("/api/v1")["resources"])

    def asked(self, namespace: str, service_account: str) -> set[Asked]:
        """All requests of a service account for objects, refused ones too. One that has just been answered may be missing."""
        user = f"system:serviceaccount:{namespace}:{service_account}"
        events = [json.loads(line) for line in (self.directory / "audit.log").read_text().splitlines() if user in line]
        mine = (event for event in events if event["user"]["username"] == user and "resource" in event.get("objectRef", {}))
        return {_asked(event) for event in mine}

    def allowed(
        self, namespace: str, service_account: str, verb: str, resource: str, group: str = "", within: str | None = None, **more: str
    ) -> bool:
        """Whether a service account may do that, in its own namespace or ``within`` another ("" for all namespaces).

        ``resource`` may name a subresource, as in ``streamjoins/status``. ``more``: further attributes, such as name.
        """
        resource, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace if within is None else within, **more}
        user = f"system:serviceaccount:{namespace}:{service_account}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        review = {"spec": {"user": user, "groups": groups, "resourceAttributes": {**attributes, "subresource": subresource}}}
        answer = self.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    def install_crd(self, definition: Object, manager: str = "test") -> None:
        """Applies a CustomResourceDefinition, and waits until its resource is served.

        After a change of one that was there, the old one may answer for some milliseconds more: wait for the difference.
        """
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
        self.admin.apply(path, definition, manager, force=True)
        wait_for("the definition is established", lambda: _established(self.admin.get(path)))
        spec = definition["spec"]
        version = next(version["name"] for version in spec["versions"] if version["storage"])
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        wait_for("the resource is served", lambda: self.admin.serves(path))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._run(program("kubectl"), arguments, stdin, check)

    def helm(self, *arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._run(program("helm"), arguments, stdin, check)

    def _run(self, command: Path, arguments: tuple[str, ...], stdin: str | None, check: bool) -> subprocess.CompletedProcess[str]:
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(home), **direct}
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE_SECONDS}
        done = subprocess.run([command, *arguments], input=stdin, env=environment, **options)
        assert not check or done.returncode == 0, f"{command.name} {' '.join(arguments)}: {done.stderr}"
        return done


def _asked(event: Object) -> Asked:
    of = event["objectRef"]
    resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
    code = event.get("responseStatus", {}).get("code", 0)
    is_denied = event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    return Asked(event["verb"], of.get("apiGroup", ""), resource, of.get("namespace", ""), of.get("name", ""), code, is_denied)


def _established(definition: Object) -> bool:
    conditions = {each["type"]: each for each in (definition.get("status") or {}).get("conditions") or []}
    refused = conditions.get("NonStructuralSchema", {"status": "False"})
    assert refused["status"] == "False", refused
    return conditions.get("Established", {}).get("status") == "True"


@contextmanager
def running(directory: Path, plugins: str = "") -> Iterator[ApiServer]:
    """etcd and kube-apiserver, until this ends. Their files and output are in ``directory``. ``plugins``: more of admission."""
    apiserver, etcd = program("kube-apiserver"), program("etcd")
    for attempt in itertools.count():
        where = directory / f"attempt-{attempt}"
        where.mkdir()
        try:
            started = _started(where, etcd, apiserver, plugins)
        except _EndedError:
            # Another process may have taken a port between the choice and the start.
            if attempt == 2:
                raise
            continue
        server, processes = started
        break
    try:
        yield server
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _EndedError(Exception):
    """A program that should run has ended."""


def _started(directory: Path, etcd: Path, apiserver: Path, plugins: str) -> tuple[ApiServer, list[subprocess.Popen[bytes]]]:
    client, peer, port = free_ports(3)
    server = ApiServer(directory, port)
    (directory / "tokens.csv").write_text(f'{server.admin_token},admin,admin,"system:masters"\n')
    _write_key(directory / "accounts.key")
    storage, member, key = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}", str(directory / "accounts.key")
    etcd_options = {
        "data-dir": directory / "etcd",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
        "listen-client-urls": storage,
        "advertise-client-urls": storage,
        "listen-peer-urls": member,
        "initial-advertise-peer-urls": member,
        "initial-cluster": f"default={member}",
    }
    apiserver_options = {
        "etcd-servers": storage,
        "cert-dir": directory / "certificates",
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": port,
        "authorization-mode": "RBAC",
        "token-auth-file": directory / "tokens.csv",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": "10.0.0.0/24",
        "endpoint-reconciler-type": "none",
        "profiling": "false",
        "allow-privileged": "true",
        "enable-admission-plugins": plugins,
        "audit-policy-file": directory / "audit.yaml",
        "audit-log-path": directory / "audit.log",
    }
    (directory / "audit.yaml").write_text(yaml.safe_dump(AUDITED))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for path, options in ((etcd, etcd_options), (apiserver, apiserver_options)):
            command = [str(path), *(f"--{name}={value}" for name, value in options.items())]
            with (directory / f"{path.name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent))
        wait_for("kube-apiserver is ready", lambda: _ready(server, processes))
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
    return server, processes


def _ready(server: ApiServer, processes: list[subprocess.Popen[bytes]]) -> bool:
    for process in processes:
        if process.poll() is not None:
            name = Path(str(process.args[0])).name  # type: ignore[index]
            log = (server.directory / f"{name}.log").read_text(errors="replace")
            raise _EndedError(f"{name} ended with {process.returncode}: {log[-2000:]}")
    try:
        # The namespace is made by the API server itself a moment after it is ready.
        ready = server.ca_file.exists() and server.admin.request("GET", "/readyz") == "ok"
        return ready and server.admin.exists("/api/v1/namespaces/default")
    except (ApiError, OSError):
        return False


def _write_key(path: Path) -> None:
    """A key to sign service accounts' tokens with."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*pem))
    path.chmod(0o600)


def _die_with_parent() -> None:
    """Linux: the child is killed when this process ends, also when nothing here could end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
