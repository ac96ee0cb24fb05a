"""What probes say of servers that go wrong in every way, against what the kubelet's said of the same ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.probes.bad_servers import GRPC, PLAIN, SECURE, full_port, refused_port, serving, tls_servers
from trio_kubelet.api import v1
from trio_kubelet.net.http import build_request, probe_http
from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.probes.grpc import probe_grpc
from trio_kubelet.probes.runners import probe_tcp

GOLDEN: dict[str, dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "probe-errors.json").read_text()
)["probes"]
HOST = "127.0.0.1"


async def probe(kind: str, port: int, host: str = HOST) -> Outcome:
    if kind == "tcp":
        return await probe_tcp(host, port, 1)
    if kind == "grpc":
        return await probe_grpc(host, port, "", 1)
    action = v1.HTTPGetAction(path="/p", port=port, host=host, scheme=kind.upper())
    return await probe_http(build_request(action, v1.Container(name="c"), host), 1)


def as_recorded(outcome: Outcome, port: int) -> dict[str, str]:
    def plain(text: str) -> str:
        return re.sub(r"127\.0\.0\.1:\d+->", "LOCAL->", text.replace(f":{port}", ":PORT"))

    good = outcome.error is None and outcome.verdict in (Verdict.SUCCESS, Verdict.WARNING)
    said = {"result": "success" if good else "failure", "output": plain(outcome.output)}
    return said if outcome.error is None else {**said, "error": plain(outcome.error)}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tls_servers(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, found in GOLDEN.items() for name in found])
async def test_a_probe_says_what_the_kubelets_says(kind: str, name: str, tls: dict[str, Any]) -> None:
    plain = {"http": PLAIN, "https": SECURE | tls, "tcp": {}, "grpc": PLAIN}[kind]
    servers = plain | {f"h2: {n}": behave for n, behave in GRPC.items()}
    servers |= {f"TLS: {n}": behave for n, behave in tls.items()}
    with trio.fail_after(30):
        if name == "refused":
            port = await refused_port()
            outcome = await probe(kind, port)
        elif name == "full":
            async with full_port() as port:
                outcome = await probe(kind, port)
        else:
            async with serving({name: servers[name]}) as ports:
                port = ports[name]
                outcome = await probe(kind, port)
    assert as_recorded(outcome, port) == GOLDEN[kind][name]


async def test_a_name_that_there_is_not() -> None:
    outcome = await probe("tcp", 80, "nothing.invalid")
    assert outcome.output in (
        "dial tcp: lookup nothing.invalid: no such host",
        "dial tcp: lookup nothing.invalid: server misbehaving",
        "dial tcp nothing.invalid:80: i/o timeout",
    )


@pytest.mark.parametrize("kind", ["http", "https"])
@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_connection_that_ends_at_once(kind: str, end: str) -> None:
    """Whether that is seen while it is made, written to or read is up to the moment; for the kubelet too."""
    server = (PLAIN if kind == "http" else SECURE)[f"{end} at once"]
    async with serving({"": server}) as ports:
        outcome = await probe(kind, ports[""])
    ends = [
        "EOF",
        r"dial tcp \S+: connect: connection reset by peer",
        r"read tcp \S+->\S+: read: connection reset by peer",
        r"write tcp \S+->\S+: write: (connection reset by peer|broken pipe)",
    ]
    said = outcome.output.partition('/p": ')[2]
    assert any(re.fullmatch(each, said) for each in ends), outcome.output


@pytest.mark.parametrize("version", ["", ", 1.2"])
async def test_a_server_that_wants_a_certificate(version: str, tls: dict[str, Any]) -> None:
    """What it says before it closes, if it comes to be read."""
    async with serving({"": tls[f"wants a certificate{version}"]}) as ports:
        outcome = await probe("https", ports[""])
    said = outcome.output.partition('/p": ')[2]
    assert re.fullmatch(
        r"EOF|remote error: tls: (certificate required|handshake failure|bad certificate)"
        r"|(read|write) tcp .*: (connection reset by peer|broken pipe)",
        said,
    )
