"""The page of all StreamJoins of an operator: what their statuses say, for a browser; and, for who shows its token, suspending and resuming
them (``suspending``).

It is told what may be in any namespace, so only the pod itself can connect: ``kubectl port-forward`` does, by the rights that Kubernetes
gives to who calls it.

Always holds: only what the watches have shown is read, and the API server is not asked; it is told of what is suspended and resumed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from streamjoin import pages
from streamjoin.manifest.model import Scaling
from streamjoin_operator.cost import Cost
from streamjoin_operator.listening import Handler, Listening, Server
from streamjoin_operator.queue import Key
from streamjoin_operator.suspending import MOST_BODY_BYTES, Refused, Suspending

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""By which a browser may call it: another name that leads here is somebody else's page."""
PATH = "/v1/streamjoins"
SUSPEND = re.compile(f"{PATH}/([^/?]+)/([^/?]+)/suspend")
FIELDS = ("workers", "desiredWorkers", "shed", "lastCommit", "image", "memory")
"""Fields of a status that are given as they are."""

Object = Mapping[str, Any]


class Watched(Protocol):
    """What is needed of ``seen.Seen``."""

    bodies: dict[Key, Any]

    def costs(self, now: float) -> Mapping[Key, Cost]: ...


class Told(Protocol):
    """What is needed of ``health.Health``."""

    state: str


def overview(seen: Watched, state: str, now: float, *, may_write: bool = False, takes_token: bool = False) -> dict[str, Any]:
    """All StreamJoins, in order of their names. ``state``: the operator's. ``may_write``: whether who asks may suspend them;
    ``takes_token``: whether anybody may. O(StreamJoins)."""
    costs = seen.costs(now)
    return {
        "at": now,
        "operator": state,
        "mayWrite": may_write,
        "takesToken": takes_token,
        "streamJoins": [_one(key, body, costs.get(key)) for key, body in sorted(seen.bodies.items())],
    }


def _one(key: Key, body: Object, cost: Cost | None) -> dict[str, Any]:
    status, spec = body.get("status") or {}, body.get("spec") or {}
    namespace, name = key
    return {
        "namespace": namespace,
        "name": name,
        "createdAt": body["metadata"].get("creationTimestamp"),
        "suspended": bool(spec.get("suspend")),
        "paused": bool(spec.get("paused")),
        "phase": status.get("phase"),
        "workersLimits": [(spec.get("workers") or {}).get(limit) for limit in ("min", "max")],
        **{field: status.get(field) for field in FIELDS},
        "thresholds": _thresholds(spec.get("scaling") or {}),
        "utilization": status.get("utilization"),
        "completeness": status.get("completeness"),
        "plan": status.get("plan"),
        "firstPlan": (status.get("firstPlan") or {}).get("message"),
        "change": (status.get("change") or {}).get("message"),
        "conditions": [
            {field: condition.get(field) for field in ("type", "status", "reason", "message", "lastTransitionTime")}
            for condition in status.get("conditions") or []
        ],
        "decisions": status.get("decisions") or [],
        "cost": None
        if cost is None
        else {
            "executors": cost.executors,
            "executorHours": round(cost.hours, 6),
            "avoidedExecutorHours": round(cost.avoided_hours, 6),
            "pricePerExecutorHour": cost.price,
            "spent": round(cost.spent, 6),
            "avoided": round(cost.avoided, 6),
        },
    }


def _thresholds(scaling: Object) -> dict[str, float]:
    """tau1, tau2 and tau3, given or by default."""
    tau2, tau3 = (float(scaling.get(name) or Scaling.model_fields[name].default) for name in ("tau2", "tau3"))
    return {"tau1": float(scaling.get("tau1") or tau2 / 2), "tau2": tau2, "tau3": tau3}


class PageServer(Listening):
    """Answers from its construction to ``close``. Raises OSError where the port cannot be had."""

    def __init__(self, seen: Watched, health: Told, port: int, suspending: Suspending | None = None) -> None:  # noqa: C901
        """``port`` 0: any that is free. ``suspending``: what changes StreamJoins; None: nothing does."""

        class Answers(Handler):
            def do_GET(self) -> None:  # noqa: N802 - the base class looks for it
                path = self.path.partition("?")[0]
                if not self._is_from_here():
                    return
                if path == PATH:
                    may_write = suspending is not None and suspending.token.may(self.headers.get("Authorization"))
                    takes_token = suspending is not None and suspending.token.is_there
                    self._say(200, overview(seen, health.state, time.time(), may_write=may_write, takes_token=takes_token))
                else:
                    file = pages.index("operator") if path == "/" else pages.asset(path)
                    if file is None:
                        self.answer(404, "text/plain", f"/ {PATH}\n".encode())
                    else:
                        self.answer(200, *file, pages.HEADERS)

            def do_PUT(self) -> None:  # noqa: N802 - the base class looks for it
                self.close_connection = True  # a body that is not read would be taken for a request
                found = SUSPEND.fullmatch(self.path)
                if not self._is_from_here():
                    return
                try:
                    if found is None or suspending is None:
                        raise Refused(404, f"PUT {self.path}: there is {PATH}/NAMESPACE/NAME/suspend")
                    suspending.token.require(self.headers.get("Authorization"))
                    length = self.headers.get("Content-Length", "")
                    if not length.isdecimal():
                        raise Refused(411, "Content-Length: must be the length of the body")
                    if int(length) > MOST_BODY_BYTES:
                        raise Refused(413, f"the body has {length} bytes, and may have {MOST_BODY_BYTES}")
                    namespace, name = map(unquote, found.groups())
                    self._say(200, suspending.switch(namespace, name, self.rfile.read(int(length))))
                except Refused as refused:
                    self._say(refused.status, {"error": str(refused)})

            def _is_from_here(self) -> bool:
                host = self.headers.get("Host", "")
                if host.rpartition(":")[0] in HOSTS or host in HOSTS:
                    return True
                self.answer(403, "text/plain", b"the Host must be this machine, as 127.0.0.1 or localhost\n")
                return False

            def _say(self, code: int, value: Object) -> None:
                self.answer(code, "application/json", json.dumps(value).encode(), {"Cache-Control": "no-store"})

        super().__init__(Server(ADDRESS, port, Answers), "page")
