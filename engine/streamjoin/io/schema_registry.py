"""A schema registry that speaks the protocol of Confluent's: which schema an id means, and an id for a schema.

It is asked over HTTP by ``http.client``, as it answers four requests here: Confluent's own client brings an HTTP library, two for logins
and a list of certificates, which each worker would load. A schema never changes under its id, so each process asks for it once.

Always holds: a registry that cannot be reached, or fails, is asked again until the time is over, and no record is given up for it; what is
known of an id is kept only where the registry has said it. Secrets are read where a client is made, and no text made here has one.

Source: the REST API of Confluent's Schema Registry, 7.x.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from streamjoin.io.base import UnavailableError
from streamjoin.io.references import resolved

PAUSE_SECONDS = 0.2
REQUEST_SECONDS = 10.0
"""One request takes no longer."""
UNKNOWN_SECONDS = 1.0
"""An id that the registry does not know may have come to another of its servers a moment ago; so long it is asked again ..."""
FORGET_SECONDS = 30.0
"""... and so long the answer is kept."""
MOST_BYTES = 64 * 1024 * 1024
NOT_FOUND = (40401, 40402, 40403)
"""The registry's own codes for a subject, a version and a schema that are not there."""
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_REMEDY = "see whether it is up, and whether schemaRegistry.url and options fit it"

T = TypeVar("T")


class UnknownSchemaError(LookupError):
    """The registry has no schema of that id. The text is the registry's."""


@dataclass(frozen=True)
class RegistryConfig:
    """A schema registry as the manifest describes it."""

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """username and password, or bearer.auth.token; ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password."""
    timeout_seconds: float = 30.0

    def __str__(self) -> str:
        return f"schema registry {self.url}"


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """(name, text) of the schemas that it needs, each after those that it needs itself."""


class SchemaRegistry:
    """A client. Any thread may use it."""

    def __init__(self, config: RegistryConfig, errors: type[Exception]) -> None:
        """Asks nothing yet. Raises ``errors``, as all that waiting does not mend."""
        self.config = config
        self._errors = errors
        self._lock = threading.Lock()
        self._known: dict[int, Registered] = {}
        self._unknown: dict[int, tuple[float, str]] = {}
        """When it was asked for an id that it does not have, and what it said."""
        self._last_unknown = -FORGET_SECONDS
        self._made: dict[Hashable, Any] = {}
        self._base = urlsplit(config.url)
        options = resolved(config.options, "schemaRegistry.options", "the driver and the workers run", errors)
        self._headers = {"Accept": ACCEPT}
        if "bearer.auth.token" in options:
            self._headers["Authorization"] = f"Bearer {options['bearer.auth.token']}"
        elif "username" in options:
            login = f"{options['username']}:{options.get('password', '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._tls = self._context(options) if self._base.scheme == "https" else None

    def _context(self, options: dict[str, str]) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
            if "ssl.certificate.location" in options:
                own = options["ssl.certificate.location"], options.get("ssl.key.location")
                context.load_cert_chain(*own, password=options.get("ssl.key.password", ""))
        except (OSError, ValueError) as error:
            message = f"schemaRegistry.options: the certificates cannot be used ({error}); let ssl.*.location name PEM files"
            raise self._errors(message) from None
        return context

    def schema(self, number: int) -> Registered:
        """The schema of an id. Raises UnknownSchemaError, UnavailableError."""
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                return known
            asked, said = self._unknown.get(number, (0.0, ""))
            if said and time.monotonic() - asked < FORGET_SECONDS:
                raise UnknownSchemaError(said)
            # Of a topic of other records, whose first bytes are no ids, only the first is waited for.
            patience = UNKNOWN_SECONDS if time.monotonic() - self._last_unknown >= FORGET_SECONDS else 0.0
            try:
                self._known[number] = self._fetched(number, patience)
            except UnknownSchemaError as error:
                if len(self._unknown) > 10_000:
                    self._unknown.clear()
                self._last_unknown = time.monotonic()
                self._unknown[number] = self._last_unknown, str(error)
                raise
            return self._known[number]

    def made(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made under this key of the registry's schemas, or is made now."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema under a subject, a new one where it has none there yet.

        Raises ``errors`` where the registry refuses it, as for a schema that does not fit the ones before it; UnavailableError.
        """
        body = json.dumps({"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}).encode()
        status, answer = self._asked("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        if status != http.client.OK or not isinstance(answer.get("id"), int):
            raise self._errors(
                f"{self.config}: subject {subject} does not take the schema of the results ({status}: {_said(answer)});"
                " change output.select, or the subject's compatibility"
            )
        return int(answer["id"])

    def _fetched(self, number: int, patience: float) -> Registered:
        deadline = time.monotonic() + patience
        while True:
            status, answer = self._asked("GET", f"/schemas/ids/{number}")
            if status == http.client.OK and isinstance(answer.get("schema"), str):
                references = dict(self._referenced(answer.get("references") or [], {}))
                return Registered(answer.get("schemaType") or "AVRO", answer["schema"], tuple(references.items()))
            if status != http.client.NOT_FOUND or answer.get("error_code") not in NOT_FOUND:
                raise self._errors(
                    f"{self.config}: is no schema registry, by what it answers ({status}: {_said(answer)}); correct schemaRegistry.url,"
                    " with the path of the registry's API"
                )
            if time.monotonic() + PAUSE_SECONDS > deadline:
                raise UnknownSchemaError(_said(answer))
            time.sleep(PAUSE_SECONDS)

    def _referenced(self, references: list[dict[str, Any]], seen: dict[str, str]) -> Iterator[tuple[str, str]]:
        for reference in references:
            name, subject, version = (reference.get(part) for part in ("name", "subject", "version"))
            if str(name) in seen:
                continue
            status, answer = self._asked("GET", f"/subjects/{quote(str(subject), safe='')}/versions/{version}")
            if status != http.client.OK or not isinstance(answer.get("schema"), str):
                raise UnknownSchemaError(f"it refers to version {version} of {subject}, which is not there: {_said(answer)}")
            seen[str(name)] = answer["schema"]
            yield from self._referenced(answer.get("references") or [], seen)
            yield str(name), answer["schema"]

    def _asked(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """The answer's status, below 500, and what it says. Raises UnavailableError after the timeout."""
        deadline = time.monotonic() + self.config.timeout_seconds
        while True:
            try:
                status, answer = self._request(method, path, body, max(0.1, deadline - time.monotonic()))
                if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
                    raise self._errors(
                        f"{self.config}: refuses the login ({status}: {_said(answer)}); correct schemaRegistry.options[username] and"
                        " [password], or [bearer.auth.token]"
                    )
                if status < 500 and status not in (http.client.TOO_MANY_REQUESTS, http.client.REQUEST_TIMEOUT):
                    return status, answer
                reason = f"{status}: {_said(answer)}"
            except ssl.SSLCertVerificationError as error:
                raise self._errors(
                    f"{self.config}: its certificate is not trusted ({error.verify_message}); let schemaRegistry.options[ssl.ca.location]"
                    " name the certificate of the authority that signed it, and use the host name of the registry's certificate in url"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() + PAUSE_SECONDS > deadline:
                text = f"{self.config}: no answer within {self.config.timeout_seconds:g} s ({reason}); {_REMEDY}"
                raise UnavailableError(text)
            time.sleep(PAUSE_SECONDS)

    def _request(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, dict[str, Any]]:
        host, timeout = self._base.hostname or "", min(timeout, REQUEST_SECONDS)
        connection = http.client.HTTPConnection(host, self._base.port, timeout=timeout)
        if self._tls is not None:
            connection = http.client.HTTPSConnection(host, self._base.port, timeout=timeout, context=self._tls)
        try:
            headers = self._headers if body is None else self._headers | {"Content-Type": ACCEPT.partition(",")[0]}
            connection.request(method, self._base.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            text = answer.read(MOST_BYTES)
            try:
                said = json.loads(text)
            except ValueError:
                said = {"message": text[:200].decode(errors="replace")}
            return answer.status, said if isinstance(said, dict) else {"message": str(said)[:200]}
        finally:
            connection.close()


def _said(answer: dict[str, Any]) -> str:
    return " ".join(str(answer.get("message") or "no reason given").split())[:300]


@functools.lru_cache(maxsize=64)
def registry_of(config: RegistryConfig, errors: type[Exception]) -> SchemaRegistry:
    """The client of this process. Raises ``errors``."""
    return SchemaRegistry(config, errors)
