"""Hosts and ports as text, there and back; and servers that are called by IPv4 (by IPv6: test_ipv6.py)."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from streamjoin.endpoint import EVERYWHERE, endpoint, listened, parts_of
from streamjoin.serve.server import DriverServer
from streamjoin_operator.health import Health, HealthServer
from streamjoin_operator.queue import Queue


@pytest.mark.parametrize(
    ("host", "text"),
    [("127.0.0.1", "127.0.0.1:7077"), ("driver.shop.svc", "driver.shop.svc:7077"), ("fe80::1%eth0", "[fe80::1%eth0]:7077")],
)
def test_an_endpoint_is_taken_apart_as_it_was_made(host: str, text: str) -> None:
    assert endpoint(host, 7077) == text
    assert parts_of(text) == (host, 7077)


def test_pods_are_called_by_ipv4_where_they_listen_everywhere() -> None:
    with DriverServer(None, EVERYWHERE) as server, urlopen(f"http://127.0.0.1:{server.url.rpartition(':')[2]}/") as answer:
        assert answer.status == 200
    health = Health(Queue(lambda key: None))  # type: ignore[arg-type, return-value]
    with HealthServer(health, CollectorRegistry(), 0) as operator, urlopen(f"http://127.0.0.1:{operator.port}/healthz") as answer:
        assert answer.read() == b"alive"


def test_without_ipv6_all_of_ipv4_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert (listened(EVERYWHERE), listened("fd00::7"), listened("10.0.0.7")) == ("0.0.0.0", "fd00::7", "10.0.0.7")
    with DriverServer(None, EVERYWHERE) as server, urlopen(f"http://127.0.0.1:{server.url.rpartition(':')[2]}/") as answer:
        assert answer.status == 200
