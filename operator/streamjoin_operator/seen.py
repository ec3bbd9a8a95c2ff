"""What the watches have shown, or answers of the API server: the newest version of each StreamJoin and of its Deployments.

Always holds: an older version never replaces a newer one; what is kept of a StreamJoin goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin_operator import cost, names
from streamjoin_operator.drift import Object
from streamjoin_operator.queue import Key
from streamjoin_operator.reconciliation import Memo, has_ready

_NEVER: Object = {"metadata": {"uid": "", "resourceVersion": "0"}}


class Seen:
    """See the module."""

    def __init__(self, operator_class: str = "", *, selects_namespaces: bool = False) -> None:
        """``operator_class``: StreamJoins of another one (``spec.operatorClass``) are as if they were not there. ``selects_namespaces``:
        so are those of namespaces that :meth:`admit` has not named."""
        self._class = operator_class
        self._namespaces: set[str] | None = set() if selects_namespaces else None
        """Those that are watched; None: all."""
        self._elsewhere: dict[Key, Object] = {}
        """StreamJoins in other namespaces, as the watch has last shown them: a namespace may get the label any time."""
        self.bodies: dict[Key, Object] = {}
        self.deployments: dict[Key, Object] = {}
        """Drivers'."""
        self.query_servers: dict[Key, Object] = {}
        """Their Deployments."""
        self.watchers: dict[Key, Object] = {}
        """Likewise of those who ask the sources of joins that sleep."""
        self.memos: dict[Key, Memo] = {}
        self._watched: dict[Key, Object] = {}
        """As the watch has last shown them."""
        self._suspected: dict[Key, Object] = {}
        self._suspected_gone: set[Key] = set()

    def saw(self, body: Object, *, is_watched: bool = False) -> Key:
        """A StreamJoin as a watch, or an answer, shows it. Older versions than the one that is known are passed over."""
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if not self.is_ours(body):
            self._drop(key)
            if is_watched:
                self._elsewhere.pop(key, None)
                if self._is_of_class(body):
                    self._elsewhere[key] = body
            return key
        if is_watched:
            self._watched[key] = body
        known = self.bodies.get(key)
        # Of one version an answer goes before the watch: one that began under an older definition shows it without what that lacks.
        if known is None or (is_newer(body, known) and not (is_watched and _version(body) == _version(known))):
            self.bodies[key] = body
        return key

    def watches(self, namespace: str) -> bool:
        """Whether its StreamJoins are not passed over."""
        return self._namespaces is None or namespace in self._namespaces

    def has_driver(self, key: Key) -> bool:
        """Whether the driver of a StreamJoin is ready."""
        return has_ready(self.deployments.get(key))

    def is_ours(self, body: Object) -> bool:
        """Whether it is of this operator's class, and in a namespace that is watched."""
        return self._is_of_class(body) and self.watches(body["metadata"]["namespace"])

    def _is_of_class(self, body: Object) -> bool:
        return (body["spec"].get("operatorClass") or "") == self._class

    def admit(self, namespace: str) -> list[Key]:
        """A namespace is to be watched: its StreamJoins, which are seen from now on. O(StreamJoins elsewhere)."""
        assert self._namespaces is not None, "namespaces are not selected"
        self._namespaces.add(namespace)
        bodies = [self._elsewhere.pop(key) for key in list(self._elsewhere) if key[0] == namespace]
        return [self.saw(body, is_watched=True) for body in bodies]

    def dismiss(self, namespace: str) -> list[Key]:
        """A namespace is not to be watched any more: its StreamJoins, which are forgotten. O(StreamJoins)."""
        assert self._namespaces is not None, "namespaces are not selected"
        self._namespaces.discard(namespace)
        gone = {key: self._watched.get(key, body) for key, body in self.bodies.items() if key[0] == namespace}
        for key, body in gone.items():
            self._drop(key)
            self._elsewhere[key] = body
        return list(gone)

    def select(self, namespaces: set[str]) -> tuple[list[Key], list[Key]]:
        """Exactly these are to be watched, whatever the watch of namespaces has missed: the StreamJoins that are seen from now on, and
        those that are forgotten."""
        assert self._namespaces is not None, "namespaces are not selected"
        admitted = [key for name in sorted(namespaces - self._namespaces) for key in self.admit(name)]
        return admitted, [key for name in sorted(self._namespaces - namespaces) for key in self.dismiss(name)]

    def audit(self, found: Sequence[Object]) -> tuple[list[Key], list[Key]]:
        """Compare what there is with what the watch has shown: which StreamJoins it has missed, and of which it has missed the end.

        Only what it had missed at the audit before too counts: events take a moment.
        """
        there = {(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in found if self.is_ours(body)}
        behind = {key: body for key, body in there.items() if not is_newer(self._watched.get(key, _NEVER), body)}
        gone = set(self.bodies) - set(there)
        missed = [key for key, body in behind.items() if not is_newer(self._watched.get(key, _NEVER), self._suspected.get(key, body))]
        missed = [key for key in missed if key in self._suspected]
        ended = [key for key in gone if key in self._suspected_gone]
        for key in missed:
            self.saw(behind[key])
        self._suspected, self._suspected_gone = behind, gone
        return missed, ended

    def saw_deployment(self, body: Object) -> Key | None:
        """A Deployment as a watch shows it; the StreamJoin that it is of, if it is of any."""
        metadata = body["metadata"]
        name = (metadata.get("labels") or {}).get(names.NAME)
        known = None if name is None else self._deployments(name, metadata["name"])
        if name is None or known is None:
            return None
        key = (metadata["namespace"], name)
        if is_newer(body, known.get(key)):
            before = known.get(key)
            known[key] = body
            if before is None or before["metadata"].get("generation") != metadata.get("generation"):
                self.memo(key).checked_at = float("-inf")  # its spec was changed, perhaps not by us
        return key

    def lost_deployment(self, body: Object) -> Key | None:
        """A Deployment was deleted."""
        key = self.saw_deployment(body)
        if key is not None:
            known = self._deployments(key[1], body["metadata"]["name"])
            assert known is not None, "it was seen"
            known.pop(key, None)
            self.memo(key).checked_at = float("-inf")
        return key

    def _deployments(self, name: str, deployment: str) -> dict[Key, Object] | None:
        """Where a Deployment of the StreamJoin ``name`` is kept, by its own name."""
        known = {names.base_name(name): self.deployments, names.queries_name(name): self.query_servers}
        return (known | {names.watcher_name(name): self.watchers}).get(deployment)

    def forget(self, key: Key) -> None:
        """A StreamJoin is gone, and Kubernetes deletes its children; or it is another operator's now."""
        self._drop(key)
        self._elsewhere.pop(key, None)

    def _drop(self, key: Key) -> None:
        for known in (self.bodies, self.deployments, self.query_servers, self.watchers, self.memos, self._watched):
            known.pop(key, None)

    def statuses(self) -> dict[Key, Object]:
        """What is stored of each StreamJoin."""
        return {key: body.get("status") or {} for key, body in list(self.bodies.items())}

    def phases(self) -> dict[str, int]:
        """How many StreamJoins are in each phase."""
        counts: dict[str, int] = {}
        for body in self.bodies.values():
            phase = (body.get("status") or {}).get("phase", "Unknown")
            counts[phase] = counts.get(phase, 0) + 1
        return counts

    def costs(self, now: float) -> dict[Key, cost.Cost]:
        """What each StreamJoin has come to by now, in seconds since 1970."""
        found = {key: (body.get("status") or {}).get("cost") for key, body in list(self.bodies.items())}
        costs = {key: cost.known(value) for key, value in found.items()}
        return {key: value.until(now) for key, value in costs.items() if value is not None}

    def samples_at(self) -> dict[Key, float]:
        """When the newest sample of each StreamJoin was taken that could be trusted, in seconds since 1970."""
        found = {key: memo.scaler for key, memo in list(self.memos.items())}
        return {key: scaler.trusted_at for key, scaler in found.items() if scaler is not None and scaler.trusted_at is not None}

    def memo(self, key: Key) -> Memo:
        return self.memos.setdefault(key, Memo())


def _version(body: Object) -> tuple[str, str]:
    return body["metadata"]["uid"], body["metadata"]["resourceVersion"]


def is_newer(body: Object, known: Object | None) -> bool:
    """Whether a body is another object's, or a version that is not older."""
    if body is _NEVER:
        return False
    if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
        return True
    try:
        return int(body["metadata"]["resourceVersion"]) >= int(known["metadata"]["resourceVersion"])
    except ValueError:  # versions are opaque in principle
        return True
