"""The steps before a driver that runs is replaced: its successor's files are there, and a pod has shown that its template comes up.

Always holds: until then nothing that the join runs on is changed. The pod's name follows from what it tries, and its end is its own to
tell, so that an operator that is killed between any two steps, or two of them at once, begin no trial twice and go on from what it says.
"""

from __future__ import annotations

from streamjoin_operator import api, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.applying import REFUSED_SECONDS, Applier, refusal
from streamjoin_operator.children import running_manifest
from streamjoin_operator.drift import Object, digest
from streamjoin_operator.driver_files import files_map, files_of
from streamjoin_operator.pod_templates import executor_pod
from streamjoin_operator.ports import Ports
from streamjoin_operator.probing import refused_pod
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Verdict
from streamjoin_operator.resizing import resources_of
from streamjoin_operator.resource import Resource
from streamjoin_operator.trial import Outcome, State, image_of, outcome, trial_pod

REMEDY = "the join goes on as it was; mend or restore spec.image, the pod templates or the field that is named"

QUOTA = "exceeded quota"
"""So the API server says that a quota is used up."""


class TrialStep:
    """See the module."""

    def __init__(self, ports: Ports, applier: Applier) -> None:
        self._ports, self._applier = ports, applier

    async def files(self, reconciliation: Reconciliation) -> Verdict:
        """The files that the driver's pod template names."""
        if not reconciliation.checking:
            return PROCEED
        resource = reconciliation.resource
        name = files_of(reconciliation.driver(self._ports.settings)["spec"]["template"])
        if name is None:
            return PROCEED
        wanted = reconciliation.files(self._ports.settings)
        found, resized = reconciliation.observed.get(("ConfigMap", name)), _resized(reconciliation, name)
        return await self._applier.apply(reconciliation, files_map(resource, name, wanted, found, resized))

    async def trial(self, reconciliation: Reconciliation) -> Verdict:
        """Where a driver runs and is to be replaced, wait for a pod of the new template to come up. Trials of anything else end."""
        if not reconciliation.checking:
            return PROCEED
        desired = reconciliation.driver(self._ports.settings)
        key, theirs = desired["metadata"]["annotations"][names.TRIED], reconciliation.manifest.spec.trial.pod_template
        key = digest([key, theirs]) if theirs else key
        is_due = reconciliation.has_run and _replaces(reconciliation.resource, reconciliation.deployment, desired)
        name = names.trial_name(reconciliation.resource.name, key)
        pod = None
        for found in reconciliation.trials:
            if is_due and found["metadata"]["name"] == name:
                pod = found
            elif is_due and not found["metadata"].get("deletionTimestamp"):
                await self._end(found)
        if not is_due:
            return PROCEED
        if pod is None:
            return await self._begin(reconciliation, desired, key)
        shown = outcome(pod, self._ports.now)
        if shown.state is State.PASSED:
            return PROCEED
        if shown.state is State.LOST:
            await self._end(pod)
        return self._held(reconciliation, image_of(desired["spec"]["template"]), shown)

    async def done(self, reconciliation: Reconciliation) -> Verdict:
        """The driver is what it should be: no trial is needed."""
        for pod in reconciliation.trials:
            await self._end(pod)
        reconciliation.trials = []
        return PROCEED

    async def _begin(self, reconciliation: Reconciliation, desired: Object, key: str) -> Verdict:
        """Make the pod, unless the API server would not take the driver anyway."""
        resource, template = reconciliation.resource, desired["spec"]["template"]
        image, name = image_of(template), names.trial_name(resource.name, key)
        try:
            await self._ports.api.try_to_apply(desired)
        except ApiError as error:
            if not error.refuses_object:
                raise
            reconciliation.refused = refusal(desired, error)
            return Verdict(REFUSED_SECONDS)
        executors = await self._refused_executors(reconciliation)
        if executors is not None:
            return self._held(reconciliation, image, Outcome(State.STUCK, executors))
        pod = trial_pod(resource, template, key, dict(reconciliation.manifest.spec.trial.pod_template))
        try:
            await self._ports.api.create(api.POD, resource.namespace, pod)
        except ApiError as error:
            if error.status == 409:  # its predecessor of the same name is on its way out
                return self._held(reconciliation, image, Outcome(State.WAITS))
            if not error.refuses_object:
                raise
            return self._held(reconciliation, image, Outcome(State.STUCK, f"pod {name}: {error.message}"[:700]))
        text = f"pod {name} tries image {image} and the new pod template before the driver is replaced"
        reconciliation.events.append(("Normal", Reason.TemplateTried, text))
        return self._held(reconciliation, image, Outcome(State.WAITS))

    async def _refused_executors(self, reconciliation: Reconciliation) -> str | None:
        """Why the API server would take no executor of the new driver. A quota counts the executors that would be gone by then."""
        resource = reconciliation.resource
        pod = executor_pod(resource, reconciliation.manifest, self._ports.settings)
        refused = await refused_pod(self._ports.api, {"name": resource.base, "namespace": resource.namespace}, pod)
        return None if refused is None or QUOTA in refused.message else f"executors: {refused.message}"

    def _held(self, reconciliation: Reconciliation, image: str, shown: Outcome) -> Verdict:
        """What runs goes on; look at the trial again."""
        if shown.state is State.WAITS:
            text = f"image {image} and the new pod template are tried by a pod before the driver is replaced"
            reconciliation.trying = (Reason.TemplateTried, text)
            return Verdict(self._ports.settings.start_seconds)
        way_out = "delete the pod to try again" if shown.state is State.FAILED else "suspend the join to have it taken over untried"
        reconciliation.refused = (Reason.NewTemplateFails, f"image {image}: {shown.message}; {REMEDY}; {way_out}")
        return Verdict(self._ports.settings.poll_seconds)

    async def _end(self, pod: Object) -> None:
        metadata = pod["metadata"]
        await self._ports.api.delete(api.POD, metadata["namespace"], metadata["name"], metadata["uid"])


def _resized(reconciliation: Reconciliation, name: str) -> str | None:
    """The resources that all executors of the driver with these files have, where they were resized to what runs now."""
    deployment, record, resized = reconciliation.deployment, reconciliation.memo.record, reconciliation.memo.resized
    if resized is None or deployment is None or files_of(deployment["spec"]["template"]) != name:
        return None
    running = running_manifest(record)
    return resized if running is not None and resized == resources_of(running) else None


def _replaces(resource: Resource, observed: Object | None, desired: Object) -> bool:
    """Whether a driver that is there would be replaced by one that differs in what a trial would try."""
    if observed is None or not resource.may_apply(observed):
        return False
    if not observed["spec"].get("replicas") or not desired["spec"]["replicas"]:
        return False
    noted, wanted = (body["metadata"].get("annotations") or {} for body in (observed, desired))
    return all(noted.get(name) != wanted[name] for name in (names.REVISION, names.TRIED))
