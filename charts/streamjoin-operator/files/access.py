"""Asks the API server, as the operator's service account, what it may do; fails where that is not what it should be.

    access.py CHECKS.json

Each check is {"allowed": bool, "verb": ..., "group": ..., "resource": ..., "namespace": ... ("" for all of the cluster)}, and "name"
where it is about one object. Only the standard library is used.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount"))


def server() -> str:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    return f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}"


def is_allowed(check: dict) -> bool:
    resource, _, subresource = check["resource"].partition("/")
    attributes = {name: check[name] for name in ("verb", "group", "namespace", "name") if name in check}
    attributes |= {"resource": resource, "subresource": subresource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}", "Content-Type": "application/json"}
    url = f"{server()}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(urllib.request.Request(url, json.dumps(review).encode(), headers), timeout=30) as answer:
        return bool(json.load(answer)["status"]["allowed"])


def main() -> int:
    checks = json.loads(Path(sys.argv[1]).read_text())
    wrong = 0
    for check in checks:
        found = is_allowed(check)
        words = "may" if found else "may not"
        where = f"in {check['namespace']}" if check["namespace"] else "in all of the cluster"
        named = f"{check['resource']}.{check['group']}" if check["group"] else check["resource"]
        if found != check["allowed"]:
            wrong += 1
            print(f"WRONG: the operator {words} {check['verb']} {named} {where}")
    print(f"{len(checks) - wrong} of {len(checks)} checks as they should be")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
