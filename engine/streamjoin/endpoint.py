"""Hosts and ports as text, in which a host that is an IPv6 address stands in brackets (RFC 3986, section 3.2.2)."""

from __future__ import annotations


def endpoint(host: str, port: int | str) -> str:
    """``host:port``, as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parts_of(endpoint: str) -> tuple[str, int]:
    """The host and the port of what :func:`endpoint` has made."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
