"""Epochs as OpenTelemetry traces, sent to where OpenTelemetry's own variables say; without an endpoint in them there are none.

An epoch is a trace: its span lasts from its plan to the end of cleaning, with a span for each step, one after the other, and those of the
tasks' own steps (the longest of all tasks, each) below that of the tasks. A failed attempt is a span with the error; a decision to scale
is one without a length.

It is made of what was measured anyway, after the commit, and sent by the SDK in the background, which drops what it cannot send.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from streamjoin.elastic.decision import Decision
from streamjoin.epoch.ports import EpochResult
from streamjoin.serve.metrics import STEPS, TASK_STEP
from streamjoin.serve.observer import Observer

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class TracesUnavailableError(RuntimeError):
    """An endpoint is given, and nothing here can send to it."""


class Traces(Observer):
    """See the module. To be told by one thread."""

    def __init__(self, provider: Any) -> None:
        """``provider``: an SDK's TracerProvider, which is shut down at the end of the run."""
        self._provider, self._tracer = provider, provider.get_tracer("streamjoin")
        self._attempted_at = time.time()

    def attempting(self) -> None:
        self._attempted_at = time.time()

    def committed(self, driver: Driver, result: EpochResult) -> None:
        steps = _in_order([name for name in result.seconds if not name.startswith(TASK_STEP)], ("deploy", *STEPS))
        begin, end = result.started_at, result.started_at + sum(result.seconds[name] for name in steps)
        with self._span("epoch", begin, end, _of_epoch(result)) as epoch:
            at = begin
            for name in steps:
                with self._span(name, at, at + result.seconds[name], {}, below=epoch) as step:
                    if name == "tasks":
                        self._of_tasks(result, at, step)
                at += result.seconds[name]

    def failed(self, driver: Driver, error: Exception) -> None:
        with self._span("epoch", self._attempted_at, time.time(), {}) as span:
            span.record_exception(error)
            span.set_status(_error(f"{type(error).__name__}: {error}"))

    def decided(self, decision: Decision) -> None:
        if decision.is_told:
            told = {"kind": decision.kind.value, "workers": decision.workers, "target": decision.target, "sentence": decision.sentence}
            with self._span("decision", decision.at, decision.at, {f"streamjoin.{name}": value for name, value in told.items()}):
                pass

    def ended(self) -> None:
        self._provider.shutdown()

    def _of_tasks(self, result: EpochResult, at: float, above: Any) -> None:
        own = {name.removeprefix(TASK_STEP): spent for name, spent in result.seconds.items() if name.startswith(TASK_STEP)}
        for name in _in_order(list(own), ("route",)):
            with self._span(name, at, at + own[name], {}, below=above):
                at += own[name]

    def _span(self, name: str, begin: float, end: float, attributes: dict[str, Any], *, below: Any = None) -> _Span:
        from opentelemetry.trace import set_span_in_context

        context = None if below is None else set_span_in_context(below)
        return _Span(self._tracer.start_span(name, context, attributes=attributes, start_time=_nanoseconds(begin)), _nanoseconds(end))


class _Span:
    """A span that has an end already."""

    def __init__(self, span: Any, end: int) -> None:
        self._span, self._end = span, end

    def __enter__(self) -> Any:
        return self._span

    def __exit__(self, *error: object) -> None:
        self._span.end(self._end)


def traces_of(name: str) -> Traces | None:
    """Those of the join of this name, if the environment asks for any. Raises TracesUnavailableError."""
    if not any(os.environ.get(variable) for variable in ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        given = next(variable for variable in ENDPOINTS if os.environ.get(variable))
        remedy = f"{error.name} is missing; pip install 'streamjoin[otel]'"
        raise TracesUnavailableError(f"{given} is set, and no traces are sent: {remedy}") from error
    # Resource.create puts OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES above these.
    service = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "streamjoin"}
    provider = TracerProvider(resource=Resource.create({**service, "streamjoin.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


def _of_epoch(result: EpochResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "epoch": result.epoch,
        "generation": result.generation,
        "results": result.output,
        "candidates": result.candidates,
        "workers": len(result.utilization),
        "tau": max(result.utilization.values(), default=0.0),
    }
    for stream, accepted, backlog in zip(result.streams, result.counts["accepted"], result.backlog, strict=True):
        found |= {f"accepted.{stream}": accepted, f"backlog.{stream}": backlog}
    return {f"streamjoin.{name}": value for name, value in found.items()}


def _in_order(names: list[str], order: tuple[str, ...]) -> list[str]:
    """Those that are in the order by it, and others behind them."""
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _error(text: str) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, text)


def _nanoseconds(at: float) -> int:
    return round(at * 1e9)
