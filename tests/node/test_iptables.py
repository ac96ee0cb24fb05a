"""The chains a node is expected to have, in a network namespace of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from tests.containerd.harness import wait_until
from trio_kubelet.node.iptables import UtilChains


@pytest.fixture
def namespace() -> Iterator[list[str]]:
    """The words before a command that is to run in the namespace."""
    if os.geteuid() != 0 or shutil.which("iptables") is None or shutil.which("ip") is None:
        pytest.skip("needs root and iptables")
    name = f"tk-iptables-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)
    yield ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "del", name], check=True, timeout=30)


async def said(*command: str) -> list[str]:
    done = await trio.run_process(list(command), capture_stdout=True, capture_stderr=True, check=False)
    return done.stdout.decode().splitlines()


async def has(namespace: list[str], line: str, *words: str) -> bool:
    return line in await said(*namespace, *words)


async def test_chains_and_the_rule_are_there_once(namespace: list[str]) -> None:
    table = ("iptables", "-t", "filter", "-S")
    canary = "-N KUBE-KUBELET-CANARY"
    for _ in range(2):  # an agent that is started anew finds them
        async with trio.open_nursery() as nursery:
            nursery.start_soon(UtilChains(prefix=namespace).run)
            await wait_until(partial(has, namespace, canary, *table), 30, "the canary is there")
            nursery.cancel_scope.cancel()
    assert "-N KUBE-IPTABLES-HINT" in await said(*namespace, "iptables", "-t", "mangle", "-S")
    assert canary in await said(*namespace, "iptables", "-t", "nat", "-S")
    lines = await said(*namespace, *table)
    assert lines.count("-A INPUT -j KUBE-FIREWALL") == lines.count("-A OUTPUT -j KUBE-FIREWALL") == 1
    assert lines.count(
        "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment "
        '--comment "block incoming localnet connections" -m conntrack '
        "! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    ) == 1  # fmt: skip


async def test_what_somebody_flushed_is_put_back(
    namespace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.node.iptables.PERIOD", 0.2)
    table = ("iptables", "-t", "filter")
    rule = "-A OUTPUT -j KUBE-FIREWALL"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(UtilChains(prefix=namespace).run)
        for _ in range(2):
            await wait_until(partial(has, namespace, rule, *table, "-S"), 30, "the rule is there")
            await wait_until(
                partial(has, namespace, "-N KUBE-KUBELET-CANARY", *table, "-S"), 30, "the canary is there"
            )
            await said(*namespace, *table, "-F")
            await said(*namespace, *table, "-X")
        nursery.cancel_scope.cancel()


async def test_rules_that_were_taken_out_of_their_chains_are_back_after_a_start(namespace: list[str]) -> None:
    """`iptables -F` leaves the chains, and so the canaries."""
    table = ("iptables", "-t", "filter")
    lines = ("-N KUBE-KUBELET-CANARY", "-A INPUT -j KUBE-FIREWALL")
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(UtilChains(prefix=namespace).run)
            for line in lines:
                await wait_until(partial(has, namespace, line, *table, "-S"), 30, f"{line} is there")
            nursery.cancel_scope.cancel()
        await said(*namespace, *table, "-F")


async def test_ipv6_has_the_hint_alone(namespace: list[str]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(UtilChains(ipv6=True, prefix=namespace).run)
        canary = ("-N KUBE-KUBELET-CANARY", "ip6tables", "-t", "filter", "-S")
        await wait_until(partial(has, namespace, *canary), 30, "the canary is there")
        nursery.cancel_scope.cancel()
    assert "-N KUBE-IPTABLES-HINT" in await said(*namespace, "ip6tables", "-t", "mangle", "-S")
    assert "-N KUBE-FIREWALL" not in await said(*namespace, "ip6tables", "-t", "filter", "-S")


async def test_without_iptables_it_says_so_once(
    autojump_clock: trio.testing.MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    with trio.move_on_after(1000):
        await UtilChains(find=lambda name: None).run()
    assert capfd.readouterr().err.count("No iptables support on this system") == 1


async def test_a_program_that_fails_is_told_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.node.iptables.PERIOD", 0.05)
    with trio.move_on_after(1):
        await UtilChains(find=lambda name: "/bin/false").run()
    assert capfd.readouterr().err.count("Failed to initialize iptables rules") == 1
