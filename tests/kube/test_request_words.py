"""What the agent says of an API server it cannot talk to: client-go's words, each provoked."""

from __future__ import annotations

import datetime
import re
import socket
import ssl
from pathlib import Path

import pytest
import trio
from cryptography import x509

from tests.kube.certs import CA, key_pem, new_key
from tests.probes.bad_servers import PLAIN, SECURE, Behaviour, full_port, refused_port, serving
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube import network, request_words
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig, Source

READ = r"read: connection reset by peer"


async def said(url: str, ca: CA | None = None, timeout: float = 30) -> str:
    """The error of a request, with what stands in front of it checked and taken off."""
    config = ClientConfig(server=url, ca=Source(data=ca.pem) if ca else Source())
    async with network.connect(config, SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable) as caught:
            await KubeClient(door, timeout=timeout).get("/api/v1/nodes/n", v1.Node)
    before, _, words = str(caught.value).partition('": ')
    assert before == f'Get "{url}/api/v1/nodes/n'
    return words


async def said_of_watch(url: str, period: float, ca: CA) -> str:
    config = ClientConfig(server=url, ca=Source(data=ca.pem))
    async with network.connect(config, SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable) as caught:
            async with door.watch("/api/v1/pods", {}, period):
                pass
    before, _, words = str(caught.value).partition('": ')
    assert before == f'Get "{url}/api/v1/pods?watch=1'
    return words


@pytest.mark.parametrize("period", [15, network.QUIET_PING_PERIOD])
async def test_a_watch_fails_in_the_same_words(
    period: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await refused_port()
    words = await said_of_watch(f"https://127.0.0.1:{port}", period, CA())
    assert words == f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    async with serving({"": tls_server(tmp_path, CA("other").pair("api", hosts=("127.0.0.1",)))}) as ports:
        words = await said_of_watch(f"https://127.0.0.1:{ports['']}", period, CA())
    assert words == "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    monkeypatch.setattr(request_words, "CONNECT_TIMEOUT", 0.3)
    async with full_port() as port:
        words = await said_of_watch(f"https://127.0.0.1:{port}", period, CA())
    assert words == f"dial tcp 127.0.0.1:{port}: i/o timeout"


async def test_nobody_listens() -> None:
    port = await refused_port()
    for scheme in ("http", "https"):
        words = await said(f"{scheme}://127.0.0.1:{port}")
        assert words == f"dial tcp 127.0.0.1:{port}: connect: connection refused"


async def test_a_name_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*args: object, **kwargs: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    assert await said("https://api.invalid:6443") == "dial tcp: lookup api.invalid: no such host"


async def test_a_server_that_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "CONNECT_TIMEOUT", 0.3)
    async with full_port() as port:
        assert await said(f"http://127.0.0.1:{port}") == f"dial tcp 127.0.0.1:{port}: i/o timeout"
        assert await said(f"http://127.0.0.1:{port}", timeout=0.1) == "context deadline exceeded"


@pytest.mark.parametrize(
    ("scheme", "server", "words"),
    [
        ("http", PLAIN["silent"], "context deadline exceeded"),
        ("http", PLAIN["closed after the request"], "EOF"),
        ("http", PLAIN["reset after the request"], READ),
        ("http", PLAIN["a body cut short"], "unexpected EOF"),
        ("http", PLAIN["a body that is reset"], READ),
        ("https", SECURE["HTTP"], "http: server gave HTTP response to HTTPS client"),
        ("https", SECURE["closed after the hello"], "EOF"),
        ("https", SECURE["reset after the hello"], READ),
        ("https", SECURE["alert 40"], "remote error: tls: handshake failure"),
        ("https", SECURE["alert 70"], "remote error: tls: protocol version not supported"),
        ("https", SECURE["alert 112"], "remote error: tls: unrecognized name"),
    ],
)
async def test_a_server_that_goes_wrong(scheme: str, server: Behaviour, words: str) -> None:
    timeout = 0.5 if server is PLAIN["silent"] else 30
    async with serving({"": server}) as ports:
        assert await said(f"{scheme}://127.0.0.1:{ports['']}", CA(), timeout=timeout) == words


def tls_server(directory: Path, pair: tuple[bytes, bytes]) -> Behaviour:
    path = directory / "pair.pem"
    path.write_bytes(pair[0] + pair[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    async def behave(stream: trio.SocketStream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    return behave


DAY = datetime.timedelta(days=1)


def pair_at(ca: CA, begin: datetime.datetime) -> tuple[bytes, bytes]:
    """Good for a day."""
    key = new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    return ca.issue(name, key.public_key(), ("127.0.0.1",), DAY, begin), key_pem(key)


@pytest.mark.parametrize("case", ["unknown", "expired", "future", "other name", "other address"])
async def test_certificates_that_are_not_good(case: str, tmp_path: Path) -> None:
    ca, now = CA("one"), datetime.datetime.now(datetime.UTC)
    pairs = {
        "unknown": CA("other").pair("api", hosts=("127.0.0.1",)),
        "expired": pair_at(ca, now - 3 * DAY),
        "future": pair_at(ca, now + DAY),
        "other name": ca.pair("api", hosts=("example.org",)),
        "other address": ca.pair("api", hosts=("10.0.0.1",)),
    }
    words = {
        "unknown": "certificate signed by unknown authority",
        "expired": "certificate has expired or is not yet valid",
        "future": "certificate has expired or is not yet valid",
        "other name": "certificate is valid for other (names|addresses), not 127.0.0.1",
        "other address": "certificate is valid for other addresses, not 127.0.0.1",
    }
    async with serving({"": tls_server(tmp_path, pairs[case])}) as ports:
        found = await said(f"https://127.0.0.1:{ports['']}", ca)
    assert re.fullmatch("tls: failed to verify certificate: x509: " + words[case], found), found
