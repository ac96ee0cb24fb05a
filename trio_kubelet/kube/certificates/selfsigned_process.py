"""Asks a process of its own for the self-signed pair of a certificate directory.

The library that reads and makes certificates would stay in the agent's memory, 8 MB for a few milliseconds
of work a year. A node without a cluster that nobody gave a certificate needs it for nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from trio_kubelet.kube.certificates.files import PairFiles

_DEADLINE = 60.0


class Question(msgspec.Struct, frozen=True):
    """Which pair, for which host, and what time it is."""

    files: PairFiles
    host: str
    now_ns: int


class SelfSigned(msgspec.Struct, frozen=True):
    """Until when the pair is good, and why the one that was there could not be used ("": it could)."""

    not_after_ns: int
    unusable: str = ""


def self_signed_files(cert_dir: str) -> PairFiles:
    """Where the self-signed pair of a certificate directory is."""
    return PairFiles(os.path.join(cert_dir, "kubelet.crt"), os.path.join(cert_dir, "kubelet.key"))


def request_self_signed(files: PairFiles, host: str, now_ns: int) -> SelfSigned:
    """A pair that is valid now: the one that is there, else a new one. Raises OSError. Blocking."""
    # The same modules as ours, wherever this process found them; -P adds no other place.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", "trio_kubelet.kube.certificates.selfsigned"]
    question = msgspec.json.encode(Question(files, host, now_ns))
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, env=environment, timeout=_DEADLINE, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(f"{files.certificate}: making a self-signed certificate takes too long") from exc
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"{files.certificate}: cannot make a self-signed certificate: {reason}")
    return msgspec.json.decode(done.stdout, type=SelfSigned)
