"""Writes for Prometheus which pods are to be scraped, every two seconds: Debian's Prometheus does not ask Kubernetes itself.

discover.py TARGETS    a file for file_sd_configs
"""

import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 2.0
ANNOTATION = "prometheus.io/"


def main() -> None:
    target = Path(sys.argv[1])
    while True:
        try:
            text = json.dumps(targets(pods()))
        except (OSError, ValueError) as error:
            print(f"discover: {error}", file=sys.stderr, flush=True)
        else:
            beside = target.with_suffix(".new")
            beside.write_text(text)
            beside.rename(target)
        time.sleep(SECONDS)


def pods() -> list[dict]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(f"https://{host}:{port}/api/v1/pods", headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return json.load(answer)["items"]


def targets(found: list[dict]) -> list[dict]:
    """Running pods that ask for it by the annotations prometheus.io/scrape, port and path. Their job is what their label says they are."""
    groups = []
    for pod in found:
        metadata, status = pod["metadata"], pod["status"]
        asked = {
            name.removeprefix(ANNOTATION): value for name, value in metadata.get("annotations", {}).items() if name.startswith(ANNOTATION)
        }
        if asked.get("scrape") == "true" and status.get("phase") == "Running" and status.get("podIP"):
            labels = {
                "__metrics_path__": asked.get("path", "/metrics"),
                "job": metadata.get("labels", {}).get("app.kubernetes.io/name", "pods"),
                "namespace": metadata["namespace"],
                "pod": metadata["name"],
            }
            groups.append({"targets": [f"{status['podIP']}:{asked.get('port', '80')}"], "labels": labels})
    return groups


if __name__ == "__main__":
    main()
