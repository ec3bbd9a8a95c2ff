"""What pods serve and call where a cluster has IPv6 alone, at ``::1``: HTTP, Flight, the webhook, pieces, and Spark."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from pyarrow import flight

from certificates import Authority
from joins import check_case
from streamjoin.bearer import TokenFile
from streamjoin.endpoint import EVERYWHERE, endpoint
from streamjoin.runner.exchange import Exchange
from streamjoin.runner.security import Security
from streamjoin.runner.spark import SparkRunner, SparkSettings
from streamjoin.serve.server import DriverServer
from streamjoin_operator.admission import AdmissionServer
from streamjoin_operator.health import Health, HealthServer
from streamjoin_operator.queue import Queue
from test_exchange import contents, piece
from test_flight import serving
from test_pods import here
from test_query_follow import job_in, run, written

LOOPBACK = "::1"


@pytest.fixture(autouse=True)
def has_ipv6() -> None:
    try:
        socket.create_server((LOOPBACK, 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")


def test_a_drivers_pages_and_the_operators_health_answer() -> None:
    with DriverServer(None, EVERYWHERE) as server, urlopen(f"http://{endpoint(LOOPBACK, server.url.rpartition(':')[2])}/") as answer:
        assert answer.status == 200
    health = Health(Queue(lambda key: None))  # type: ignore[arg-type, return-value]
    with HealthServer(health, CollectorRegistry(), 0) as operator, urlopen(f"http://{endpoint(LOOPBACK, operator.port)}/healthz") as answer:
        assert answer.read() == b"alive"


def test_the_webhook_answers_the_api_server(tmp_path: Path) -> None:
    Authority(tmp_path).issue("sj-admission.operators.svc")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with (
        AdmissionServer(0, tmp_path) as server,
        socket.create_connection((LOOPBACK, server.port)) as plain,
        context.wrap_socket(plain, server_hostname="sj-admission.operators.svc") as secured,
    ):
        secured.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert secured.recv(100).startswith(b"HTTP/1.")


@pytest.mark.usefixtures("forked_queries")
def test_queries_are_answered_by_flight(tmp_path: Path) -> None:
    run(job_in(tmp_path), tmp_path)
    (tmp_path / "token").write_text("s" * 32)
    shown = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + b"s" * 32)])
    with serving(job_in(tmp_path), token=TokenFile(tmp_path / "token"), address=EVERYWHERE) as server:
        url = f"grpc://{endpoint(LOOPBACK, server.url.rpartition(':')[2])}"
        with flight.FlightClient(url) as client:
            table = client.do_get(flight.Ticket(b'{"sql": "SELECT a, b FROM found"}'), shown).read_all()
    assert table.num_rows == written(tmp_path).total()


def test_workers_exchange_pieces() -> None:
    sender, receiver = (Exchange(LOOPBACK, Security(b"the application's")) for _ in range(2))
    assert receiver.address.startswith("[::1]:")
    for each in (sender, receiver):
        each.begin(0, [sender.address])
    sender.send(0, receiver.address, piece(0, 7))
    sender.end(0, [receiver.address])
    assert contents(receiver.pieces(0, [0])) == contents(iter([piece(0, 7)]))
    sender.close()
    receiver.close()


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[SparkRunner]:
    """With executors of their own, and what a driver in a pod tells Spark of its address."""
    pods = here(POD_IP=LOOPBACK)
    told = {name: pods.conf("one")[name] for name in ("spark.driver.host", "spark.driver.bindAddress")}
    runner = SparkRunner(SparkSettings(tmp_path / "logs", master="local-cluster[2,1,512]", address=pods.address, conf=told))
    yield runner
    runner.stop()


@pytest.mark.spark
def test_executors_call_a_driver_and_join(runner: SparkRunner, tmp_path: Path) -> None:
    check_case("band", runner, tmp_path, workers=2)
    assert runner.context.getConf().get("spark.driver.host") == "[::1]"
