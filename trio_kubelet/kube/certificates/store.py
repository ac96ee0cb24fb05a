"""Certificate pairs on disk, as the kubelet and kubeadm lay them out.

Each pair is one file, `<prefix>-<date>.pem`, readable by its owner only; `<prefix>-current.pem` is a link
to the one in use. The link is replaced in one step, so a reader finds the old pair or the new one. Older
files stay, as an operator's way back.
"""

from __future__ import annotations

import os
import time

import msgspec

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.small_files import replace_small
from trio_kubelet.kube.certificates.files import PairFiles, stored_path
from trio_kubelet.kube.certificates.pair import (
    Leaf,
    certificate_pem,
    key_pem,
    parse_certificates,
    parse_key,
    read_pair,
)


class Stored(msgspec.Struct, frozen=True):
    """A pair that can be used, and where it is."""

    files: PairFiles
    leaf: Leaf


class PairStore:
    """The pairs of one purpose in a certificate directory. All methods are blocking and raise OSError."""

    def __init__(self, directory: str, prefix: str, given: PairFiles | None = None) -> None:
        """`given`: what an operator provided, used as long as nothing is stored."""
        self._directory = directory
        self._prefix = prefix
        self._given = given
        self.current_path = self._path("current")
        self.current_files = PairFiles(self.current_path, self.current_path)

    def current(self) -> Stored | None:
        """The pair in use, expired or not; None when there is none yet."""
        self._recover()
        old = os.path.join(self._directory, self._prefix)
        for files in (self.current_files, self._given, PairFiles(f"{old}.crt", f"{old}.key")):
            if files is not None and os.path.exists(files.certificate) and os.path.exists(files.key):
                return Stored(files, read_pair(files))
        return None

    def update(self, certificates: bytes, key: bytes, now_ns: int) -> Stored:
        """Stores a pair (PEM) and makes it the current one."""
        chain = parse_certificates(certificates, "the signed certificate")
        written = b"".join(map(certificate_pem, chain)) + key_pem(parse_key(key, "the key"))
        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        moment = time.localtime(now_ns // NANOSECONDS)
        path = os.path.abspath(self._path(time.strftime("%Y-%m-%d-%H-%M-%S", moment)))
        replace_small(path, written, mode=0o600)
        stored = Stored(self.current_files, read_pair(PairFiles(path, path)))
        self._point_to(path)
        return stored

    def _point_to(self, path: str) -> None:
        updated = self._path("updated")
        for link in (self.current_path, updated):
            if os.path.lexists(link) and not os.path.islink(link):
                raise OSError(f"{link}: expected a symbolic link, found a file")
        if os.path.lexists(updated):
            os.unlink(updated)
        os.symlink(path, updated)
        os.rename(updated, self.current_path)

    def _recover(self) -> None:
        """Finishes what a kubelet (it replaces the link in two steps) was interrupted at."""
        updated = self._path("updated")
        if not os.path.exists(self.current_path) and os.path.islink(updated):
            os.rename(updated, self.current_path)

    def _path(self, qualifier: str) -> str:
        return stored_path(self._directory, self._prefix, qualifier)
