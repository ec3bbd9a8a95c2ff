"""The webhook's certificate, which the operator makes and renews where neither cert-manager nor somebody else does.

A Secret has it, which the pods mount and ``admission`` reads again when it changes. The webhook's configuration has what the API server
trusts (``caBundle``). A new one is trusted first and shown then; those before it are trusted until they end, as each pod shows the new one
when its node has brought it.

Always holds: only the active operator writes. Killed between the two writes, what is shown is still trusted, and another is made next time.
The Secret is owned by the configuration, and goes with it.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import ssl

from streamjoin_operator.api import SECRET, VALIDATING, Api, ApiError, Object

LASTS, RENEWED = datetime.timedelta(days=365), datetime.timedelta(days=120)
"""A certificate's life, and the rest of it with which another is made."""
EVERY_SECONDS, AGAIN_SECONDS = 3600.0, 30.0
"""How often it is looked at, and how soon again after a failure."""

log = logging.getLogger(__name__)


async def keep(api: Api, namespace: str, name: str) -> None:
    """Look after it for ever. ``name``: of the Secret and of the Service, and, with the namespace, of the configuration."""
    while True:
        try:
            await renew(api, namespace, name, f"{name}.{namespace}.svc", datetime.datetime.now(datetime.UTC))
        except ApiError as error:
            log.warning("the webhook's certificate could not be looked after: %s", error)
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            await asyncio.sleep(EVERY_SECONDS)


async def renew(api: Api, namespace: str, name: str, host: str, now: datetime.datetime) -> None:
    """See that the webhook shows a certificate for ``host`` with a rest of ``RENEWED``, and that the API server trusts it.

    Raises ApiError. Two requests if all is well.
    """
    configuration = await api.get(VALIDATING, "", f"{name}-{namespace}")
    if configuration is None:
        log.warning("there is no ValidatingWebhookConfiguration %s-%s to make a certificate for", name, namespace)
        return
    secret = await api.get(SECRET, namespace, name)
    data = {} if secret is None else secret.get("data") or {}
    shown, key = (base64.b64decode(data.get(field, "")).decode(errors="replace") for field in ("tls.crt", "tls.key"))
    is_new = not key or (ends := _end_of(shown)) is None or ends - now < RENEWED
    if is_new:
        shown, key = await asyncio.to_thread(issued, host, now)
    await _trust(api, configuration, shown, now)
    if is_new:
        owner = {"apiVersion": VALIDATING.group_version, "kind": VALIDATING.kind, "name": configuration["metadata"]["name"]}
        pair = {field: base64.b64encode(text.encode()).decode() for field, text in (("tls.crt", shown), ("tls.key", key))}
        metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner | {"uid": configuration["metadata"]["uid"]}]}
        await api.apply({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": pair})
        log.info("the webhook has a new certificate, which ends at %s", now + LASTS)


async def _trust(api: Api, configuration: Object, shown: str, now: datetime.datetime) -> None:
    """Has the API server trust this certificate, and those before it that have not ended."""
    webhooks = [dict(webhook) for webhook in configuration["webhooks"]]
    for webhook in webhooks:
        before = base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode(errors="replace")
        trusted = dict.fromkeys([shown, *(each for each in _each(before) if (ends := _end_of(each)) is not None and ends > now)])
        bundle = base64.b64encode("".join(trusted).encode()).decode()
        webhook["clientConfig"] = webhook["clientConfig"] | {"caBundle": bundle}
    if webhooks != configuration["webhooks"]:
        metadata = configuration["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "webhooks": webhooks}
        await api.patch(VALIDATING, "", metadata["name"], body)


def _each(bundle: str) -> list[str]:
    """The certificates of a PEM file, each as it is there."""
    end = f"{ssl.PEM_FOOTER}\n"
    return [f"{each.lstrip()}{end}" for each in bundle.split(end)[:-1]]


def _end_of(certificate: str) -> datetime.datetime | None:
    """None of what is no certificate."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    except ValueError:
        return None


def issued(host: str, now: datetime.datetime) -> tuple[str, str]:
    """A certificate for ``host`` that vouches for itself, and its key, as PEM."""
    from cryptography import x509  # here, as only some need it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "streamjoin-operator")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LASTS)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
