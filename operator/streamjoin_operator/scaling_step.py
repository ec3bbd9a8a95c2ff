"""The step that scales: samples in, the decision written down, and then the wish put to the driver."""

from __future__ import annotations

import json

from streamjoin.elastic.decision import Kind
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Rule
from streamjoin_operator import api, children, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.autoscale import WRITE_SECONDS, Applied, Autoscaler, event_of, settings_of
from streamjoin_operator.drift import Object
from streamjoin_operator.measurement import Distrusted, Scrapes, measure
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Verdict
from streamjoin_operator.reporting import Reporter


class ScalingStep:
    """See the module."""

    def __init__(self, ports: Ports, reporter: Reporter) -> None:
        self._ports, self._reporter = ports, reporter

    async def scale(self, reconciliation: Reconciliation) -> Verdict:
        """Decide how many workers there should be; write it down; then have the driver see to it."""
        if reconciliation.refused is not None or reconciliation.has_put:
            return PROCEED
        assert reconciliation.report is not None, "a step before stops without one"
        assert reconciliation.derived.job is not None, "the first step stops without one"
        assert reconciliation.memo.token is not None, "a step before stops without one"
        memo, manifest, job, url, token = (
            reconciliation.memo,
            reconciliation.manifest,
            reconciliation.derived.job,
            self._ports.driver_url(reconciliation.resource),
            reconciliation.memo.token,
        )
        settings = settings_of(manifest, reconciliation.resource.pause)
        if all(settings.mode_of(rule) is Mode.OFF for rule in Rule):
            memo.scaler = None
            return PROCEED
        scaler, at, plan = await self._scaler(reconciliation), self._ports.now, Applied.of(reconciliation.report.plan)
        if scaler is None:
            return PROCEED
        reconciliation.events += scaler.follow(manifest, reconciliation.resource.pause, plan, at)
        reconciliation.events += scaler.take(await self._sample(reconciliation, plan, at), plan)
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
        answer = await self._ports.drivers.put(url, token, wish)
        reconciliation.events += scaler.put(answer.status, answer.text, plan, at)
        if answer.status != 202:
            reconciliation.wanted_workers = asked  # by the manifest, whoever refuses it
        return PROCEED

    async def _scaler(self, reconciliation: Reconciliation) -> Autoscaler | None:
        """What is remembered of the scaling; of an operator before, what it has stored. None where that cannot be."""
        memo = reconciliation.memo
        if memo.scaler is None:
            stored = await self._stored_ledger(reconciliation)
            if reconciliation.refused is not None:
                return None
            memo.scaler = Autoscaler(stored)
            memo.scaler.written_at = self._ports.clock()
        return memo.scaler

    async def _stored_ledger(self, reconciliation: Reconciliation) -> Object | None:
        name = names.ledger_name(reconciliation.resource.name)
        found = await self._ports.api.find(api.CONFIG_MAP, reconciliation.resource.namespace, name)
        if found is not None and not reconciliation.resource.may_apply(found):
            text = f"ConfigMap {name} exists and is not this StreamJoin's; delete or rename it, and the join is scaled"
            reconciliation.refused = (Reason.ForeignObject, text)
            return None
        reconciliation.memo.ledger_version = None if found is None else found["metadata"]["resourceVersion"]
        if found is None:
            return None
        try:
            value = json.loads(found["data"][children.LEDGER_KEY])
        except (KeyError, TypeError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    async def _write_ledger(self, reconciliation: Reconciliation, scaler: Autoscaler) -> None:
        """Store the decisions. Where another operator was quicker, its are read, and this pass ends here; the next one decides."""
        self._ports.on_step("ledger")
        try:
            written = await self._ports.api.apply(
                children.ledger(reconciliation.resource, scaler.document(), reconciliation.memo.ledger_version)
            )
        except ApiError as error:
            if error.status == 409:
                scaler.adopt(await self._stored_ledger(reconciliation))
            raise
        reconciliation.memo.ledger_version = written["metadata"]["resourceVersion"]
        scaler.is_new = scaler.has_holds = False
        scaler.written_at = self._ports.clock()

    async def _sample(self, reconciliation: Reconciliation, plan: Applied, at: float) -> Sample | Distrusted:
        """What Prometheus says of the join; without one, the driver itself."""
        assert reconciliation.report is not None, "a step before stops without one"
        assert reconciliation.derived.job is not None, "the first step stops without one"
        assert reconciliation.memo.scaler is not None, "it has just been made"
        assert reconciliation.memo.scaler.core is not None, "it has just followed"
        memo, resource, bound = reconciliation.memo, reconciliation.resource, reconciliation.memo.scaler.core.settings.stale_seconds
        url = reconciliation.manifest.spec.scaling.prometheus.url or self._ports.settings.prometheus_url
        if url:
            memo.scrapes = None
            found = await self._ports.prometheus.read(url, resource.namespace, resource.name, 2 * bound)
            if isinstance(found, Distrusted):
                return found
        else:
            memo.scrapes = memo.scrapes or Scrapes(2 * bound)
            memo.scrapes.add(reconciliation.report.text, at)
            found = memo.scrapes.series()
        return measure(
            found,
            generation=plan.generation,
            workers=plan.workers,
            streams=tuple(stream.name for stream in reconciliation.derived.job.streams),
            now=at,
            bound=bound,
            is_retrying=reconciliation.report.health.get("state") == "retrying",
        )
