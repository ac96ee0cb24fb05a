"""The files of a certificate and its key: their paths and versions, and PEM blocks, found among other text
and written in one form (pure, without the library for certificates).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec


class PairFiles(msgspec.Struct, frozen=True):
    """Where a certificate chain and its key are; the same path twice for a file that holds both."""

    certificate: str
    key: str


def stored_path(directory: str, prefix: str, qualifier: str) -> str:
    """Where a pair is kept, as the kubelet and kubeadm lay them out (see `store`)."""
    return os.path.join(directory, f"{prefix}-{qualifier}.pem")


def stored_pair(directory: str, prefix: str, qualifier: str) -> PairFiles:
    """The same, as the file that holds both."""
    path = stored_path(directory, prefix, qualifier)
    return PairFiles(path, path)


def file_versions(paths: Iterable[str]) -> tuple[object, ...]:
    """What changes when one of the files is replaced, links followed. Raises OSError. Blocking."""
    stats = [os.stat(path) for path in paths]
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def held(path: str) -> str:
    """A copy of the file as it is now, in memory: a path for this process, good until it ends.

    Raises OSError. Blocking.
    """
    with open(path, "rb") as file:
        data = file.read()
    descriptor = os.memfd_create(os.path.basename(path))  # stays open
    with open(descriptor, "wb", closefd=False) as copy:
        copy.write(data)
    return f"/proc/self/fd/{descriptor}"


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
