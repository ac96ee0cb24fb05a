"""Keys of pods and the requests that prove them. Blocking: an RSA key takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

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
