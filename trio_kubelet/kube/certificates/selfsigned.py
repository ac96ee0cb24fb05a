"""The serving certificate of a node nobody gave one: made here, kept in the certificate directory.

As the kubelet's: `kubelet.crt` holds the certificate and the authority made for it, `kubelet.key` the key;
valid for a year, for the host name. Unlike the kubelet's it is made anew when it has run out, and its key is
one of an elliptic curve, which makes handshakes cheaper than RSA does.

The agent runs this as a process of its own (`selfsigned_process`): it is needed once a year.
"""

from __future__ import annotations

import datetime
import ipaddress
import sys

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.certificates.pair import (
    certificate_pem,
    describe,
    key_pem,
    new_key,
    parse_certificates,
    read_pair,
)
from trio_kubelet.kube.certificates.selfsigned_process import MadePair, PairAnswer, PairRequest

LIFETIME = datetime.timedelta(days=365)
EARLIER = datetime.timedelta(hours=1)
"""How far back validity begins, for clients whose clocks are behind."""


def answer(question: PairRequest) -> PairAnswer:
    """The pair that is there if it is valid now, else a new one, not yet written. Blocking."""
    unusable = ""
    try:
        leaf = read_pair(question.files)
        if not leaf.expired(question.now_ns):
            return PairAnswer(leaf.not_after_ns)
    except FileNotFoundError:
        pass
    except OSError as exc:
        unusable = str(exc)
    made = make_self_signed(question.host, question.now_ns)
    leaf = describe(parse_certificates(made.certificates, question.files.certificate)[0])
    return PairAnswer(leaf.not_after_ns, unusable, made)


def make_self_signed(host: str, now_ns: int) -> MadePair:
    """A certificate for `host` with its authority, and the key."""
    now = datetime.datetime.fromtimestamp(now_ns // NANOSECONDS, datetime.UTC)
    stamp = now_ns // NANOSECONDS
    authority_key, key = new_key(), new_key()
    issuer = _name(f"{host}-ca@{stamp}")
    names = x509.SubjectAlternativeName([_general_name(host)])
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    leaf = (
        _builder(_name(f"{host}@{stamp}"), issuer, key.public_key(), now)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_issued_by(authority_key), critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return MadePair(certificate_pem(leaf) + certificate_pem(authority), key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + LIFETIME)
    )


def _issued_by(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    # A common name has at most 64 characters; nobody reads this one for more than a hint.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[-64:])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def main() -> None:
    """What `selfsigned_process` runs: a question on the standard input, the answer on the standard output."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=PairRequest)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
