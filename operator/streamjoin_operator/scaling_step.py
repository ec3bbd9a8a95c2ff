"""The steps that scale: orders written down before they are followed; and a pass of the autoscaler, whose ports these are.

What is put is the scheme that was judged, as large as what is read of the driver at each poll; by its generation it is void for whoever
has put another since. It is not stored: an operator that takes over a decision judges anew, by what it measures, and puts that. Which
worker goes on as which task the driver says, by what is held then and by where its workers are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.ledger import Record
from streamjoin.elastic.plan import MOST_AREAS
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.ports import Collected, Outcome, Progress, ScalingPorts, Wish
from streamjoin.elastic.settings import Mode
from streamjoin.elastic.vertical import Headroom
from streamjoin.sizing import headroom_of
from streamjoin_operator import api, children, missing, names, orders
from streamjoin_operator.api import ApiError
from streamjoin_operator.autoscale import DIRECTIONS, Scaler, event_of, forecast_of, outcome_of, progress_of, settings_of
from streamjoin_operator.drift import Object
from streamjoin_operator.driver import REFUSED
from streamjoin_operator.driver_steps import wish_of
from streamjoin_operator.measurement import Distrusted, Measurement, Reading, Scrapes, Source, by_itself, measure
from streamjoin_operator.nodes import wish_for_fewer
from streamjoin_operator.ports import Ports
from streamjoin_operator.prometheus import Question
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Memo, Reconciliation, Verdict
from streamjoin_operator.reporting import Reporter
from streamjoin_operator.resizing import NOT_SERVED

WRITE_SECONDS = 60.0
"""A ledger in which only holds are new is written at most so often."""
OUTCOMES = {200: Outcome.UNCHANGED} | dict.fromkeys(REFUSED, Outcome.REFUSED)
"""By the status of the driver's answer, where the plan is not being applied."""
LATE_SECONDS = 600.0
"""For so long it is told how late series arrive."""
SECRET_SECONDS = 60.0
"""How often the Secrets of a join's own login are read; at once after it was refused."""
KIND_SECONDS = 600.0
"""How long an answer about what the cluster can do is believed."""
TAKEOVER_SECONDS = 300.0
"""Within so long a driver plans with the memory that its workers have been given: kubelets bring its files within a minute or two."""
SEARCH_SECONDS = 60.0
"""How often a Prometheus that has nothing of a join is asked what else it has."""


class ScalingStep:
    """See the module."""

    def __init__(self, ports: Ports, reporter: Reporter) -> None:
        self.ports, self.reporter = ports, reporter
        self._resize_is_served: tuple[float, bool] = (float("-inf"), False)

    async def orders(self, reconciliation: Reconciliation) -> Verdict:
        """Write down who has changed the limits or the model, once, before the driver is asked for what follows from it."""
        if reconciliation.refused is not None:
            return PROCEED
        scaler, limits = await self._scaler(reconciliation), orders.limits_of(reconciliation.manifest)
        if scaler is None:
            return PROCEED
        if scaler.limits is None:
            scaler.know(limits)
        elif scaler.limits != limits:
            assert reconciliation.report is not None, "a step before stops without one"
            resource, plan = reconciliation.resource, reconciliation.report.plan
            # What is known here of managed fields are our own.
            body = await self.ports.api.get(api.STREAM_JOIN, resource.namespace, resource.name)
            sentence = orders.sentence(orders.changes(scaler.limits, limits), body or reconciliation.body)
            wish, _ = wish_of(reconciliation.manifest, plan)
            scaler.know(limits)
            scaler.autoscaler.order(sentence, progress_of(plan), None if wish is None else wish["workers"], self.ports.now)
        if scaler.must_store:
            await self.write_ledger(reconciliation, scaler)
        return PROCEED

    async def scale(self, reconciliation: Reconciliation) -> Verdict:
        """Decide how many workers there should be; write it down; then have the driver see to it."""
        if reconciliation.refused is not None or reconciliation.has_put:
            return PROCEED
        assert reconciliation.report is not None, "a step before stops without one"
        plan, job, pause, at = reconciliation.report.plan, reconciliation.running_job, reconciliation.resource.pause, self.ports.now
        scaler, progress = reconciliation.memo.scaler, progress_of(plan)
        assert scaler is not None, "a step before makes one, or says what is refused"
        vertical, headroom = reconciliation.manifest.spec.scaling.vertical, await self._headroom(reconciliation, scaler)
        settings = settings_of(job, pause, int(plan.get("firstWorkers") or 0), vertical=vertical, headroom=headroom)
        scaler.autoscaler.forget_enlarged(settings)
        was_enlarging, scaler.is_enlarging = scaler.is_enlarging, self._is_enlarging(reconciliation, scaler)
        if settings.is_off or scaler.is_enlarging or was_enlarging:  # the last scrapes may be of before
            scaler.autoscaler.rest(progress, at)
            scaler.measured = scaler.trusted_at = None
            if scaler.autoscaler.is_new:
                await self.write_ledger(reconciliation, scaler)
            return PROCEED
        paused_by = f"the annotation of the StreamJoin ({pause})" if pause and pause not in DIRECTIONS else None
        ports, floor = _Pass(self, reconciliation, scaler, progress, at), job.manifest.spec.workers.floor or None
        await scaler.autoscaler.once(at, settings, progress, ports, paused_by=paused_by, floor=floor)
        return PROCEED

    async def recall(self, reconciliation: Reconciliation) -> Verdict:
        """What was decided of the workers' memory must be known before anything is made of the manifest."""
        manifest = reconciliation.derived.manifest
        if manifest is None or manifest.spec.scaling.vertical != "Enforce" or reconciliation.memo.scaler is not None:
            return PROCEED
        scaler = await self._scaler(reconciliation)
        return PROCEED if scaler is None or scaler.autoscaler.enlarged is None else AGAIN

    async def _headroom(self, reconciliation: Reconciliation, scaler: Scaler) -> Headroom | None:
        """How much larger executors may become, by the newest manifest; None where they are not to."""
        workers, job, memo = reconciliation.manifest.spec.workers, reconciliation.derived.job, reconciliation.memo
        if reconciliation.manifest.spec.scaling.vertical == "Off" or workers.max_memory is None or job is None:
            return None
        enlarged, most, unable = scaler.autoscaler.enlarged, workers.max_memory.bytes, ""
        if enlarged is not None and enlarged.refused and enlarged.most == most:
            unable = enlarged.refused
        elif memo.waiting is not None or memo.not_resized is not None:
            unable = "a change of the manifest is yet to be made"
        elif not await self._can_resize():
            unable = NOT_SERVED
        return headroom_of(job, most, given=reconciliation.derived.given_memory, unable=unable)

    async def _can_resize(self) -> bool:
        asked, known = self._resize_is_served
        if self.ports.clock() - asked > KIND_SECONDS:
            known = await self.ports.api.serves(api.POD.resize)
            self._resize_is_served = (self.ports.clock(), known)
        return known

    def _is_enlarging(self, reconciliation: Reconciliation, scaler: Scaler) -> bool:
        """Whether workers are being given more memory, or their driver has yet to plan with it: what is measured till then says nothing."""
        autoscaler, job, report = scaler.autoscaler, reconciliation.derived.job, reconciliation.report
        enlarged = autoscaler.enlarged
        if enlarged is not None and enlarged.wanted is not None:
            return True
        if enlarged is None or autoscaler.enlarging is None or job is None or report is None:
            return False
        capacity = None if report.measured is None else report.measured.capacity
        if capacity is None or capacity >= job.capacity.amount:
            return False
        if self.ports.now - enlarged.since >= TAKEOVER_SECONDS:
            why = f"the driver plans with {job.capacity.words(capacity)} still, {TAKEOVER_SECONDS:.0f} s after workers had memory for more"
            autoscaler.cannot_enlarge(why)
            reconciliation.events.append(("Warning", Reason.EnlargingFailed, why))
        return True

    async def _scaler(self, reconciliation: Reconciliation) -> Scaler | None:
        """What is remembered of the scaling; of an operator before, what it has stored. None where that cannot be."""
        memo = reconciliation.memo
        if memo.scaler is None:
            found = await self._find_ledger(reconciliation)
            if reconciliation.refused is not None:
                return None
            memo.scaler = Scaler(_document(found))
            # One that was left behind gets its owner at once, or it would outlive this StreamJoin, or go with another.
            memo.scaler.must_store = found is not None and not reconciliation.resource.owns(found)
            memo.scaler.written_at = self.ports.clock()
        return memo.scaler

    async def _find_ledger(self, reconciliation: Reconciliation) -> Object | None:
        """The ConfigMap. None where there is none, or somebody else's, which is refused."""
        name = names.ledger_name(reconciliation.resource.name)
        found = await self.ports.api.find(api.CONFIG_MAP, reconciliation.resource.namespace, name)
        if found is not None and not reconciliation.resource.may_apply(found):
            text = f"{reconciliation.resource.foreign('ConfigMap', found)}, and the join is scaled"
            reconciliation.refused = (Reason.ForeignObject, text)
            return None
        reconciliation.memo.ledger_version = None if found is None else found["metadata"]["resourceVersion"]
        return found

    async def write_ledger(self, reconciliation: Reconciliation, scaler: Scaler) -> None:
        """Store the decisions. Where another operator was quicker, its are read, and this pass ends here; the next one decides."""
        self.ports.on_step("ledger")
        try:
            written = await self.ports.api.apply(
                children.ledger(reconciliation.resource, scaler.document(), reconciliation.memo.ledger_version)
            )
        except ApiError as error:
            if error.status == 409:
                scaler.adopt(_document(await self._find_ledger(reconciliation)))
            raise
        reconciliation.memo.ledger_version = written["metadata"]["resourceVersion"]
        scaler.was_stored(self.ports.clock())

    async def measure(self, reconciliation: Reconciliation, scaler: Scaler, plan: Progress, at: float) -> Measurement:
        """What Prometheus says of the join; without one, and while it cannot be used, what the driver itself says."""
        assert scaler.autoscaler.core is not None, "it has just followed"
        assert reconciliation.report is not None, "a step before stops without one"
        memo, bound = reconciliation.memo, scaler.autoscaler.core.settings.stale_seconds
        sample = partial(
            measure,
            generation=plan.generation,
            workers=plan.workers,
            streams=reconciliation.running_job.streams_by_side,
            now=at,
            bound=bound,
            is_retrying=reconciliation.report.health.get("state") == "retrying",
            after=None if scaler.measured is None else scaler.measured.at,
        )
        url = reconciliation.manifest.spec.scaling.prometheus.url or self.ports.settings.prometheus_url
        away: Distrusted | None = None
        if url:
            question = await self._question(reconciliation, url)
            found = question if isinstance(question, Distrusted) else await self.ports.prometheus.read(question, 2 * bound)
            if found == [] and isinstance(question, Question):
                found = await self._why_missing(reconciliation, question)
            else:
                memo.searched = None
            if isinstance(found, Distrusted) and found.reason is Reason.PrometheusDenied:
                memo.login_secrets = (None, float("-inf"), {})
            confirmed = found if isinstance(found, Distrusted) else sample(found)
            if isinstance(confirmed, Reading):
                memo.scrapes = None
                late = self._lateness(memo, confirmed.late_seconds)
                return Measurement(Source.PROMETHEUS, confirmed.sample, note=late, earlier=confirmed.earlier, at=confirmed.at)
            away = confirmed
        memo.scrapes = memo.scrapes or Scrapes(2 * bound)
        memo.scrapes.add(reconciliation.report.text, at)
        own = sample(memo.scrapes.series())
        return by_itself(own.sample if isinstance(own, Reading) else own, away)

    async def _question(self, reconciliation: Reconciliation, url: str) -> Question | Distrusted:
        """With the pods of the driver as they are now, and the Secrets that the join names, read once a minute."""
        memo, resource, given = reconciliation.memo, reconciliation.resource, reconciliation.manifest.spec.scaling.prometheus
        state = ((reconciliation.deployment or {}).get("metadata") or {}).get("resourceVersion")
        if not memo.driver_pods[1] or memo.driver_pods[0] != state:
            found = await self.ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.DRIVER))
            memo.driver_pods = (state, tuple(sorted(pod["metadata"]["name"] for pod in found)))
        wanted, now = given.secret_names, self.ports.clock()
        if memo.login_secrets[0] != wanted or now - memo.login_secrets[1] >= SECRET_SECONDS:
            try:
                secrets = {name: await self.ports.api.get(api.SECRET, resource.namespace, name) for name in wanted}
            except ApiError as error:
                if error.status != 403:
                    raise
                return Distrusted(Reason.PrometheusDenied, f"spec.scaling.prometheus: the operator may not read a Secret: {error.message}")
            memo.login_secrets = (wanted, now, secrets)
        about = (resource.namespace, resource.name, resource.base)
        return Question(url, *about, pods=memo.driver_pods[1], login=given, secrets=memo.login_secrets[2])

    def _lateness(self, memo: Memo, seconds: float) -> str:
        """How old the newest whole scrape is beside the newest; the most of some minutes, or the status would be written at every poll."""
        now = self.ports.clock()
        if round(seconds) >= memo.late[0] or now - memo.late[1] >= LATE_SECONDS:
            memo.late = (round(seconds), now)
        if not memo.late[0]:
            return ""
        return f"series arrive late: the newest whole scrape counts, which is up to {memo.late[0]} s older than the newest"

    async def _why_missing(self, reconciliation: Reconciliation, question: Question) -> Distrusted:
        """Why Prometheus, which answers, has no series of the join."""
        memo, resource, settings, now = reconciliation.memo, reconciliation.resource, self.ports.settings, self.ports.clock()
        if memo.searched is None or now - memo.searched[0] >= SEARCH_SECONDS:
            memo.searched = (now, await self.ports.prometheus.search(question))
        monitor = missing.Monitor(
            resource.base,
            is_wanted=settings.pod_monitor != "off",
            is_known=memo.has_monitor,
            labels=children.monitor_labels(reconciliation.manifest, settings),
        )
        labels = (settings.prometheus_namespace_label, settings.prometheus_pod_label)
        return missing.why(memo.searched[1], monitor, url=question.url, namespace=resource.namespace, label=labels[0], pod_label=labels[1])


@dataclass(frozen=True, slots=True)
class _Pass(ScalingPorts):
    """Of one pass of the autoscaler (``streamjoin.elastic.ports``)."""

    step: ScalingStep
    reconciliation: Reconciliation
    scaler: Scaler
    plan: Progress
    at: float

    async def collect(self) -> Collected:
        scaler = self.scaler
        found = scaler.measured = await self.step.measure(self.reconciliation, scaler, self.plan, self.at)
        if found.sample is None:
            why = found.distrusted
            return Collected((), None if why is None else f"{why.reason.name}: {why.text}")
        if found.distrusted is None:
            scaler.trusted_at = found.sample.taken_at
        return Collected((*found.earlier, found.sample))

    async def forecast(self, shed_fraction: float) -> PlannedForecast | None:
        report = self.reconciliation.report
        assert report is not None, "a step before stops without one"
        asked = await self.step.ports.drivers.statistics(*self._driver)
        return None if asked is None else forecast_of(report.plan, asked, self.reconciliation.running_job, shed_fraction)

    async def judge(self, decide: Callable[[], Decision]) -> Decision:
        return await asyncio.to_thread(decide)

    async def store(self, *, at_once: bool) -> None:
        """One in which only holds are new is written every so often."""
        autoscaler, is_due = self.scaler.autoscaler, self.step.ports.clock() - self.scaler.written_at >= WRITE_SECONDS
        if at_once or autoscaler.is_new or (autoscaler.has_holds and is_due):
            await self.step.write_ledger(self.reconciliation, self.scaler)

    async def put(self, wish: Wish) -> tuple[Outcome, str]:
        """Who reads the status knows of it before the driver does. Workers that end are the driver's to choose: it knows where they are."""
        reconciliation, ports = self.reconciliation, self.step.ports
        before, reconciliation.wanted_workers = reconciliation.wanted_workers, wish.workers
        await self.step.reporter.report(reconciliation)
        ports.on_step("put")
        asks = body_of(wish, reconciliation.manifest.spec.scheme.model)
        asks = await wish_for_fewer(asks, self.plan.workers, ports.api, ports.settings, reconciliation.resource)
        answer = await ports.drivers.put(*self._driver, asks)
        is_applied = answer.status == 202 or (answer.status == 200 and "scheme" in asks)
        if is_applied:
            return Outcome.ACCEPTED, ""
        reconciliation.wanted_workers = before  # by the manifest, whoever refuses it
        return OUTCOMES.get(answer.status, Outcome.VOID), answer.text

    def has_decided(self, decision: Decision, *, acts: bool) -> None:
        autoscaler = self.scaler.autoscaler
        self.reconciliation.looks_soon = autoscaler.core is not None and autoscaler.core.looks_soon
        is_recommended = decision.kind is not Kind.HOLD and decision.mode is Mode.RECOMMEND and autoscaler.is_new
        if acts or is_recommended:
            self.reconciliation.events.append(event_of(decision))

    def has_failed(self, why: str) -> None:
        self.reconciliation.events.append(("Warning", Reason.ScalingFailed, why))

    def came_true(self, record: Record) -> None:
        self.reconciliation.events.append(outcome_of(record))

    @property
    def _driver(self) -> tuple[str, str]:
        assert self.reconciliation.memo.token is not None, "a step before stops without one"
        return self.step.ports.driver_url(self.reconciliation.resource), self.reconciliation.memo.token


def body_of(wish: Wish, model: str) -> Object:
    """``PUT /v1/plan``: the scheme that was judged. ``model``: of a plan that the driver is to make."""
    if wish.planned is not None and len(wish.planned.plan.scheme.areas) <= MOST_AREAS:
        return {"generation": wish.planned.plan.generation, "scheme": wish.planned.plan.scheme.to_json()}
    asks: Object = {"workers": wish.workers, "model": model, "after": wish.newest}
    return asks | {"replan": True} if wish.replans else asks


def _document(found: Object | None) -> Object | None:
    """What a ConfigMap has of the ledger; None where it cannot be read."""
    try:
        value = json.loads((found or {})["data"][children.LEDGER_KEY])
    except (KeyError, TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None
