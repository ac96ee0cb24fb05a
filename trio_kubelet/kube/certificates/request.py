"""Certificate signing requests: what is asked for, and asking the API server for it.

A request with a name of its own making (a digest of key and contents) is found again after a restart; one
without is named by the server.

Keys of pods are made here as well, with requests that prove them. Blocking: an RSA key takes seconds.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from trio_kubelet.api import v1
from trio_kubelet.kube.certificates.pair import Leaf, PrivateKey, describe, parse_certificates
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError
from trio_kubelet.kube.reflector import Reflector

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
CLIENT_AUTH = "client auth"
SERVER_AUTH = "server auth"


class RequestRefused(Exception):
    """The request will not lead to a certificate: denied, failed, deleted, or not ours."""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate should say."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    def satisfied_by(self, leaf: Leaf) -> bool:
        """Whether a certificate says all of this; it may say more."""
        return (
            leaf.common_name == self.common_name
            and leaf.organizations.issuperset(self.organizations)
            and leaf.dns_names.issuperset(self.dns_names)
            and leaf.ips.issuperset(self.ips)
        )


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A signing request as it goes to the API server; without `name` the server gives it one."""

    template: Template
    key: PrivateKey
    signer: str
    purpose: str
    name: str = ""

    @property
    def usages(self) -> list[str]:
        """RSA keys encipher keys in old TLS, others do not."""
        encipherment = ["key encipherment"] if isinstance(self.key, rsa.RSAPrivateKey) else []
        return ["digital signature", *encipherment, self.purpose]


def node_template(node_name: str) -> Template:
    """What a node's certificates say of it."""
    return Template(common_name=f"system:node:{node_name}", organizations=("system:nodes",))


def serving_template(
    node_name: str, addresses: Sequence[v1.NodeAddress], dns_only: bool = False
) -> Template | None:
    """What a serving certificate has to say; None while the node has no IP address to say.

    `dns_only`: a name alone will do (gate `AllowDNSOnlyNodeCSR`). Addresses are in the order of their text,
    as two requests for the same have to be the same.
    """
    names, ips = set[str](), set[str]()
    for address in addresses:
        ip = _ip(address.address)
        if address.type in ("Hostname", "ExternalIP", "InternalIP") and ip:
            ips.add(ip)
        elif address.type in ("Hostname", "ExternalDNS", "InternalDNS") and address.address:
            names.add(address.address)
    if not ips and not (dns_only and names):
        return None
    return msgspec.structs.replace(
        node_template(node_name), dns_names=tuple(sorted(names)), ips=tuple(sorted(ips))
    )


def _ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def make_csr(template: Template, key: PrivateKey) -> bytes:
    """The request itself, as PEM."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(template))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in template.dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in template.ips]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(template: Template) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in template.organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, template.common_name),
        ]
    )


def digested_name(template: Template, key: PrivateKey, usages: Sequence[str]) -> str:
    """The kubelet's name for a node's first request: the same key and contents give the same name."""
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.new("sha512_256")
    for part in (public, *map(str.encode, (template.common_name, *template.organizations, *usages))):
        digest.update(_base64url(part) + b"|")
    return f"node-csr-{_base64url(digest.digest()).decode()}"


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


async def obtain(client: KubeClient, ask: Ask, timeout: float, now_ns: int) -> bytes:
    """Asks for a certificate and waits until it is there; returns its PEM.

    Raises RequestRefused, TooSlowError when nobody signed within `timeout` seconds, and APIError or
    APIUnavailable when the request could not be made. Once it is made, an absent server is waited for.
    """
    csr = make_csr(ask.template, ask.key)
    spec = v1.CertificateSigningRequestSpec(request=csr, signer_name=ask.signer, usages=ask.usages)
    meta = v1.ObjectMeta(name=ask.name) if ask.name else v1.ObjectMeta(generate_name="csr-")
    wanted = v1.CertificateSigningRequest(
        api_version="certificates.k8s.io/v1", kind="CertificateSigningRequest", metadata=meta, spec=spec
    )
    with trio.fail_after(timeout):
        try:
            found = await client.create(PATH, wanted, v1.CertificateSigningRequest)
        except APIError as exc:
            if not ask.name or exc.reason != "AlreadyExists":
                raise
            found = await client.get(f"{PATH}/{ask.name}", v1.CertificateSigningRequest)
            _check_is_ours(found, ask, now_ns)
        return await _signed(client, found)


def _check_is_ours(found: v1.CertificateSigningRequest, ask: Ask, now_ns: int) -> None:
    """Whether a request that was there before us is for our key and says what we want."""
    try:
        csr = x509.load_pem_x509_csr(found.spec.request)
        public = csr.public_key()
        valid = csr.is_signature_valid
    except (ValueError, InvalidSignature) as exc:
        raise RequestRefused(f"the request {found.metadata.name} cannot be read: {exc}") from exc
    ours = (
        valid
        and public == ask.key.public_key()
        and csr.subject == _subject(ask.template)
        and found.spec.signer_name == ask.signer
    )
    if not ours:
        raise RequestRefused(f"the request {found.metadata.name} is not for this key, node and signer")
    signed = found.status.certificate
    if signed and any(describe(c).expired(now_ns) for c in parse_certificates(signed, found.metadata.name)):
        raise RequestRefused(f"the certificate of the request {found.metadata.name} has expired")


async def _signed(client: KubeClient, made: v1.CertificateSigningRequest) -> bytes:
    """Follows one request until it is signed. Raises RequestRefused."""
    certificate = verdict(made)
    if certificate is not None:
        return certificate
    name, news = made.metadata.name, trio.Event()
    requests = Reflector(
        client.door,
        PATH,
        v1.CertificateSigningRequest,
        params={"fieldSelector": f"metadata.name={name}"},
        changed=lambda: news.set(),
    )
    refusal: RequestRefused | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.run)
        await requests.synced.wait()
        while certificate is None and refusal is None:
            news = trio.Event()
            try:
                certificate = _news_of(made, requests.find(name))
            except RequestRefused as exc:  # raised here it would come out in a group
                refusal = exc
            else:
                if certificate is None:
                    await news.wait()
        nursery.cancel_scope.cancel()
    if certificate is None:
        assert refusal is not None
        raise refusal
    return certificate


def _news_of(made: v1.CertificateSigningRequest, found: v1.CertificateSigningRequest | None) -> bytes | None:
    if found is None or found.metadata.uid != made.metadata.uid:
        raise RequestRefused(f"the request {made.metadata.name} was deleted")
    return verdict(found)


def verdict(request: v1.CertificateSigningRequest) -> bytes | None:
    """The certificate of a request, None as long as there is none. Raises RequestRefused."""
    conditions = {c.type: c for c in request.status.conditions or ()}
    for kind, word in (("Denied", "is denied"), ("Failed", "failed")):
        if kind in conditions:
            found = conditions[kind]
            raise RequestRefused(
                f"certificate signing request {request.metadata.name} {word}, reason: {found.reason}, "
                f"message: {found.message}"
            )
    return request.status.certificate or None if "Approved" in conditions else None


_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_Hash = hashes.SHA256 | hashes.SHA384 | hashes.SHA512 | None

_KINDS: Final[Mapping[str, tuple[Callable[[], _Key], _Hash]]] = {
    "RSA3072": (partial(rsa.generate_private_key, 65537, 3072), hashes.SHA256()),
    "RSA4096": (partial(rsa.generate_private_key, 65537, 4096), hashes.SHA256()),
    "ECDSAP256": (partial(ec.generate_private_key, ec.SECP256R1()), hashes.SHA256()),
    "ECDSAP384": (partial(ec.generate_private_key, ec.SECP384R1()), hashes.SHA384()),
    "ECDSAP521": (partial(ec.generate_private_key, ec.SECP521R1()), hashes.SHA512()),
    "ED25519": (ed25519.Ed25519PrivateKey.generate, None),
}
"""How each type of key is made, and what its signatures digest with."""


class KeyAndProof(msgspec.Struct, frozen=True):
    """A new key as PEM (PKCS#8), and a request without contents that is signed with it, as DER (PKCS#10)."""

    key: bytes
    proof: bytes

    def __repr__(self) -> str:  # never the key
        return "KeyAndProof()"


def new_key(key_type: str) -> KeyAndProof:
    """A key of the type a pod asks for. Raises ValueError for a type there is not."""
    if key_type not in _KINDS:
        raise ValueError(f'unknown key type "{key_type}"')
    make, digest = _KINDS[key_type]
    key = make()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyAndProof(pem, request.public_bytes(serialization.Encoding.DER))
