"""The steps that scale: orders written down before they are followed; samples in, the decision written down, the wish put to the driver."""

from __future__ import annotations

import json
from functools import partial

from streamjoin.elastic.decision import Kind
from streamjoin.elastic.settings import Mode
from streamjoin_operator import api, children, missing, names, orders
from streamjoin_operator.api import ApiError
from streamjoin_operator.autoscale import WRITE_SECONDS, Applied, Autoscaler, event_of, settings_of
from streamjoin_operator.drift import Object
from streamjoin_operator.driver_steps import wish_of
from streamjoin_operator.measurement import Distrusted, Measurement, Reading, Scrapes, Source, by_itself, measure
from streamjoin_operator.nodes import wish_for_fewer
from streamjoin_operator.ports import Ports
from streamjoin_operator.prometheus import Question
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Memo, Reconciliation, Verdict
from streamjoin_operator.reporting import Reporter

LATE_SECONDS = 600.0
"""For so long it is told how late series arrive."""
SECRET_SECONDS = 60.0
"""How often the Secrets of a join's own login are read; at once after it was refused."""
SEARCH_SECONDS = 60.0
"""How often a Prometheus that has nothing of a join is asked what else it has."""


class ScalingStep:
    """See the module."""

    def __init__(self, ports: Ports, reporter: Reporter) -> None:
        self._ports, self._reporter = ports, reporter

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
            body = await self._ports.api.get(api.STREAM_JOIN, resource.namespace, resource.name)
            sentence = orders.sentence(orders.changes(scaler.limits, limits), body or reconciliation.body)
            wish, _ = wish_of(reconciliation.manifest, plan)
            scaler.order(limits, sentence, Applied.of(plan), None if wish is None else wish["workers"], self._ports.now)
        if scaler.must_store:
            await self._write_ledger(reconciliation, scaler)
        return PROCEED

    async def scale(self, reconciliation: Reconciliation) -> Verdict:
        """Decide how many workers there should be; write it down; then have the driver see to it."""
        if reconciliation.refused is not None or reconciliation.has_put:
            return PROCEED
        assert reconciliation.report is not None, "a step before stops without one"
        assert reconciliation.memo.token is not None, "a step before stops without one"
        memo, manifest, job, url, token = (
            reconciliation.memo,
            reconciliation.manifest,
            reconciliation.running_job,
            self._ports.driver_url(reconciliation.resource),
            reconciliation.memo.token,
        )
        settings = settings_of(job, reconciliation.resource.pause)
        scaler, at, plan = memo.scaler, self._ports.now, Applied.of(reconciliation.report.plan)
        assert scaler is not None, "a step before makes one, or says what is refused"
        if settings.is_off:
            scaler.rest(plan, at)
            if scaler.is_new:
                await self._write_ledger(reconciliation, scaler)
            return PROCEED
        reconciliation.events += scaler.follow(job, reconciliation.resource.pause, plan, at)
        reconciliation.events += scaler.take(await self._measure(reconciliation, scaler, plan, at), plan)
        reconciliation.looks_soon = scaler.core is not None and scaler.core.looks_soon
        decision = await scaler.decide(reconciliation.report.plan, job, lambda: self._ports.drivers.statistics(url, token), at)
        wish = scaler.wish(decision, plan, manifest.spec.scheme.model, at)
        if wish is None:
            if decision.kind is not Kind.HOLD and decision.mode is Mode.RECOMMEND and scaler.is_new:
                reconciliation.events.append(event_of(decision))
            if scaler.is_new or (scaler.has_holds and self._ports.clock() - scaler.written_at >= WRITE_SECONDS):
                await self._write_ledger(reconciliation, scaler)
            return PROCEED
        asked, reconciliation.wanted_workers = reconciliation.wanted_workers, decision.target
        reconciliation.events.append(event_of(decision))
        await self._write_ledger(reconciliation, scaler)
        await self._reporter.report(reconciliation)
        self._ports.on_step("put")
        asks = await wish_for_fewer(wish, plan.workers, self._ports.api, self._ports.settings, reconciliation.resource)
        answer = await self._ports.drivers.put(url, token, asks)
        reconciliation.events += scaler.put(wish, answer.status, answer.text, plan, at)
        if answer.status != 202:
            reconciliation.wanted_workers = asked  # by the manifest, whoever refuses it
        return PROCEED

    async def _scaler(self, reconciliation: Reconciliation) -> Autoscaler | None:
        """What is remembered of the scaling; of an operator before, what it has stored. None where that cannot be."""
        memo = reconciliation.memo
        if memo.scaler is None:
            found = await self._find_ledger(reconciliation)
            if reconciliation.refused is not None:
                return None
            memo.scaler = Autoscaler(_document(found))
            # One that was left behind gets its owner at once, or it would outlive this StreamJoin, or go with another.
            memo.scaler.must_store = found is not None and not reconciliation.resource.owns(found)
            memo.scaler.written_at = self._ports.clock()
        return memo.scaler

    async def _find_ledger(self, reconciliation: Reconciliation) -> Object | None:
        """The ConfigMap. None where there is none, or somebody else's, which is refused."""
        name = names.ledger_name(reconciliation.resource.name)
        found = await self._ports.api.find(api.CONFIG_MAP, reconciliation.resource.namespace, name)
        if found is not None and not reconciliation.resource.may_apply(found):
            text = f"{reconciliation.resource.foreign('ConfigMap', found)}, and the join is scaled"
            reconciliation.refused = (Reason.ForeignObject, text)
            return None
        reconciliation.memo.ledger_version = None if found is None else found["metadata"]["resourceVersion"]
        return found

    async def _write_ledger(self, reconciliation: Reconciliation, scaler: Autoscaler) -> None:
        """Store the decisions. Where another operator was quicker, its are read, and this pass ends here; the next one decides."""
        self._ports.on_step("ledger")
        try:
            written = await self._ports.api.apply(
                children.ledger(reconciliation.resource, scaler.document(), reconciliation.memo.ledger_version)
            )
        except ApiError as error:
            if error.status == 409:
                scaler.adopt(_document(await self._find_ledger(reconciliation)))
            raise
        reconciliation.memo.ledger_version = written["metadata"]["resourceVersion"]
        scaler.was_stored()
        scaler.written_at = self._ports.clock()

    async def _measure(self, reconciliation: Reconciliation, scaler: Autoscaler, plan: Applied, at: float) -> Measurement:
        """What Prometheus says of the join; without one, and while it cannot be used, what the driver itself says."""
        assert scaler.core is not None, "it has just followed"
        assert reconciliation.report is not None, "a step before stops without one"
        memo, bound = reconciliation.memo, scaler.core.settings.stale_seconds
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
        url = reconciliation.manifest.spec.scaling.prometheus.url or self._ports.settings.prometheus_url
        away: Distrusted | None = None
        if url:
            question = await self._question(reconciliation, url)
            found = question if isinstance(question, Distrusted) else await self._ports.prometheus.read(question, 2 * bound)
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
            found = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.DRIVER))
            memo.driver_pods = (state, tuple(sorted(pod["metadata"]["name"] for pod in found)))
        wanted, now = given.secret_names, self._ports.clock()
        if memo.login_secrets[0] != wanted or now - memo.login_secrets[1] >= SECRET_SECONDS:
            try:
                secrets = {name: await self._ports.api.get(api.SECRET, resource.namespace, name) for name in wanted}
            except ApiError as error:
                if error.status != 403:
                    raise
                return Distrusted(Reason.PrometheusDenied, f"spec.scaling.prometheus: the operator may not read a Secret: {error.message}")
            memo.login_secrets = (wanted, now, secrets)
        about = (resource.namespace, resource.name, resource.base)
        return Question(url, *about, pods=memo.driver_pods[1], login=given, secrets=memo.login_secrets[2])

    def _lateness(self, memo: Memo, seconds: float) -> str:
        """How old the newest whole scrape is beside the newest; the most of some minutes, or the status would be written at every poll."""
        now = self._ports.clock()
        if round(seconds) >= memo.late[0] or now - memo.late[1] >= LATE_SECONDS:
            memo.late = (round(seconds), now)
        if not memo.late[0]:
            return ""
        return f"series arrive late: the newest whole scrape counts, which is up to {memo.late[0]} s older than the newest"

    async def _why_missing(self, reconciliation: Reconciliation, question: Question) -> Distrusted:
        """Why Prometheus, which answers, has no series of the join."""
        memo, resource, settings, now = reconciliation.memo, reconciliation.resource, self._ports.settings, self._ports.clock()
        if memo.searched is None or now - memo.searched[0] >= SEARCH_SECONDS:
            memo.searched = (now, await self._ports.prometheus.search(question))
        monitor = missing.Monitor(
            resource.base,
            is_wanted=settings.pod_monitor != "off",
            is_known=memo.has_monitor,
            labels=children.monitor_labels(reconciliation.manifest, settings),
        )
        labels = (settings.prometheus_namespace_label, settings.prometheus_pod_label)
        return missing.why(memo.searched[1], monitor, url=question.url, namespace=resource.namespace, label=labels[0], pod_label=labels[1])


def _document(found: Object | None) -> Object | None:
    """What a ConfigMap has of the ledger; None where it cannot be read."""
    try:
        value = json.loads((found or {})["data"][children.LEDGER_KEY])
    except (KeyError, TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None
