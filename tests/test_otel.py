"""Traces of epochs, as a collector gets them over HTTP."""

from __future__ import annotations

import builtins
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import streamjoin
from streamjoin.serve.traces import traces_of


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the spans that have come, each with the attributes of its resource."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Collects(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces"
            for resource in asked.resource_spans:
                about = {each.key: each.value.string_value for each in resource.resource.attributes}
                spans.extend((about, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()


def join_in(root: Path) -> streamjoin.Join:
    def stream(seed: int) -> dict[str, Any]:
        columns = {"k": {"uniform": {"min": 1, "max": 50}}}
        made = {"seed": seed, "rows": 400, "rate": {"constant": 100}, "realTime": False, "columns": columns}
        return {"source": {"generator": made}, "schema": "k BIGINT, at TIMESTAMP", "eventTime": "at"}

    output = {"sink": {"files": {"path": str(root / "out"), "format": "json"}}}
    joins = {"near": {"condition": "abs(l.k - r.k) <= 1", "window": {"within": "1s"}, "output": output}}
    streams = {"l": stream(1), "r": stream(2)}
    return streamjoin.Join.of("traced", streams=streams, joins=joins, checkpoint=root / "state", epoch={"maxTuples": 200})


def test_an_epoch_is_a_trace_with_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=team-a")
        with join_in(tmp_path).run(runner="inline", until_idle=True) as run:
            epochs = list(run)
        assert len(epochs) > 2
        roots = {span.span_id: span for _, span in spans if not span.parent_span_id}
        assert {about["service.name"] for about, _ in spans} == {"streamjoin"}
        assert {(about["streamjoin.name"], about["k8s.namespace.name"]) for about, _ in spans} == {("traced", "team-a")}
        found = [{each.key: each.value for each in span.attributes} for span in roots.values() if span.name == "epoch"]
        numbers = {each["streamjoin.epoch"].int_value: each["streamjoin.results"].int_value for each in found}
        assert numbers == {epoch.number: epoch.output for epoch in epochs}
        assert sum(each["streamjoin.accepted.l"].int_value for each in found) == 400
        by_id = {span.span_id: span for _, span in spans}
        for span in by_id.values():
            if span.parent_span_id:
                above = by_id[span.parent_span_id]
                assert span.trace_id == above.trace_id
                assert span.start_time_unix_nano >= above.start_time_unix_nano
        below = {(by_id[span.parent_span_id].name, span.name) for span in by_id.values() if span.parent_span_id}
        assert {("epoch", "tasks"), ("epoch", "commit"), ("epoch", "publish"), ("tasks", "route"), ("tasks", "join")} <= below


def test_an_error_is_in_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{address}/v1/traces")
        traces = traces_of("one")
        assert traces is not None
        traces.attempting()
        traces.failed(None, ValueError("storage is down"))  # type: ignore[arg-type]
        traces.ended()
        ((_, span),) = spans
        assert (span.name, span.status.message) == ("epoch", "ValueError: storage is down")
        assert span.events[0].name == "exception"


def test_without_an_endpoint_there_are_none_and_without_the_package_the_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert traces_of("one") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert traces_of("one") is None
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    caplog.set_level("INFO", logger="streamjoin")
    with join_in(tmp_path).run(runner="inline", until_idle=True) as run:
        assert list(run)
    (warning,) = [line for line in caplog.messages if "OTEL" in line]
    assert warning.removeprefix("warning: ").startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are sent: opentelemetry")
    assert warning.endswith("is missing; pip install 'streamjoin[otel]'")
