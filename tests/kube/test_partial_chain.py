"""Certificates are judged as by Go: each in a file of authorities is an anchor, also an intermediate, and a
server is who its alternative names say.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.kube.certs import CA
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.serving import ServingCertificate
from trio_kubelet.kube.certificates.tls_settings import TLSSettings
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.tls import make_tls

ROOT = CA("root")
INTERMEDIATE = CA("intermediate", above=ROOT)
OTHER = CA("other", above=ROOT)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> bytes | None:
    """The client's certificate as the server verified it. Raises ssl.SSLError when one refuses the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    return ends[1].getpeercert(binary_form=True)


def written(path: Path, pair: tuple[bytes, bytes]) -> PairFiles:
    certificate, key = path.with_suffix(".crt"), path.with_suffix(".key")
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return PairFiles(str(certificate), str(key))


async def node_context(directory: Path, authority: CA) -> ssl.SSLContext:
    """What the node's server shows, and whose clients it takes."""
    (directory / "ca.pem").write_bytes(authority.pem)
    files = written(directory / "node", ROOT.pair("node", hosts=("127.0.0.1",)))
    shown = ServingCertificate(TLSSettings(), SystemClock(), files, client_ca_file=str(directory / "ca.pem"))
    await shown.load()
    return shown.ssl_context()


def client(anchor: CA, pair: tuple[bytes, bytes] = (b"", b"")) -> ssl.SSLContext:
    """What the agent dials an API server with."""
    made = make_tls(
        ClientConfig(
            server="https://127.0.0.1",
            ca=Source(data=anchor.pem),
            client_certificate=Source(data=pair[0]),
            client_key=Source(data=pair[1]),
        )
    )
    assert made is not None
    return made


async def test_clients_of_the_node_whose_authority_is_an_intermediate(tmp_path: Path) -> None:
    server = await node_context(tmp_path, INTERMEDIATE)
    assert shake_hands(client(ROOT, INTERMEDIATE.pair("api-server")), server) is not None
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake_hands(client(ROOT, OTHER.pair("stranger")), server)


def api_server(directory: Path, pair: tuple[bytes, bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = written(directory / "api", pair)
    context.load_cert_chain(files.certificate, files.key)
    return context


async def test_an_api_server_whose_authority_is_an_intermediate(tmp_path: Path) -> None:
    def of(authority: CA) -> ssl.SSLContext:
        return api_server(tmp_path, authority.pair("api", hosts=("127.0.0.1",)))

    shake_hands(client(INTERMEDIATE), of(INTERMEDIATE))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake_hands(client(INTERMEDIATE), of(OTHER))


async def test_an_api_server_that_has_a_common_name_only(tmp_path: Path) -> None:
    name = "api.example"
    shake_hands(client(ROOT), api_server(tmp_path, ROOT.pair("x", hosts=(name,))), name)
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        shake_hands(client(ROOT), api_server(tmp_path, ROOT.pair(name)), name)
