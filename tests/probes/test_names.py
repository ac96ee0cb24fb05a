"""The agent's resolver: names that take long, and the words for names without an address."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import trio

from trio_kubelet.api import v1
from trio_kubelet.net import names
from trio_kubelet.net.http import build_request, probe_http
from trio_kubelet.net.names import Names
from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.probes.runners import probe_tcp


async def test_a_name_service_that_hangs_holds_up_its_own_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))]

    def look_up(host: bytes, *more: object) -> list[object]:
        if host.startswith(b"hung"):
            over.wait()
        return list(found)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = Names()
    try:
        for number in range(50):  # more than there are threads
            with trio.move_on_after(0.001):
                await resolver.getaddrinfo(b"hung%d" % number, 1)
        with trio.fail_after(20):
            assert await resolver.getaddrinfo(b"good", 1) == found
    finally:
        over.set()


@pytest.mark.parametrize(
    ("resolver", "host", "text"),
    [
        (
            "search x\nnameserver 10.0.0.10\nnameserver 10.0.0.11\n",
            "no.invalid",
            "no.invalid on 10.0.0.10:53",
        ),
        ("nameserver fd00::a\n", "no.invalid.", "no.invalid. on [fd00::a]:53"),
        ("", "no", "no on 127.0.0.1:53"),
        ("nameserver 10.0.0.10\n", "no one.invalid", "no one.invalid"),  # which Go asks nobody about
        ("nameserver 10.0.0.10\n", "-no.invalid", "-no.invalid"),
    ],
)
async def test_a_name_without_an_address_is_told_with_who_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolver: str, host: str, text: str
) -> None:
    def look_up(*_: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    (tmp_path / "resolv.conf").write_text(resolver)
    monkeypatch.setattr(names, "_RESOLVER", str(tmp_path / "resolv.conf"))
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    trio.socket.set_custom_hostname_resolver(Names())
    action = v1.HTTPGetAction(port=80, host=host, path="/")
    outcome = await probe_http(build_request(action, v1.Container(name="c"), ""), 5)
    assert outcome == Outcome(
        Verdict.FAILURE, f'Get "http://{host}:80/": dial tcp: lookup {text}: no such host'
    )


@pytest.mark.parametrize(
    ("resolver", "seconds", "text"),
    [
        ("nameserver 10.0.0.10\n", 4.9, "server misbehaving"),
        ("nameserver 10.0.0.10\n", 5.0, "read udp 10.0.0.10:53: i/o timeout"),
        ("options x timeout:2\nnameserver 10.0.0.10\n", 2.0, "read udp 10.0.0.10:53: i/o timeout"),
        ("options timeout:x\nnameserver 10.0.0.10\n", 2.0, "server misbehaving"),
    ],
)
async def test_a_name_server_that_says_nothing_is_told_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolver: str, seconds: float, text: str
) -> None:
    now = 100.0

    def look_up(host: bytes, port: int, family: int, kind: int, protocol: int, flags: int) -> list[object]:
        nonlocal now
        if flags & socket.AI_NUMERICHOST:  # Trio asks first whether it is an address
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        now += seconds
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    (tmp_path / "resolv.conf").write_text(resolver)
    monkeypatch.setattr(names, "_RESOLVER", str(tmp_path / "resolv.conf"))
    monkeypatch.setattr(names, "monotonic", lambda: now)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    trio.socket.set_custom_hostname_resolver(Names())
    outcome = await probe_tcp("no.invalid", 80, 5)
    assert outcome == Outcome(Verdict.FAILURE, f"dial tcp: lookup no.invalid on 10.0.0.10:53: {text}")
