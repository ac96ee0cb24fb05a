"""The hashes that are part of the kubelet's contract, and the digest of manifest payloads.

A container whose hash annotation differs from the hash of its desired spec is restarted, and a static
pod whose UID differs is another pod: both texts and numbers have to be the kubelet's to the bit. The
loops run in C; `pure_hashes` is their readable twin.
"""

from __future__ import annotations

import hashlib

from trio_kubelet.native.library import core

if core is not None:
    _ffi, _lib = core.ffi, core.lib

    def fnv1a32(data: bytes) -> int:
        """FNV-1a, 32 bits."""
        return int(_lib.tk_fnv1a32(data, len(data)))

    def fnv1a128(data: bytes) -> bytes:
        """FNV-1a, 128 bits, big-endian as Go's `hash.Hash.Sum` writes it."""
        out = bytearray(16)
        _lib.tk_fnv1a128(data, len(data), _ffi.from_buffer("uint8_t[16]", out))
        return bytes(out)

    def container_hash_number(name: bytes, image: bytes) -> int:
        """FNV-1a-32 over Go's dump of the container's JSON text."""
        return int(_lib.tk_container_hash(name, len(name), image, len(image)))

else:
    from trio_kubelet.native import pure_hashes

    fnv1a32 = pure_hashes.fnv1a32
    fnv1a128 = pure_hashes.fnv1a128
    container_hash_number = pure_hashes.container_hash_number


def container_hash(name: str, image: str) -> str:
    """The container's hash as it stands in `io.kubernetes.container.hash` (kubelet: `HashContainer`).

    Lower-case hex without leading zeros, of FNV-1a-32 over Go's dump of `{"image":…,"name":…}`. Text
    that came from undecodable bytes (surrogateescape) counts as those bytes.
    """
    number = container_hash_number(
        name.encode("utf-8", "surrogateescape"), image.encode("utf-8", "surrogateescape")
    )
    return f"{number:x}"


def static_pod_uid(text: bytes) -> str:
    """UID of a static pod: 32 hex digits of FNV-1a-128 over the dumped pod, node name and source."""
    return fnv1a128(text).hex()


def payload_digest(payload: bytes) -> bytes:
    """Digest (BLAKE2b, 16 bytes) of a file's or answer's bytes, to see whether they changed."""
    return hashlib.blake2b(payload, digest_size=16).digest()
