"""The kubelet's hashes in plain Python: what the C functions must agree with, and their stand-in."""

from __future__ import annotations

import re

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPED = re.compile('["\\\\\x00-\x1f<>&\u2028\u2029\udc80-\udcff]')


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


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char >= "\udc80":  # a byte that is no part of valid UTF-8
        return "\\ufffd"
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


def go_json_string(data: bytes) -> bytes:
    """A string as Go's `json.Marshal` writes it: HTML-safe, U+2028/9 escaped, invalid bytes as \\ufffd."""
    text = data.decode("utf-8", "surrogateescape")
    return f'"{_ESCAPED.sub(_escape, text)}"'.encode()


def container_json(name: bytes, image: bytes) -> bytes:
    """The fields of a container that decide whether it must be restarted, as Go writes them."""
    return b'{"image":' + go_json_string(image) + b',"name":' + go_json_string(name) + b"}"


def container_hash_number(name: bytes, image: bytes) -> int:
    """FNV-1a-32 over Go's dump of those bytes, e.g. `([]uint8)[123 34 … 125]`."""
    numbers = " ".join(map(str, container_json(name, image)))
    return fnv1a32(f"([]uint8)[{numbers}]".encode())
