"""Hosts and ports as text, there and back."""

from __future__ import annotations

import pytest

from streamjoin.endpoint import endpoint, parts_of


@pytest.mark.parametrize(
    ("host", "text"),
    [("127.0.0.1", "127.0.0.1:7077"), ("driver.shop.svc", "driver.shop.svc:7077"), ("fe80::1%eth0", "[fe80::1%eth0]:7077")],
)
def test_an_endpoint_is_taken_apart_as_it_was_made(host: str, text: str) -> None:
    assert endpoint(host, 7077) == text
    assert parts_of(text) == (host, 7077)
