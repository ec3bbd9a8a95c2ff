"""The operator's questions to Prometheus, against servers that answer as real ones do on bad days, and against a real one."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import math
import shutil
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import http_stub
from memory_cluster import MemoryCluster
from operator_parts import Object, streamjoin
from ports import free_address
from prometheus_server import command, needs_prometheus, process, prometheus
from scaled_join import ScaledJoin, ScaledServer
from streamjoin_operator.driver import DriverClient
from streamjoin_operator.measurement import Distrusted, Reading, Series, exposition, measure
from streamjoin_operator.metrics import Metrics
from streamjoin_operator.prometheus import PrometheusClient, Question, forbidden
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.settings import SettingError, Settings, read
from waiting import PATIENCE_SECONDS, wait_in_loop

GOOD: Object = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [{"metric": {"__name__": "streamjoin_plan_generation", "name": "one"}, "values": [[1.5, "3"], [2.5, "NaN"]]}],
    },
}


@dataclass
class Answers:
    """A server that gives one answer to everything, and remembers what it was asked."""

    status: int = 200
    body: bytes = json.dumps(GOOD).encode()
    headers: dict[str, str] = field(default_factory=dict)
    is_silent: bool = False
    """Nobody gets an answer before this is over."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: list[dict[str, str]] = field(default_factory=list)
    """The headers of each."""
    url: str = ""

    @contextmanager
    def served(self, tls: ssl.SSLContext | None = None) -> Iterator[Answers]:
        answers, over = self, threading.Event()

        class Handler(http_stub.Handler):
            def do_GET(self) -> None:
                answers.sent.append(dict(self.headers))
                answers.asked.append((self.path, self.headers.get("Authorization")))
                if answers.is_silent:
                    over.wait()
                self.answer(answers.status, answers.body, answers.headers)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

        with closing(http_stub.Served(Handler, tls)) as served:
            self.url = served.url
            try:
                yield self
            finally:
                over.set()


def about(url: str, **given: Any) -> Question:
    return Question(url, "team-a", "one", "sj-one", **given)


def ask(
    url: str, told: Callable[[Reason | None], None] = lambda reason: None, join: Object | None = None, **settings: Any
) -> list[Series] | Distrusted:
    async def asked() -> list[Series] | Distrusted:
        client = PrometheusClient(Settings(**{"prometheus_url": url, "prometheus_timeout_seconds": 5.0, **settings}), told=told)
        try:
            return await client.read(about(url, **(join or {})), 120.0)
        finally:
            await client.close()

    return asyncio.run(asked())


def reason_of(found: list[Series] | Distrusted) -> Reason:
    assert isinstance(found, Distrusted), found
    return found.reason


def test_the_raw_points_of_this_join_alone_are_asked_for() -> None:
    with Answers().served() as server:
        found = ask(server.url)
        assert isinstance(found, list)
        (series,) = found
        assert series.labels["__name__"] == "plan_generation"
        assert series.points[0] == (1.5, 3.0)
        assert math.isnan(series.points[1][1]), "what is no number is judged with the rest"
        ((path, authorization),) = server.asked
        assert path.startswith("/api/v1/query?query=")
        assert "namespace%3D%22team-a%22" in path
        assert "name%3D%22one%22" in path
        assert "pod%3D~%22sj-one-.%2B%22" in path
        assert path.endswith(("%5B120s%5D", "[120s]"))
        assert authorization is None


BAD_DAYS: dict[str, tuple[Answers, Reason]] = {
    "an error": (Answers(status=500, body=b"oh"), Reason.PrometheusFailed),
    "too many at once": (Answers(status=503, body=b'{"status":"error","error":"query queue is full"}'), Reason.PrometheusFailed),
    "an error that says success": (Answers(body=b'{"status":"error","errorType":"timeout","error":"x"}'), Reason.PrometheusFailed),
    "not let in": (Answers(status=401), Reason.PrometheusDenied),
    "forbidden": (Answers(status=403), Reason.PrometheusDenied),
    "a login page": (Answers(body=b"<html>who are you?</html>"), Reason.PrometheusUnusable),
    "a redirect": (Answers(status=302, headers={"Location": "http://evil:1/"}), Reason.PrometheusUnusable),
    "another API": (Answers(body=b"[1, 2]"), Reason.PrometheusUnusable),
    "another type": (Answers(body=b'{"status":"success","data":{"resultType":"vector","result":[]}}'), Reason.PrometheusUnusable),
    "a value that is none": (
        Answers(body=b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"a"},"values":[[1,"x"]]}]}}'),
        Reason.PrometheusUnusable,
    ),
    "a part of it": (Answers(body=json.dumps(GOOD | {"warnings": ["a store is down"]}).encode()), Reason.PrometheusUnusable),
    "cut short": (Answers(headers={"Content-Length": "100000"}), Reason.PrometheusUnreachable),
    "slow": (Answers(is_silent=True), Reason.PrometheusSlow),
}


@pytest.mark.parametrize("name", BAD_DAYS)
def test_an_answer_that_cannot_be_used_has_its_reason(name: str) -> None:
    answers, reason = BAD_DAYS[name]
    seconds = 1.0 if answers.is_silent or "Content-Length" in answers.headers else PATIENCE_SECONDS
    with answers.served() as server:
        found = ask(server.url, prometheus_timeout_seconds=seconds)
    assert reason_of(found) in ({reason, Reason.PrometheusSlow} if name == "cut short" else {reason})


def test_nobody_there_and_no_such_name() -> None:
    assert reason_of(ask(f"http://{free_address()}")) is Reason.PrometheusUnreachable
    assert reason_of(ask("http://prometheus.invalid:9090")) in (Reason.PrometheusUnreachable, Reason.PrometheusSlow)


def test_the_token_is_read_every_time_and_goes_to_its_own_address_alone(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with Answers().served() as own, Answers().served() as other:

        async def asked() -> None:
            client = PrometheusClient(
                Settings(
                    prometheus_url=own.url,
                    prometheus_allowed_urls=(f"{own.url}/team-a", other.url),
                    prometheus_token_file=str(token),
                )
            )
            try:
                for url in (own.url, f"{own.url}/team-a", other.url):
                    await client.read(about(url), 60.0)
                token.write_text("second")
                await client.read(about(own.url), 60.0)
                token.unlink()
                assert reason_of(await client.read(about(own.url), 60.0)) is Reason.PrometheusDenied
            finally:
                await client.close()

        asyncio.run(asked())
        assert [authorization for _, authorization in own.asked] == ["Bearer first", None, "Bearer second"]
        assert [authorization for _, authorization in other.asked] == [None]


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """One that 127.0.0.1 signs itself, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "prometheus")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority, secret = directory / "ca.crt", directory / "key.pem"
    authority.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    secret.write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, secret)
    return authority, context


def test_a_certificate_is_trusted_by_its_authority_or_by_order(tmp_path: Path) -> None:
    authority, context = certificate(tmp_path)
    with Answers().served(context) as server:
        assert reason_of(ask(server.url)) is Reason.PrometheusUnreachable
        assert isinstance(ask(server.url, prometheus_ca_file=str(authority)), list)
        assert isinstance(ask(server.url, prometheus_insecure=True), list)
        assert reason_of(ask(server.url, prometheus_ca_file=str(tmp_path / "absent"))) is Reason.PrometheusDenied


def test_how_questions_end_is_shown_to_prometheus_too() -> None:
    metrics = Metrics()
    with Answers().served() as good, Answers(status=500).served() as bad:
        ask(bad.url, metrics.asked)
        assert metrics.answered_at is None
        ask(good.url, metrics.asked)
    assert metrics.answered_at is not None
    counted = {sample.labels["result"]: sample.value for sample in metrics.questions.collect()[0].samples if sample.name.endswith("_total")}
    assert counted == {"PrometheusFailed": 1.0, "success": 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROMETHEUS_URL", "prometheus:9090"),
        ("PROMETHEUS_URL", "http://user:password@prometheus"),
        ("PROMETHEUS_URL", "http://prometheus/?a=b"),
        ("PROMETHEUS_URL", "http://prometheus:90900"),
        ("PROMETHEUS_ALLOWED_URLS", "http://prometheus:9090, prometheus:9090"),
        ("PROMETHEUS_ALLOWED_URLS", "http://prometheus:9090,http://prometheus:90900"),
        ("WATCH_NAMESPACE_SELECTOR", "a b"),
        ("WATCH_NAMESPACE_SELECTOR", "a in b"),
        ("PROMETHEUS_TIMEOUT_SECONDS", "0"),
        ("PROMETHEUS_NAMESPACE_LABEL", "a-b"),
        ("PRICE_PER_EXECUTOR_HOUR", "-1"),
        ("PRICE_PER_EXECUTOR_HOUR", "nan"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"STREAMJOIN_{name}"):
        read({f"STREAMJOIN_{name}": value})
    assert read({"STREAMJOIN_PRICE_PER_EXECUTOR_HOUR": "0"}).price_per_executor_hour == 0


def test_namespaces_are_named_or_selected() -> None:
    selector = "a.b/c=d, e in (f,g), h!=i, !j, k"
    assert read({"STREAMJOIN_WATCH_NAMESPACE_SELECTOR": selector}).watch_namespace_selector == selector
    with pytest.raises(SettingError, match="STREAMJOIN_WATCH_NAMESPACES is given too; remove one of them"):
        read({"STREAMJOIN_WATCH_NAMESPACE_SELECTOR": "a=b", "STREAMJOIN_WATCH_NAMESPACES": "c"})


class RealPrometheus:
    """One that scrapes a join four times a second, as one of a namespace; stopped, started anew, and emptied at will."""

    def __init__(self, directory: Path, stack: ExitStack, target: str) -> None:
        self._directory, self._stack, self._starts = directory, stack, 0
        self.target, self.labels = target, {"namespace": "default", "pod": "sj-one-7d4f-x"}
        self._address = free_address()
        self.url = f"http://{self._address}"
        self._running: ExitStack | None = None
        self.start()

    def start(self) -> None:
        self._starts += 1
        scrape = {
            "job_name": "streamjoin",
            "scrape_interval": "250ms",
            "static_configs": [{"targets": [self.target], "labels": self.labels}],
        }
        begin = command(self._directory, {"scrape_configs": [scrape]}, self._address)
        self._running = self._stack.enter_context(ExitStack())
        self._running.enter_context(process(self._directory / f"run{self._starts}", *begin))

    def stop(self, *, empty: bool = False) -> None:
        assert self._running is not None
        self._running.close()
        if empty:
            shutil.rmtree(self._directory / "tsdb")


class Loop:
    """An operator's reconciler with its real clients, in a cluster in memory; its own clock may be set ahead."""

    def __init__(self, join: ScaledServer, url: str, settings: Object | None = None, **spec: Any) -> None:
        self.join, self.cluster, self.ahead = join, MemoryCluster(), 0.0
        scaling = {"policy": "thresholds", "scaleUpAfter": "1s", "scaleDownAfter": "1s"}
        body = streamjoin(**{"scaling": scaling, **spec})
        body["metadata"] = {"name": "one", "namespace": "default"}
        self.cluster.put(body)
        given = {"prometheus_url": url, "driver_url": f"http://{join.address}", "prometheus_timeout_seconds": 2.0}
        self.settings = Settings(**{**given, **(settings or {})})
        self.drivers, self.prometheus = DriverClient(), PrometheusClient(self.settings)
        self.reconciler = Reconciler(
            self.cluster,  # type: ignore[arg-type]
            self.drivers,
            self.settings,
            self.prometheus,
            wall=lambda: datetime.datetime.fromtimestamp(time.time() + self.ahead, datetime.UTC),
        )

    async def until(self, what: str, found: Callable[[], Any]) -> None:
        """Reconciles until it is so; not more often than a Prometheus scrapes that has just started, by far."""

        async def is_found() -> Any:
            await self.once()
            return found()

        await wait_in_loop(what, is_found, every=0.25, told=lambda: str(self.status.get("conditions")))

    async def once(self) -> None:
        for body in self.cluster.of("StreamJoin"):
            self.reconciler.seen.saw(body)
        for body in self.cluster.of("Deployment"):
            self.reconciler.seen.saw_deployment(body)
        await self.reconciler.reconcile(("default", "one"))
        if ("Deployment", "default", "sj-one") in self.cluster.objects:
            self.cluster.ready("default", "sj-one")

    @property
    def status(self) -> Object:
        return dict(self.cluster.objects["StreamJoin", "default", "one"].get("status", {}))

    @property
    def metrics(self) -> str:
        return self._condition["reason"]

    @property
    def said(self) -> str:
        return self._condition["message"]

    @property
    def _condition(self) -> dict[str, str]:
        found = [found for found in self.status.get("conditions", []) if found["type"] == "MetricsAvailable"]
        return dict(found[0]) if found else {"reason": "", "message": ""}

    async def close(self) -> None:
        await self.drivers.close()
        await self.prometheus.close()


ALLOWED = ("http://prometheus.team-a:9090", "https://mimir.example.com/team-a/")


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("http://own:9090/prometheus", True),
        ("http://own:9090/prometheus/", True),
        ("http://own:9090", False),
        ("http://own:9090/prometheus/other", False),
        ("http://prometheus.team-a:9090", True),
        ("http://PROMETHEUS.team-a:9090/", True),
        ("http://prometheus.team-a:9090/below", True),
        ("https://prometheus.team-a:9090", False),
        ("http://prometheus.team-a", False),
        ("http://prometheus.team-a:90", False),
        ("http://prometheus.team-a:90900", False),
        ("http://prometheus.team-a.evil:9090", False),
        ("http://prometheus.team-a:9090@evil", False),
        ("https://mimir.example.com/team-a", True),
        ("https://mimir.example.com:443/team-a/b", True),
        ("https://mimir.example.com/team-ab", False),
        ("https://mimir.example.com/", False),
        ("https://mimir.example.com/team-a/../team-b", False),
        ("https://mimir.example.com/team-a/%2e%2e/team-b", False),
    ],
)
def test_a_resource_names_no_server_that_the_operators_settings_do_not(url: str, may: bool) -> None:
    found = forbidden(url, Settings(prometheus_url="http://own:9090/prometheus", prometheus_allowed_urls=ALLOWED))
    assert (found is None) is may
    if found is not None:
        assert found.reason is Reason.PrometheusNotAllowed
        assert found.text.startswith(f"spec.scaling.prometheus.url: {url} is neither prometheus.url of the operator's chart nor ")
        assert found.text.endswith("have it added there, or remove the field")


SECRET = "nobody-else-may-see-this"


@contextmanager
def banner(text: str) -> Iterator[str]:
    """A server that speaks no HTTP, and says something to whoever comes; its address."""

    class Speaks(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(text.encode())
            self.request.recv(1 << 16)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Speaks) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def quoting(**answer: Any) -> Answers:
    return Answers(body=json.dumps(answer).encode())


TELLING: dict[str, Answers | str] = {
    "a page": Answers(body=f"<html>{SECRET}</html>".encode()),
    "an error page": Answers(status=500, body=SECRET.encode()),
    "an error of Prometheus' API": Answers(status=422, body=json.dumps({"status": "error", "errorType": SECRET, "error": SECRET}).encode()),
    "an error of another API": Answers(status=404, body=json.dumps({"error": SECRET, "message": SECRET}).encode()),
    "an error that says success": quoting(status="error", errorType=SECRET, error=SECRET),
    "an error of a known type": quoting(status="error", errorType="bad_data", error=SECRET),
    "warnings": Answers(body=json.dumps(GOOD | {"warnings": [SECRET]}).encode()),
    "another type of result": quoting(status="success", data={"resultType": SECRET, "result": []}),
    "a value that is none": quoting(
        status="success", data={"resultType": "matrix", "result": [{"metric": {"__name__": SECRET}, "values": [[1, SECRET]]}]}
    ),
    "a login": Answers(status=401, body=SECRET.encode(), headers={"WWW-Authenticate": f'Basic realm="{SECRET}"'}),
    "a redirect": Answers(status=302, body=SECRET.encode(), headers={"Location": f"http://127.0.0.1:9/{SECRET}"}),
    "a health that is another's": quoting(error=SECRET, status=SECRET),
    "a header that is none": Answers(headers={"X": f"{SECRET}\x00"}),
    "no HTTP": f"220 {SECRET} ESMTP\r\n",
    "half of it": f"HTTP/1.1 200 {SECRET}\r\nContent-Length: {SECRET}\r\n\r\n",
}
"""Answers of servers that only the operator can reach, and what they must not tell."""


@contextmanager
def telling(name: str) -> Iterator[str]:
    found = TELLING[name]
    if isinstance(found, str):
        with banner(found) as url:
            yield url
    else:
        with found.served() as server:
            yield server.url


@pytest.mark.parametrize("name", TELLING)
def test_no_word_of_an_answer_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of a server that a resource names: neither in its status, nor in an event, nor in a log."""
    caplog.set_level("INFO")

    async def told(url: str) -> None:
        server = ScaledServer(ScaledJoin(time.time, 48_000.0, start_seconds=1.0, move_seconds=0.5))
        loop = Loop(server, "", {"prometheus_allowed_urls": (url,)}, scaling={"prometheus": {"url": url}})
        try:
            await loop.until("it is judged", lambda: loop.metrics.startswith("Prometheus"))
            seen = json.dumps([loop.status, loop.cluster.events, loop.cluster.of("ConfigMap")]) + caplog.text
            assert SECRET not in seen
            if name == "an error of a known type":
                assert "it answers with an error (bad_data)" in seen
        finally:
            await loop.close()
            server.close()

    with telling(name) as url:
        asyncio.run(told(url))


@pytest.mark.parametrize("name", TELLING)
def test_no_word_of_what_answers_in_a_drivers_place_is_told(name: str) -> None:
    """A Service's endpoints may be changed by others than the operator. What speaks the driver's API is taken for a driver."""

    async def asked(url: str) -> str:
        client = DriverClient()
        try:
            report = await client.read(url, "token")
            answered = await client.put(url, "token", {"workers": 2})
            return f"{report} {answered}"
        finally:
            await client.close()

    with telling(name) as url:
        found = asyncio.run(asked(url))
    if name == "an error of Prometheus' API":
        found = found.split("Answered(")[0]  # the plan API says in the same way what is wrong with a plan
    assert SECRET not in found


def test_nothing_is_sent_to_where_a_resource_or_an_answer_points() -> None:
    async def told(elsewhere: Answers, sends_on: Answers) -> None:
        server = ScaledServer(ScaledJoin(time.time, 48_000.0, start_seconds=1.0, move_seconds=0.5))
        loop = Loop(server, "", scaling={"prometheus": {"url": elsewhere.url}})
        client = DriverClient()
        try:
            await loop.until("it is refused", lambda: loop.metrics == "PrometheusNotAllowed")
            (message,) = [found["message"] for found in loop.status["conditions"] if found["type"] == "MetricsAvailable"]
            assert message.startswith(f"spec.scaling.prometheus.url: {elsewhere.url} is neither ")
            ready = [found["status"] for found in loop.status["conditions"] if found["type"] == "Ready"]
            assert ready == ["True"], "the join goes on"
            assert (await client.read(sends_on.url, "token")).problem == "/v1/health answers 307, and not as a driver does"
            assert (await client.put(sends_on.url, "token", {"workers": 2})).status == 307
            assert await client.statistics(sends_on.url, "token") is None
        finally:
            await client.close()
            await loop.close()
            server.close()

    with Answers().served() as elsewhere, Answers(status=307, headers={"Location": elsewhere.url}).served() as sends_on:
        asyncio.run(told(elsewhere, sends_on))
        assert isinstance(ask(sends_on.url), Distrusted)
        assert elsewhere.asked == []


@pytest.mark.prometheus
@needs_prometheus
def test_a_real_prometheus_that_comes_goes_and_lies(tmp_path: Path) -> None:
    """Fresh: the join grows. Then each way in which what Prometheus has cannot be trusted: nobody goes, and the reason is said."""

    async def told(stack: ExitStack) -> None:
        join = ScaledJoin(time.time, 48_000.0, start_seconds=1.0, move_seconds=0.5)
        server = ScaledServer(join)
        stack.callback(server.close)
        prometheus = RealPrometheus(tmp_path, stack, server.address)
        loop = Loop(server, prometheus.url, {"prometheus_timeout_seconds": PATIENCE_SECONDS})
        try:
            await loop.until("the join grows", lambda: join.workers > 1)
            workers = join.workers
            await loop.until("what came true is known", lambda: loop.status["decisions"][-1]["outcome"] == "Applied")
            asked = len(join.wishes)
            first = 'utilization_ratio{name="one",task="0"}'
            faults: list[tuple[str, Callable[[str], str]]] = [
                ("MetricsNotFinite", lambda text: text.replace(f"{first} {join.tau[0]}", f"{first} NaN")),
                ("MetricsNotFinite", lambda text: text.replace(f"{first} {join.tau[0]}", f"{first} +Inf")),
                ("MetricsOfOtherPlan", lambda text: text.replace('plan_generation{name="one"} ', 'plan_generation{name="one"} 7')),
            ]
            join.tuples = 2_000.0
            for reason, spoil in faults:
                join.spoil = spoil
                await loop.until(reason, lambda reason=reason: loop.metrics == reason)
                for _ in range(10):  # longer than scaleDownAfter
                    loop.ahead += 0.2
                    await loop.once()
                assert loop.metrics == reason
            join.spoil = lambda text: text
            prometheus.stop()
            await loop.until("Prometheus is gone", lambda: loop.metrics == "PrometheusUnreachable")
            prometheus.start()
            loop.ahead = 90.0
            await loop.until("its samples are old", lambda: loop.metrics == "MetricsStale")
            loop.ahead = 0.0
            prometheus.stop(empty=True)
            join.spoil = lambda text: "no metrics"
            prometheus.start()
            await loop.until("it is empty", lambda: loop.metrics == "MetricsMissing")
            assert len(join.wishes) == asked, "nothing was decided by any of that"
            assert join.workers == workers
            join.spoil = lambda text: text
            await loop.until("it has samples again, and the join shrinks", lambda: join.workers < workers)
        finally:
            await loop.close()

    with ExitStack() as stack:
        asyncio.run(told(stack))


@pytest.mark.prometheus
@needs_prometheus
def test_a_real_prometheus_that_is_written_to_has_the_series_of_a_scrape_one_after_the_other(tmp_path: Path) -> None:
    """By remote write, whose shards are not awaited: first all of three scrapes, then a part of the fourth, then the rest of it."""
    join = ScaledJoin(time.time, 2_000.0, workers=2)
    begin = math.floor(time.time()) - 30.0

    def scraped(at: float) -> list[tuple[dict[str, str], float, float]]:
        where = {"namespace": "team-a", "pod": "sj-one-7d4f-x"}
        return [({**dict(labels), **where}, value, at) for labels, value in exposition(join.metrics())]

    def measured(url: str) -> Reading:
        found = ask(url, prometheus_timeout_seconds=PATIENCE_SECONDS)
        assert isinstance(found, list), found
        streams = (("orders",), ("payments",))
        reading = measure(found, generation=1, workers=2, streams=streams, now=begin + 30.0, bound=60.0)
        assert isinstance(reading, Reading), reading
        return reading

    with prometheus(tmp_path / "prometheus", {}, "--web.enable-remote-write-receiver") as server:
        for number in range(3):
            server.write(scraped(begin + 10.0 * number))
        assert (measured(server.url).at, measured(server.url).late_seconds) == (begin + 20.0, 0.0)
        early, rest = [], []
        for one in scraped(begin + 30.0):
            (rest if one[0].get("task") == "1" else early).append(one)
        server.write(early)
        assert (measured(server.url).at, measured(server.url).late_seconds) == (begin + 20.0, 10.0)
        server.write(rest)
        assert (measured(server.url).at, measured(server.url).late_seconds) == (begin + 30.0, 0.0)


@pytest.mark.prometheus
@needs_prometheus
def test_a_real_prometheus_without_series_of_the_join_is_asked_what_else_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing; a target that is down; another label for namespaces; and, at last, what is wanted."""
    monkeypatch.setattr("streamjoin_operator.scaling_step.SEARCH_SECONDS", 0.5)

    async def told(stack: ExitStack) -> None:
        join = ScaledJoin(time.time, 2_000.0)
        server = ScaledServer(join)
        stack.callback(server.close)
        prometheus = RealPrometheus(tmp_path, stack, free_address())
        loop = Loop(server, prometheus.url, {"prometheus_timeout_seconds": PATIENCE_SECONDS})

        def says(reason: str, text: str) -> bool:
            return loop.metrics == reason and text in loop.said

        def again(target: str, **labels: str) -> None:
            prometheus.stop()
            prometheus.target, prometheus.labels = target, labels
            prometheus.start()

        try:
            await loop.until("it has nothing", lambda: says("MetricsMissing", "The cluster has no kind PodMonitor"))
            again(free_address(), namespace="default", pod="sj-one-7d4f-x")
            await loop.until("it cannot scrape", lambda: says("MetricsMissing", "it finds pod sj-one-7d4f-x and cannot scrape it"))
            again(server.address, kubernetes_namespace="default")
            other = "set prometheus.namespaceLabel to kubernetes_namespace"
            await loop.until("it labels them otherwise", lambda: says("MetricsMissing", other))
            again(server.address, namespace="default", pod="sj-one-7d4f-x")
            await loop.until("it has them", lambda: loop.metrics == "MetricsRead" and loop.status["utilization"]["source"] == "Prometheus")
        finally:
            await loop.close()

    with ExitStack() as stack:
        asyncio.run(told(stack))
