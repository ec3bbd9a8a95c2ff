"""Certificates as cert-manager puts them into a Secret: ``tls.crt``, ``tls.key`` and ``ca.crt`` in a directory."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """A certificate authority of its own, for a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self._certificate = self._sign(self._name, self._key.public_key(), None)
        self._write("ca.crt", self._certificate)

    def issue(self, name: str) -> None:
        """Write a certificate for this DNS name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._write("tls.crt", self._sign(subject, key.public_key(), name))
        (self._directory / "tls.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, name: str | None) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=1)
        ).add_extension(x509.BasicConstraints(ca=name is None, path_length=None), critical=True)
        if name is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, file: str, certificate: x509.Certificate) -> None:
        (self._directory / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
