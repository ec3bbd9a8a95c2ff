"""How the operator logs in to a Prometheus: as its settings say, or as a join's manifest does, with Secrets of the join's namespace.

Always holds: a login is one or the other as a whole, so that nothing of the operator's goes along with what a join gives; no text of an
error, and no ``repr``, has a secret in it.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamjoin.manifest.prometheus import PRINTABLE, Prometheus, header_problem
from streamjoin_operator.settings import Settings


class LoginError(Exception):
    """It cannot be made; the text names the field, its value and the remedy."""


@dataclass(frozen=True, slots=True)
class Login:
    """What is sent with each question to one server, and by what the server is trusted."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate: str = field(default="", repr=False)
    """The client's, with its chain (PEM); empty: none is shown."""
    key: str = field(default="", repr=False)
    authorities: str = ""
    """PEM; empty: those that the machine trusts."""
    is_insecure: bool = False
    """Whether any certificate of the server will do."""

    def context(self) -> ssl.SSLContext:
        """Raises LoginError. Reading certificates takes milliseconds: keep it."""
        try:
            context = ssl.create_default_context(cadata=self.authorities or None)
        except (ssl.SSLError, ValueError):
            raise LoginError("the certificates of the authorities are not PEM; give at least one certificate") from None
        if self.is_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            # ssl takes these from files alone; the directory is ours alone, and gone at once.
            with tempfile.TemporaryDirectory() as directory:
                files = [Path(directory, name) for name in ("tls.crt", "tls.key")]
                for file, text in zip(files, (self.certificate, self.key), strict=True):
                    file.touch(0o600)
                    file.write_text(text)
                try:
                    context.load_cert_chain(files[0], files[1], password="")
                except (ssl.SSLError, ValueError):
                    text = "the client certificate and its key are not PEM, do not belong together, or the key has a password"
                    raise LoginError(f"{text}; give them anew") from None
        return context


def of_operator(settings: Settings) -> Login:
    """As its files say now: they are replaced while it runs. Raises LoginError and OSError."""
    headers = _named_headers(settings)
    if settings.prometheus_token_file:
        headers["Authorization"] = f"Bearer {_read(settings.prometheus_token_file)}"
    elif settings.prometheus_username_file:
        headers["Authorization"] = _basic(_read(settings.prometheus_username_file), _read(settings.prometheus_password_file))
    certificate, key = (Path(name).read_text() if name else "" for name in (settings.prometheus_cert_file, settings.prometheus_key_file))
    trusted = anonymous(settings)
    return Login(
        headers=tuple(_checked(headers, "prometheus.headers and the files of the login")),
        parameters=tuple(one.partition("=")[::2] for one in settings.prometheus_query_parameters),
        certificate=certificate,
        key=key,
        authorities=trusted.authorities,
        is_insecure=trusted.is_insecure,
    )


def anonymous(settings: Settings) -> Login:
    """Nothing is sent; servers are trusted as the operator's own is. Raises OSError."""
    path = settings.prometheus_ca_file
    return Login(authorities=Path(path).read_text() if path else "", is_insecure=settings.prometheus_insecure)


def of_join(given: Prometheus, namespace: str, secrets: Mapping[str, Mapping[str, Any] | None], trusted: Login) -> Login:
    """As ``spec.scaling.prometheus`` says. ``secrets``: by name, those of the namespace that it names, None where there is none;
    ``trusted``: by whose authorities the server is trusted where it gives none. Raises LoginError."""

    def value(part: str, secret: str, key: str) -> str:
        found = _value(secrets, secret, key)
        if not found:
            lacks = "there is no such Secret" if secrets.get(secret) is None else f"the Secret has no {key}, or no text in it,"
            where = f"spec.scaling.prometheus.{part}: {secret}"
            raise LoginError(f"{where}: {lacks} in namespace {namespace}; make it there with {key}, or name another one")
        return found

    headers = dict(given.headers)
    if given.headers_secret_name is not None:
        secret = given.headers_secret_name
        if secrets.get(secret) is None:
            value("headersSecretName", secret, "a key for each header")
        for name in sorted((secrets[secret] or {}).get("data") or {}):
            headers[name] = value("headersSecretName", secret, name).strip()
    if given.bearer is not None:
        headers["Authorization"] = f"Bearer {value('bearer.secretName', given.bearer.secret_name, given.bearer.key).strip()}"
    if given.basic is not None:
        user, password = (value("basic.secretName", given.basic.secret_name, key) for key in ("username", "password"))
        headers["Authorization"] = _basic(user.strip(), password.strip("\r\n"))
    certificate = key = authorities = ""
    if given.tls is not None:
        name = given.tls.secret_name
        authorities = _value(secrets, name, "ca.crt") or ""
        if not authorities or _value(secrets, name, "tls.crt"):
            certificate, key = (value("tls.secretName", name, file) for file in ("tls.crt", "tls.key"))
    return Login(
        headers=tuple(_checked(headers, "spec.scaling.prometheus")),
        parameters=tuple(given.query_parameters.items()),
        certificate=certificate,
        key=key,
        authorities=authorities or trusted.authorities,
        is_insecure=trusted.is_insecure and not authorities,
    )


def _value(secrets: Mapping[str, Mapping[str, Any] | None], name: str, key: str) -> str | None:
    encoded = ((secrets.get(name) or {}).get("data") or {}).get(key)
    try:
        return None if encoded is None else base64.b64decode(encoded).decode()
    except ValueError:
        return None


def _named_headers(settings: Settings) -> dict[str, str]:
    headers: dict[str, str] = dict(one.partition("=")[::2] for one in settings.prometheus_headers)
    if settings.prometheus_headers_directory:
        # Kubernetes keeps what it mounts in directories whose names begin with two dots.
        for file in sorted(Path(settings.prometheus_headers_directory).iterdir()):
            if not file.name.startswith(".."):
                headers[file.name] = _read(str(file))
    return headers


def _checked(headers: Mapping[str, str], where: str) -> Iterator[tuple[str, str]]:
    seen = set[str]()
    for name, value in headers.items():
        if name.lower() in seen:
            raise LoginError(f"{where}: gives the header {name} twice; keep one")
        seen.add(name.lower())
        if problem := header_problem(name):
            raise LoginError(f"{where}: has the header {name!r}, {problem}")
        if not PRINTABLE.fullmatch(value):
            raise LoginError(f"{where}: the value of the header {name} is not one line of printable ASCII; give it anew")
        yield name, value


def _basic(user: str, password: str) -> str:
    if ":" in user:
        raise LoginError("the user of the basic authentication has a colon, which ends it; name another one")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _read(path: str) -> str:
    return Path(path).read_text().strip()
