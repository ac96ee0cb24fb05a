"""Certificates and keys as values: what of a certificate matters to us.

Blocking where files are touched: for a worker thread. Errors are OSError and name the file; no error text
and no log line ever holds a key. The library behind this takes 8 MB: modules that a node without an API
server needs import `files` instead.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.certificates.files import PairFiles

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate by what decides whether it still does; moments in nanoseconds since the epoch."""

    common_name: str = ""
    organizations: frozenset[str] = frozenset()
    dns_names: frozenset[str] = frozenset()
    ips: frozenset[str] = frozenset()
    not_before_ns: int
    not_after_ns: int

    def expired(self, now_ns: int) -> bool:
        return now_ns > self.not_after_ns


def read_pair(files: PairFiles) -> Leaf:
    """The first certificate of a chain whose key fits. Raises OSError. Blocking."""
    leaf = parse_certificates(_read(files.certificate), files.certificate)[0]
    key = parse_key(_read(files.key), files.key)
    if key.public_key() != leaf.public_key():
        raise OSError(f"{files.key}: not the key of the certificate in {files.certificate}")
    return describe(leaf)


def parse_certificates(data: bytes, name: str) -> list[x509.Certificate]:
    """The certificates of a PEM text, at least one. Raises OSError naming `name`."""
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as exc:
        raise OSError(f"{name}: no readable certificate: {exc}") from exc


def parse_key(data: bytes, name: str) -> PrivateKey:
    """The private key in a PEM text, which may hold other blocks before it. Raises OSError naming `name`."""
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise OSError(f"{name}: no readable private key") from None
    if not isinstance(key, PrivateKey):
        raise OSError(f"{name}: neither an elliptic curve nor an RSA key")
    return key


def describe(certificate: x509.Certificate) -> Leaf:
    """What of a certificate matters to us."""
    dns_names, ips = frozenset[str](), frozenset[str]()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        dns_names = frozenset(names.get_values_for_type(x509.DNSName))
        ips = frozenset(str(ip) for ip in names.get_values_for_type(x509.IPAddress))
    subject = certificate.subject
    return Leaf(
        common_name="".join(str(a.value) for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)[:1]),
        organizations=frozenset(
            str(a.value) for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        ),
        dns_names=dns_names,
        ips=ips,
        not_before_ns=_ns(certificate.not_valid_before_utc),
        not_after_ns=_ns(certificate.not_valid_after_utc),
    )


def _ns(moment: datetime) -> int:
    return round(moment.timestamp()) * NANOSECONDS


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key of the kind the kubelet makes. Blocking, though for less than a millisecond."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """The key unencrypted, in the form Go's tools write (`EC PRIVATE KEY`)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 20)
