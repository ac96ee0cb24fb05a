"""PEM blocks: found among other text, and written in one form. Pure, without the library for certificates."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = re.compile(
    rb"^-----BEGIN ([^\n]*?)-----[ \t\r]*\n((?:(?!-----BEGIN )[^\n]*\n)*?)-----END \1-----[ \t\r]*$",
    re.MULTILINE,
)
_LINE: Final = 64


def pem_contents(text: bytes) -> Iterator[bytes]:
    """What the blocks of a text hold, whatever they are called.

    What stands around them, their headers, and blocks that cannot be read are passed over.
    """
    for found in _BLOCK.finditer(text):
        lines = found[2].splitlines()
        while lines and b":" in lines[0]:  # headers
            lines.pop(0)
        try:
            yield binascii.a2b_base64(re.sub(rb"\s", b"", b"".join(lines)), strict_mode=True)
        except binascii.Error:
            continue


def certificate_block(content: bytes) -> bytes:
    """One certificate as a block without headers."""
    text = base64.b64encode(content)
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return b"\n".join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])


def clean_chain(text: str) -> bytes:
    """A chain of certificates, in its order, and nothing else."""
    return b"".join(certificate_block(content) for content in pem_contents(text.encode()))
