"""The self-signed pair of a certificate directory: used as long as it is good, then made by another process.

The library that reads and makes certificates would stay in the agent's memory, 8 MB for a few milliseconds
of work a year. A node without a cluster that nobody gave a certificate needs it for nothing else. The other
process writes nothing: if it outlives its agent, its pair cannot mix with that of the agent's successor.
"""

from __future__ import annotations

import errno
import os
import ssl
import subprocess
import sys
from contextlib import suppress

import msgspec

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.small_files import replace_small
from trio_kubelet.kube.certificates.files import PairFiles

_DEADLINE = 60.0


class DiskFull(OSError):
    """There is no room for a new pair now."""


class PairRequest(msgspec.Struct, frozen=True):
    """Which pair, for which host, and what time it is."""

    files: PairFiles
    host: str
    now_ns: int


class MadePair(msgspec.Struct, frozen=True):
    """A new pair, as PEM."""

    certificates: bytes
    key: bytes


class PairAnswer(msgspec.Struct, frozen=True):
    """Until when a pair is good: the one that is there, or one `made` as that is missing or `unusable`."""

    not_after_ns: int
    unusable: str = ""
    made: MadePair | None = None


class SelfSigned(msgspec.Struct, frozen=True):
    """Until when the pair is good, and why the one that was there could not be used ("": it could)."""

    not_after_ns: int
    unusable: str = ""


def self_signed_files(cert_dir: str) -> PairFiles:
    """Where the self-signed pair of a certificate directory is."""
    return PairFiles(os.path.join(cert_dir, "kubelet.crt"), os.path.join(cert_dir, "kubelet.key"))


def ensure_self_signed(files: PairFiles, host: str, now_ns: int) -> SelfSigned:
    """A pair that is valid now: the one that is there, else a new one. Raises DiskFull, OSError. Blocking."""
    good_until_ns = _good_until_ns(files)
    if now_ns <= good_until_ns:
        return SelfSigned(good_until_ns)
    answer = _ask(PairRequest(files, host, now_ns))
    if answer.made:
        try:
            os.makedirs(os.path.dirname(files.key), mode=0o755, exist_ok=True)
            replace_small(files.key, answer.made.key, mode=0o600)
            replace_small(files.certificate, answer.made.certificates, mode=0o644)
        except OSError as exc:
            text = f"{files.certificate}: cannot write a self-signed certificate: {error_words(exc)}"
            raise (DiskFull if exc.errno in (errno.ENOSPC, errno.EDQUOT) else OSError)(text) from exc
    return SelfSigned(answer.not_after_ns, answer.unusable)


def _good_until_ns(files: PairFiles) -> int:
    """Until when a pair is good whose file holds its authority, as the kubelet's and ours do; -1: unknown.

    A handshake with itself: of a certificate the standard library tells only what a client has verified.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server.load_cert_chain(files.certificate, files.key, password="")  # never ask for one
        client.load_verify_locations(cafile=files.certificate)
        asking, showing = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
        for side in (asking, showing):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        asking.do_handshake()
    except OSError:  # missing, no pair, run out, another authority's: the process says which
        return -1
    shown = asking.getpeercert()
    assert shown is not None, "a client that has verified was shown a certificate"
    return int(ssl.cert_time_to_seconds(str(shown["notAfter"]))) * NANOSECONDS


def _ask(question: PairRequest) -> PairAnswer:
    # The same modules as ours, wherever this process found them; -P adds no other place.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", "trio_kubelet.kube.certificates.selfsigned"]
    certificate = question.files.certificate
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(question),
            capture_output=True,
            env=environment,
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(f"{certificate}: making a self-signed certificate takes too long") from exc
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"{certificate}: cannot make a self-signed certificate: {reason}")
    return msgspec.json.decode(done.stdout, type=PairAnswer)
