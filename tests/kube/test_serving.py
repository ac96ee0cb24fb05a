"""The serving certificate: self-signed, given, replaced under a running server; TLS versions and suites."""

from __future__ import annotations

import datetime
import errno
import os
import random
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.kube.apiserver import APIServer
from tests.kube.certs import CA, DAY
from tests.kube.door import SimulatedDoor
from tests.kube.signer import Signer
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, SystemClock, TrioClock
from trio_kubelet.kube.certificates import selfsigned, selfsigned_process, serving
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.pair import Leaf, describe, key_pem, new_key, read_pair
from trio_kubelet.kube.certificates.request import serving_template
from trio_kubelet.kube.certificates.rotation import ServingRotation, serving_store
from trio_kubelet.kube.certificates.selfsigned_process import PairRequest, self_signed_files
from trio_kubelet.kube.certificates.serving import NoServingCertificate, ServingCertificate
from trio_kubelet.kube.certificates.tls_settings import TLSSettings, tls_settings
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.metrics import KubeMetrics

YEAR = 365 * 86400.0


def pair_files(directory: Path, pair: tuple[bytes, bytes]) -> PairFiles:
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return PairFiles(str(certificate), str(key))


def make(settings: TLSSettings | None = None, **given: Any) -> ServingCertificate:
    options: dict[str, Any] = {"cert_dir": "/none", "host": "node-a", "files": PairFiles("", "")} | given
    return serving.serving_certificate(settings or TLSSettings(), SystemClock(), **options)


class Shown(NamedTuple):
    name: str
    version: str
    cipher: str


@asynccontextmanager
async def answering(certificate: ServingCertificate) -> AsyncIterator[int]:
    async def handle(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, certificate.ssl_context(), server_side=True)
        try:
            await secure.send_all(b"x")
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners: list[Any] = await nursery.start(trio.serve_tcp, handle, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def look(port: int, client: ssl.SSLContext | None = None) -> Shown:
    """What a client sees of the server."""
    if client is None:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        stream = trio.SSLStream(plain, client)
        await stream.receive_some(1)
        found = x509.load_der_x509_certificate(stream.getpeercert(True))
        return Shown(describe(found).common_name, stream.version(), stream.cipher()[0])
    finally:
        await trio.aclose_forcefully(plain)


def leaf(certificate: ServingCertificate) -> Leaf:
    """The certificate it shows, looked at without a network."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(down, up)
    shows = certificate.ssl_context().wrap_bio(up, down, server_side=True)
    for side in (asks, shows, asks):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    der = asks.getpeercert(True)
    assert der is not None
    return describe(x509.load_der_x509_certificate(der))


async def test_a_self_signed_pair_is_made_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "pki"
    first = make(cert_dir=str(directory))
    with pytest.raises(NoServingCertificate, match="no serving certificate"):
        first.ssl_context()
    await first.load()
    assert leaf(first).dns_names == {"node-a"}
    assert (directory / "kubelet.key").stat().st_mode & 0o777 == 0o600
    assert (directory / "kubelet.crt").stat().st_mode & 0o777 == 0o644
    assert sorted(os.listdir(directory)) == ["kubelet.crt", "kubelet.key"]
    async with answering(first) as port:
        assert (await look(port)).name == leaf(first).common_name
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", None)  # a good pair needs no process
        second = make(cert_dir=str(directory))
        await second.load()
    assert leaf(second) == leaf(first)


@pytest.mark.parametrize("key", [b"garbage", key_pem(new_key())], ids=["garbage", "of another pair"])
async def test_a_pair_that_is_none_is_made_anew(tmp_path: Path, key: bytes) -> None:
    files = self_signed_files(str(tmp_path))
    await make(cert_dir=str(tmp_path)).load()
    before = (tmp_path / "kubelet.crt").read_bytes()
    (tmp_path / "kubelet.key").write_bytes(key)
    certificate = make(cert_dir=str(tmp_path))
    await certificate.load()
    assert (tmp_path / "kubelet.crt").read_bytes() != before
    assert leaf(certificate) == read_pair(files)


async def test_a_pair_in_the_directory_may_be_anybodys(tmp_path: Path) -> None:
    certificate, key = CA().pair("given")
    (tmp_path / "kubelet.crt").write_bytes(certificate)
    (tmp_path / "kubelet.key").write_bytes(key)
    given = make(cert_dir=str(tmp_path))
    await given.load()
    assert leaf(given).common_name == "given"
    assert (tmp_path / "kubelet.crt").read_bytes() == certificate


def test_what_makes_a_pair_writes_nothing(tmp_path: Path) -> None:
    files = self_signed_files(str(tmp_path))
    answer = selfsigned.answer(PairRequest(files, "n", SystemClock().now_ns()))
    assert answer.made
    assert os.listdir(tmp_path) == []


async def test_a_self_signed_pair_verifies_against_its_own_file(tmp_path: Path) -> None:
    certificate = make(cert_dir=str(tmp_path), host="127.0.0.1")
    await certificate.load()
    client = ssl.create_default_context(cafile=str(tmp_path / "kubelet.crt"))
    async with answering(certificate) as port:
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        stream = trio.SSLStream(plain, client, server_hostname="127.0.0.1")
        await stream.do_handshake()
        await trio.aclose_forcefully(plain)


async def test_a_self_signed_pair_is_renewed_when_it_has_run_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    clock = TrioClock(1_763_700_000 * NANOSECONDS)
    certificate = ServingCertificate(TLSSettings(), clock, self_signed=(str(tmp_path), "n"))
    await certificate.load()
    first = leaf(certificate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.run)
        autojump_clock.jump(YEAR - 60)
        await trio.sleep(1)
        assert leaf(certificate) == first
        await trio.sleep(120)
        assert not leaf(certificate).expired(clock.now_ns())
        nursery.cancel_scope.cancel()


async def test_a_certificate_directory_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "pki"
    with pytest.raises(OSError, match=r"pki/kubelet\.crt: cannot write a self-signed certificate: .*file"):
        await make(cert_dir=str(directory)).load()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_on_a_full_disk_a_self_signed_pair_is_made_when_there_is_room(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """An agent that ended there could not evict who fills the disk."""

    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    certificate = make(cert_dir=str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(selfsigned_process, "replace_small", full)
        await certificate.load()
    with pytest.raises(NoServingCertificate):
        certificate.ssl_context()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.run)
        await trio.sleep(15)
        assert leaf(certificate).dns_names == {"node-a"}
        nursery.cancel_scope.cancel()


async def test_given_files_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOOK_PERIOD", 0.05)
    ca = CA()
    certificate = make(files=pair_files(tmp_path, ca.pair("one")))
    await certificate.load()

    async def until_shown(name: str) -> None:
        with trio.fail_after(60):
            while (await look(port)).name != name:  # noqa: ASYNC110
                await trio.sleep(0.02)

    async def still_shown(name: str) -> None:
        await trio.sleep(0.3)
        assert (await look(port)).name == name

    async with trio.open_nursery() as nursery, answering(certificate) as port:
        nursery.start_soon(certificate.run)
        await still_shown("one")
        new, key = ca.pair("two")
        (tmp_path / "tls.crt").write_bytes(new)
        await still_shown("one")  # the key does not fit yet
        (tmp_path / "tls.key").write_bytes(key)
        await until_shown("two")
        (tmp_path / "tls.crt").unlink()
        await still_shown("two")
        pair_files(tmp_path, ca.pair("three"))
        await until_shown("three")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("held", ["pair", "authorities"])
async def test_what_is_not_to_be_read_again_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setattr(serving, "LOOK_PERIOD", 0.05)
    first, second = CA(), CA()
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(first.pem)
    certificate = make(
        files=pair_files(tmp_path, first.pair("one")),
        client_ca_file=str(ca_file),
        reload_pair=held != "pair",
        reload_client_ca=held != "authorities",
    )
    await certificate.load()
    before = certificate.ssl_context()
    async with trio.open_nursery() as nursery, answering(certificate) as port:
        nursery.start_soon(certificate.run)
        pair_files(tmp_path, first.pair("two"))
        ca_file.write_bytes(second.pem)
        with trio.fail_after(60):
            while certificate.ssl_context() is before:  # noqa: ASYNC110
                await trio.sleep(0.02)
        await trio.sleep(0.3)
        assert (await look(port)).name == ("one" if held == "pair" else "two")
        [authority] = certificate.ssl_context().get_ca_certs(binary_form=True)
        wanted = first if held == "authorities" else second
        assert authority == ssl.PEM_cert_to_DER_cert(wanted.pem.decode())
        nursery.cancel_scope.cancel()


async def test_files_that_cannot_be_used_are_one_clear_error(tmp_path: Path) -> None:
    good = pair_files(tmp_path, CA().pair("n"))
    with pytest.raises(ValueError, match="given together"):
        make(files=PairFiles(good.certificate, ""))
    with pytest.raises(OSError, match="absent"):
        await make(files=PairFiles(good.certificate, str(tmp_path / "absent"))).load()
    with pytest.raises(OSError, match=r"tls\.key: no readable certificate"):
        await make(files=PairFiles(good.key, good.key)).load()
    with pytest.raises(OSError, match=r"tls\.crt: no readable private key"):
        await make(files=PairFiles(good.certificate, good.certificate)).load()
    (tmp_path / "other").mkdir()
    other = pair_files(tmp_path / "other", CA().pair("n"))
    with pytest.raises(OSError, match=r"tls\.key: not the key of the certificate in .*tls\.crt"):
        await make(files=PairFiles(good.certificate, other.key)).load()
    encrypted = new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "other" / "tls.key").write_bytes(encrypted)
    with pytest.raises(OSError, match=r"tls\.key: no readable private key"):
        await make(files=PairFiles(good.certificate, other.key)).load()
    ca_file = tmp_path / "ca"
    ca_file.write_text("nothing")
    with pytest.raises(OSError, match="ca: not a CA bundle"):
        await make(files=good, client_ca_file=str(ca_file)).load()


async def test_with_bootstrap_there_is_nothing_before_a_pair_is_handed_over(tmp_path: Path) -> None:
    certificate = make(bootstrap=True)
    await certificate.load()
    with pytest.raises(NoServingCertificate):
        certificate.ssl_context()
    await certificate.use(pair_files(tmp_path, CA().pair("signed")))
    async with answering(certificate) as port:
        assert (await look(port)).name == "signed"
    with pytest.raises(OSError, match="no readable"):
        await certificate.use(PairFiles(str(tmp_path / "tls.key"), str(tmp_path / "tls.key")))
    assert leaf(certificate) == read_pair(PairFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")))


async def test_clients_are_asked_for_certificates_they_may_leave_out(tmp_path: Path) -> None:
    ca = CA()
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(ca.pem)
    certificate = make(files=pair_files(tmp_path, ca.pair("n")), client_ca_file=str(ca_file))
    await certificate.load()
    seen: list[bytes | None] = []

    async def handle(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, certificate.ssl_context(), server_side=True)
        await secure.do_handshake()
        seen.append(secure.getpeercert(True))
        await secure.send_all(b"x")

    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    async with trio.open_nursery() as nursery:
        listeners: list[Any] = await nursery.start(trio.serve_tcp, handle, 0)
        port = listeners[0].socket.getsockname()[1]
        await look(port, client)
        (tmp_path / "client").mkdir()
        files = pair_files(tmp_path / "client", ca.pair("admin"))
        client.load_cert_chain(files.certificate, files.key)
        await look(port, client)
        nursery.cancel_scope.cancel()
    assert [bool(s) for s in seen] == [False, True]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
async def test_versions_and_suites_are_honoured(tmp_path: Path) -> None:
    files = pair_files(tmp_path, CA().pair("n"))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    chosen = make(tls_settings("VersionTLS12", [suite, "TLS_AES_128_GCM_SHA256"]), files=files)
    await chosen.load()
    async with answering(chosen) as port:
        assert (await look(port, client)).cipher == "ECDHE-ECDSA-CHACHA20-POLY1305"
        assert (await look(port)).version == "TLSv1.3"
    for settings in (
        tls_settings("VersionTLS13", []),
        tls_settings("", ["TLS_AES_256_GCM_SHA384"]),
        tls_settings("", ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),  # the key is not of that kind
    ):
        certificate = make(settings, files=files)
        await certificate.load()
        async with answering(certificate) as port:
            with pytest.raises(trio.BrokenResourceError):
                await look(port, client)
    old = make(tls_settings("VersionTLS10", []), files=files)
    await old.load()
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with answering(old) as port:
        assert (await look(port, client)).version == "TLSv1"


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ValueError, match='unknown tls version "VersionTLS9"'):
        tls_settings("VersionTLS9", [])
    with pytest.raises(ValueError, match="Cipher suite NONE not supported"):
        tls_settings("", ["NONE"])
    with pytest.raises(ValueError, match="tlsCurvePreferences: unknown curve 7"):
        tls_settings("", [], [7])
    with pytest.raises(ValueError, match="tlsCurvePreferences: curve 23 is there more than once"):
        tls_settings("", [], [23, 29, 23])
    assert tls_settings("", [], [4587, 4588, 4589, 29]) == tls_settings("", [])
    assert tls_settings("", ["TLS_RSA_WITH_AES_128_CBC_SHA"]).insecure == ("TLS_RSA_WITH_AES_128_CBC_SHA",)
    assert tls_settings("", [], [24]).curve == "secp384r1"


def test_a_self_signed_certificate_is_for_addresses_too() -> None:
    made = selfsigned.make_self_signed("10.0.0.7", 1_763_700_000 * NANOSECONDS)
    assert describe(x509.load_pem_x509_certificates(made.certificates)[0]).ips == {"10.0.0.7"}


async def test_a_signed_certificate_follows_the_addresses(tmp_path: Path, autojump_clock: MockClock) -> None:
    clock = TrioClock(1_763_700_000 * NANOSECONDS)
    server = APIServer(clock=clock)
    signer = Signer(server, CA(), clock)
    registry = CollectorRegistry()
    addresses = [v1.NodeAddress(type="InternalIP", address="10.0.0.1")]
    given = pair_files(tmp_path, CA().pair_at("given", datetime.datetime(2025, 11, 1, tzinfo=UTC), 90 * DAY))
    store = serving_store(str(tmp_path), given)
    certificate = make(files=given, bootstrap=True)
    await certificate.load()
    rotation = ServingRotation(
        serving=certificate,
        client=KubeClient(SimulatedDoor(server)),
        template=lambda: serving_template("n", addresses),
        store=store,
        clock=clock,
        metrics=KubeMetrics(registry),
        rng=random.Random(1),
    )
    await rotation.load()
    assert leaf(certificate).common_name == "given"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signer.run)
        nursery.start_soon(rotation.run)
        await trio.sleep(30)
        assert leaf(certificate).common_name == "system:node:n"
        assert leaf(certificate).ips == {"10.0.0.1"}
        addresses.append(v1.NodeAddress(type="InternalIP", address="10.0.0.2"))
        await trio.sleep(30)
        assert leaf(certificate).ips == {"10.0.0.1", "10.0.0.2"}
        left = registry.get_sample_value("kubelet_certificate_manager_server_ttl_seconds")
        assert 86300 < (left or 0) <= 86400
        nursery.cancel_scope.cancel()
    again = make(bootstrap=True)
    await again.load()
    later = ServingRotation(
        serving=again,
        client=KubeClient(SimulatedDoor(server)),
        template=lambda: serving_template("n", addresses),
        store=store,
        clock=clock,
        metrics=KubeMetrics(CollectorRegistry()),
    )
    await later.load()
    assert leaf(again) == leaf(certificate)


async def test_a_certificate_for_a_name_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    clock = TrioClock(1_763_700_000 * NANOSECONDS)
    server = APIServer(clock=clock)
    signer = Signer(server, CA(), clock)
    addresses = [v1.NodeAddress(type="Hostname", address="n.example")]
    certificate = make(bootstrap=True)
    await certificate.load()
    rotation = ServingRotation(
        serving=certificate,
        client=KubeClient(SimulatedDoor(server)),
        template=lambda: serving_template("n", addresses, dns_only=True),
        store=serving_store(str(tmp_path), PairFiles("", "")),
        clock=clock,
        metrics=KubeMetrics(CollectorRegistry()),
    )
    await rotation.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signer.run)
        nursery.start_soon(rotation.run)
        await trio.sleep(30)
        assert leaf(certificate).dns_names == {"n.example"}
        assert not leaf(certificate).ips
        nursery.cancel_scope.cancel()
