"""A small certificate authority for tests: server and client certificates, signing requests."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common_name: str, organizations: tuple[str, ...] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def trusting(pem: bytes, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> ssl.SSLContext:
    """A client (or server, by `purpose`) that trusts an authority and reads certificates as Go does, without
    what Python is strict on from 3.13 on: the certificates of these tests are as plain as those of many
    clusters.
    """
    context = ssl.create_default_context(purpose, cadata=pem.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class CA:
    """A certificate authority; one that `above` has signed is an intermediate."""

    def __init__(self, common_name: str = "test-ca", above: CA | None = None) -> None:
        self._key = new_key()
        self._name = _name(common_name)
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(above._name if above else self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(above._key if above else self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: x509.Name,
        public_key: CertificatePublicKeyTypes,
        hosts: tuple[str, ...] = (),
        lifetime: datetime.timedelta = DAY,
        not_before: datetime.datetime | None = None,
    ) -> bytes:
        """A certificate for server and client use."""
        begin = not_before or datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + lifetime)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(list(map(_san, hosts))), critical=False
            )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def pair(
        self, common_name: str, organizations: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
    ) -> tuple[bytes, bytes]:
        """A new certificate and its key."""
        key = new_key()
        return self.issue(_name(common_name, organizations), key.public_key(), hosts), key_pem(key)

    def pair_at(
        self, common_name: str, not_before: datetime.datetime, lifetime: datetime.timedelta
    ) -> tuple[bytes, bytes]:
        """A node's certificate with a validity of its own, and its key."""
        key = new_key()
        name = _name(common_name, ("system:nodes",))
        return self.issue(name, key.public_key(), (), lifetime, not_before), key_pem(key)

    def sign_request(
        self,
        request: bytes,
        lifetime: datetime.timedelta = DAY,
        not_before: datetime.datetime | None = None,
    ) -> bytes:
        """The certificate for a PEM signing request."""
        csr = x509.load_pem_x509_csr(request)
        hosts: tuple[str, ...] = ()
        try:
            names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            hosts = tuple(str(name.value) for name in names)
        except x509.ExtensionNotFound:
            pass
        return self.issue(csr.subject, csr.public_key(), hosts, lifetime, not_before)

    def server_context(self, directory: Path, hosts: tuple[str, ...]) -> ssl.SSLContext:
        """TLS for a server that asks clients for certificates of this authority."""
        certificate, key = self.pair(hosts[0], hosts=hosts)
        path = directory / "server.pem"
        path.write_bytes(certificate + key)
        context = trusting(self.pem, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_cert_chain(path)
        return context


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
