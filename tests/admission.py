"""An admission webhook of a real API server, as service meshes and policies bring them: what a test makes of an object that is written."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import http_stub
from apiserver import ApiServer
from certificates import Authority

Object = dict[str, Any]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@contextmanager
def webhook(
    server: ApiServer, directory: Path, namespace: str, group: str, resource: str, change: Callable[[Object], list[Object] | str]
) -> Iterator[None]:
    """Asked of each object of a resource that is created or updated in a namespace; ``change`` gives a JSON patch, or why it is refused."""

    class Handler(http_stub.Handler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            made = change(request["object"])
            answer: Object = {"uid": request["uid"], "allowed": not isinstance(made, str)}
            if isinstance(made, str):
                answer["status"] = {"message": made, "code": 403}
            else:
                answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(made).encode()).decode()}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
            self.answer(200, json.dumps(review).encode(), {"Content-Type": "application/json"})

    Authority(directory).issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    served = http_stub.Served(Handler, context)
    authority = base64.b64encode((directory / "ca.crt").read_bytes()).decode()
    port = served.address.rsplit(":", 1)[1]
    configuration: Object = {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": f"{namespace}.test.example",
                "clientConfig": {"url": f"https://localhost:{port}/", "caBundle": authority},
                "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE", "UPDATE"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    try:
        server.admin.create(WEBHOOKS, configuration)
        yield
    finally:
        server.admin.delete(f"{WEBHOOKS}/{namespace}")
        served.close()
