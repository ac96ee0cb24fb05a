"""The kubelet's hashes in plain Python: what the C functions must agree with, and their stand-in."""

from __future__ import annotations

from trio_kubelet.common.utf8 import json_string


def fnv1a32(data: bytes) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def fnv1a128(data: bytes) -> bytes:
    """FNV-1a, 128 bits, big-endian as Go's `hash.Hash.Sum` writes it."""
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in data:
        value = (value ^ byte) * 0x0000000001000000000000000000013B & (1 << 128) - 1
    return value.to_bytes(16, "big")


def container_json(name: bytes, image: bytes) -> bytes:
    """The fields of a container that decide whether it must be restarted, as Go writes them."""
    return b'{"image":' + json_string(image) + b',"name":' + json_string(name) + b"}"


def container_hash_number(name: bytes, image: bytes) -> int:
    """FNV-1a-32 over Go's dump of those bytes, e.g. `([]uint8)[123 34 … 125]`."""
    numbers = " ".join(map(str, container_json(name, image)))
    return fnv1a32(f"([]uint8)[{numbers}]".encode())
