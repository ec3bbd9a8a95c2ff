"""Hosts and ports as text, in which a host that is an IPv6 address stands in brackets (RFC 3986, section 3.2.2)."""

from __future__ import annotations

import socket

EVERYWHERE = "::"
"""All addresses of this machine, of IPv6 and of IPv4."""


def listened(address: str) -> str:
    """Where to listen for this address: where the machine has no IPv6, all of IPv4's for :data:`EVERYWHERE`."""
    return "0.0.0.0" if address == EVERYWHERE and not socket.has_dualstack_ipv6() else address  # noqa: S104 - as it is asked to


def endpoint(host: str, port: int | str) -> str:
    """``host:port``, as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parts_of(endpoint: str) -> tuple[str, int]:
    """The host and the port of what :func:`endpoint` has made."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
