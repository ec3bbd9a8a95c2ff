"""The step by which a change that restarts the driver waits for a window of maintenance (``spec.maintenance``).

Only what would restart the driver waits: its pod template, the files that the template names, and the record of what runs stay as they
are. All else that the manifest asks for is done, and the join is scaled as what runs.
"""

from __future__ import annotations

from streamjoin.elastic.quiet import windows
from streamjoin.job import Job
from streamjoin_operator import children, names
from streamjoin_operator.derived import derive
from streamjoin_operator.driver_files import SPOILT, files_of, manifest_of
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Verdict, Waiting


class WindowStep:
    """See the module."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def wait(self, reconciliation: Reconciliation) -> Verdict:
        """Have it wait, or no longer."""
        memo = reconciliation.memo
        if reconciliation.checking:
            has_waited, memo.waiting = memo.waiting is not None, None
            why = self._why(reconciliation)
            if why is not None:
                memo.waiting = Waiting(why, running_job(reconciliation))
            elif has_waited:
                memo.checked_for = ()  # what waited is yet to be done
        if memo.waiting is not None:
            reconciliation.trying = (Reason.MaintenanceAwaited, memo.waiting.why)
        return PROCEED

    def _why(self, reconciliation: Reconciliation) -> str | None:
        """What waits, and for what; None: nothing does."""
        resource, manifest, observed = reconciliation.resource, reconciliation.manifest, reconciliation.deployment
        given = windows(manifest.spec.maintenance.windows)
        if not given or observed is None or not resource.may_apply(observed) or not reconciliation.is_driver_ready:
            return None  # what does not run cannot be interrupted
        noted = observed["metadata"].get("annotations") or {}
        driver = reconciliation.driver(self._ports.settings)
        wanted, is_open = driver["metadata"]["annotations"], any(window.contains(self._ports.now) for window in given)
        is_other, is_asked = (noted.get(name) != wanted[name] for name in (names.REVISION, names.ASKED))
        if not is_other or is_asked or is_open or not driver["spec"]["replicas"]:
            return None
        change = children.change_of(resource, manifest, reconciliation.memo.record)
        what = "what the driver was started for has changed" if change is None else change["message"]
        shown = " or ".join(map(str, given[:3]))
        return f"{what}; this waits for {shown} (spec.maintenance.windows); a new value of the annotation {names.RESTART} has it made now"


def running_job(reconciliation: Reconciliation) -> Job | None:
    """What the driver that is there runs, by its files."""
    assert reconciliation.deployment is not None, "nothing waits without one"
    files = reconciliation.observed.get(("ConfigMap", files_of(reconciliation.deployment["spec"]["template"]) or ""))
    try:
        return derive(manifest_of((files or {}).get("data") or {})).job
    except SPOILT:
        return None
