"""What is said of a node's resolv.conf."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.node.world import Said
from trio_kubelet.node.resolv_conf import ResolvConfCheck

MANY = " ".join(f"d{number}.example" for number in range(30))
LONG = " ".join("a" * 250 for _ in range(9))


@pytest.mark.parametrize(
    ("text", "domain", "problem"),
    [
        (f"search {MANY}\n", "", ""),
        (f"search {MANY}\n", "cluster.local", "contains search line consisting of more than 29 domains!"),
        (f"search {'a' * 254}\n", "", "contains a search path which length is more than allowed 253 chars!"),
        (f"search {LONG}\n", "", "contains search line which length is more than allowed 2048 chars!"),
        ("nameserver\n", "", "nameserver list is empty "),
        ("", "", ""),
    ],
)
async def test_the_limits(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, text: str, domain: str, problem: str
) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text(text)
    found = await ResolvConfCheck(str(path), domain, Said()).problem()
    assert found.endswith(problem)
    assert bool(found) == bool(problem)


async def test_a_problem_is_told_when_it_is_new(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, said = tmp_path / "resolv.conf", Said()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ResolvConfCheck(str(path), "", said).run)
        await trio.sleep(100)
        missing = ("Warning", "CheckLimitsForResolvConf", f"open {path}: no such file or directory")
        assert said.events == [missing]
        path.write_text("nameserver 192.0.2.1\n")
        await trio.sleep(35)
        path.unlink()
        await trio.sleep(35)
        assert said.events == [missing, missing]
        nursery.cancel_scope.cancel()
