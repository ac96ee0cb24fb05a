"""When free memory is given back to the system, and that it is; code stays in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio
import trio.testing

from trio_kubelet.common import memory


async def test_memory_is_given_back_when_the_agent_has_grown(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, trimmed = [60], list[float]()

    def trim() -> None:
        trimmed.append(trio.current_time())
        sizes.append(sizes[-1] - 2)

    monkeypatch.setattr(memory, "resident", lambda: sizes[-1] << 20)
    monkeypatch.setattr(memory, "trim", trim)
    monkeypatch.setattr(memory, "hold_code", int)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.look_after_memory)
        await trio.sleep(15)  # once at its start
        for size in (58, 61, 62, 63, 64):  # by less than it takes, then by more
            sizes.append(size)
            await trio.sleep(memory.PERIOD)
        nursery.cancel_scope.cancel()
    assert [round(at - began) for at in trimmed] == [10, 50]


def test_what_lies_free_between_pieces_in_use_is_given_back() -> None:
    memory.trim()
    pieces = [bytes(60_000) for _ in range(1000)]
    full = memory.resident()
    kept = pieces[::50]
    pieces.clear()
    memory.trim()
    assert len(kept) == 20
    assert memory.resident() < full - 40_000_000


HELD = """
import re
from pathlib import Path
from trio_kubelet.common.memory import hold_code
held, again = hold_code(), hold_code()
locked = int(re.search(r"VmLck:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
print(held, again, locked)
"""


def held(*before: str) -> list[int]:
    command = [*before, sys.executable, "-c", HELD]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout
    return [int(word) for word in said.split()]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root may lock hardly any memory")


@needs_root
def test_code_is_kept_in_memory() -> None:
    code, again, locked = held()
    assert code == again == locked > 4 << 20


@needs_root
def test_without_the_right_to_nothing_is_kept() -> None:
    assert held("setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=0:0") == [0, 0, 0]
