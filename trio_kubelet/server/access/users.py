"""Who a request comes from, as pure functions: the user in a certificate, the token in a header.

The rules are those of the Kubernetes API server's library, which the kubelet uses.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib

import msgspec

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
UID_OID = "1.3.6.1.4.1.57683.2"
PROTOCOL_TOKEN = "base64url.bearer.authorization.k8s.io."


class Unauthenticated(Exception):
    """Credentials were shown and are no good; the reason is for the log only."""


class User(msgspec.Struct, frozen=True):
    """A name with groups; `extra` holds what else authentication found out."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


class CertificateUser(msgspec.Struct, frozen=True):
    """The user a certificate stands for (None: no common name) and when it is valid, in Unix seconds."""

    user: User | None
    not_before: float
    not_after: float


@functools.lru_cache(maxsize=256)
def read_certificate(der: bytes, with_uid: bool = True) -> CertificateUser:
    """Reads a verified client certificate: CN is the user, O are the groups; the UID is heeded if `with_uid`.
    Raises Unauthenticated.
    """
    # Big, and needed only by a server that has a client authority.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        certificate = x509.load_der_x509_certificate(der)
        names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        uid_oid = x509.ObjectIdentifier(UID_OID)
        uids = [str(a.value) for a in certificate.subject.get_attributes_for_oid(uid_oid) if with_uid]
    except ValueError as exc:
        raise Unauthenticated(f"cannot read the client certificate: {exc}") from exc
    if len(uids) > 1 or uids == [""]:
        raise Unauthenticated(f"expected one UID in the client certificate, not {uids}")
    user = None
    if names and names[-1]:
        fingerprint = hashlib.sha256(der).hexdigest()
        user = User(
            names[-1],
            tuple(str(group.value) for group in groups),
            uids[0] if uids else "",
            ((CREDENTIAL_ID, (f"X509SHA256={fingerprint}",)),),
        )
    return CertificateUser(
        user, certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def with_authenticated_group(user: User) -> User:
    """Everybody who proved who they are is in `system:authenticated`; who proved to be nobody is not."""
    if user.name == ANONYMOUS.name or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return msgspec.structs.replace(user, groups=(*user.groups, AUTHENTICATED))


def bearer_token(header: str | None) -> str | None:
    """The token in an Authorization header; None when there is none."""
    parts = (header or "").strip().split(" ", 2)
    if len(parts) < 2 or parts[0].lower() != "bearer" or not parts[1]:
        return None
    return parts[1]


def protocol_token(protocols: list[str]) -> tuple[str | None, list[str]]:
    """The token a WebSocket client hides among its subprotocols, and the others. Raises Unauthenticated.

    `protocols` are the values of all Sec-WebSocket-Protocol headers. Browsers cannot set an Authorization
    header, so this is how they say who they are.
    """
    tokens, others = [], []
    for protocol in (part.strip() for value in protocols for part in value.split(",")):
        if protocol.startswith(PROTOCOL_TOKEN):
            tokens.append(protocol.removeprefix(PROTOCOL_TOKEN))
        elif protocol:
            others.append(protocol)
    if not tokens:
        return None, others
    if len(tokens) > 1:
        raise Unauthenticated("multiple base64.bearer.authorization tokens specified")
    try:
        token = _decode_unpadded(tokens[0]).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated("invalid base64.bearer.authorization token encoding") from None
    if token and not others:
        raise Unauthenticated("missing additional subprotocol")
    return token or None, others


def _decode_unpadded(text: str) -> bytes:
    if "=" in text:
        raise ValueError("padded")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
