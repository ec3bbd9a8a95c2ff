"""Of the manifest, which Prometheus the operator asks about a join, and how it logs in there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from streamjoin.manifest.field_types import HttpUrl, Matching, ObjectName
from streamjoin.manifest.part import Part

_HEADER = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ROUTING = re.compile(
    r"host|connection|keep-alive|content-.*|transfer-.*|te|trailer|upgrade|expect|accept|accept-encoding|forwarded|via|proxy-.*"
    r"|x-forwarded-.*|x-original-.*|x-rewrite-.*|x-http-method.*",
    re.IGNORECASE,
)
"""Headers that say where a request goes or how its body is read: by these another server than the one that is named could be asked."""
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_OF_THE_QUESTION = ("query", "time")
PRINTABLE = re.compile(r"[\x20-\x7e]*")


def header_problem(name: str) -> str | None:
    """Why a header of this name may not be given; None: it may."""
    if not _HEADER.fullmatch(name):
        return "which is no name of a header; write one as X-Scope-OrgID"
    if _ROUTING.fullmatch(name):
        return "which says where a request goes or how it is read; remove it"
    return None


def parameter_problem(name: str) -> str | None:
    """Why a query parameter of this name may not be given; None: it may."""
    if not _PARAMETER.fullmatch(name):
        return "which is no name of a query parameter; write one as dedup"
    return "which the operator gives itself; remove it" if name in _OF_THE_QUESTION else None


def _names(problem_of: Callable[[str], str | None]) -> AfterValidator:
    """Refuses a mapping for what is wrong with one of its names."""

    def checked(found: dict[str, str]) -> dict[str, str]:
        for name in found:
            if problem := problem_of(name):
                raise ValueError(f"has {name!r}, {problem}")
        return found

    return AfterValidator(checked)


_Text = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[\x20-\x7e]*$")]
SecretKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    Matching("[A-Za-z0-9._-]+", "is no key of a Secret; use letters, digits, -, _ and ."),
]


class PrometheusBearer(Part):
    """Kubernetes: a token for Prometheus."""

    secret_name: ObjectName
    """A Secret in the StreamJoin's namespace."""
    key: SecretKey = "token"
    """The key of the token in it."""


class PrometheusBasic(Part):
    """Kubernetes: a user and a password for Prometheus."""

    secret_name: ObjectName
    """A Secret in the StreamJoin's namespace with username and password, such as one of the type kubernetes.io/basic-auth."""


class PrometheusTls(Part):
    """Kubernetes: certificates for Prometheus."""

    secret_name: ObjectName
    """A Secret in the StreamJoin's namespace with tls.crt and tls.key, which the operator shows, or ca.crt, by which it trusts the server,
    or all three, as cert-manager creates it."""


class Prometheus(Part):
    """Kubernetes: the Prometheus that the operator asks about this join, if it is not the operator's own, and how it logs in there. If any
    field but url is given, nothing of the operator's own login is sent."""

    url: HttpUrl | None = None
    """Its address, such as http://prometheus.monitoring:9090. The operator's chart must allow it (prometheus.allowedUrls). By default it is
    the operator's own. The operator sends its own login to no other."""
    bearer: PrometheusBearer | None = None
    """The token that is sent."""
    basic: PrometheusBasic | None = None
    """The user and the password that are sent."""
    tls: PrometheusTls | None = None
    """The client certificate, and the authority of the server's."""
    headers: Annotated[dict[str, _Text], Field(max_length=32), _names(header_problem)] = Field(default={})
    """Headers that are sent, such as X-Scope-OrgID: team-a."""
    headers_secret_name: ObjectName | None = None
    """A Secret in the StreamJoin's namespace with more of them: each key is the name of a header."""
    query_parameters: Annotated[dict[str, _Text], Field(max_length=32), _names(parameter_problem)] = Field(default={})
    """Parameters that are added to each query, such as dedup: "true"."""

    @property
    def has_login(self) -> bool:
        """Whether it says how to log in."""
        return self != Prometheus(url=self.url)

    @property
    def secret_names(self) -> list[str]:
        """The Secrets that are read for it."""
        named = [part.secret_name for part in (self.bearer, self.basic, self.tls) if part is not None]
        return list(dict.fromkeys([*named, *([self.headers_secret_name] if self.headers_secret_name else [])]))
