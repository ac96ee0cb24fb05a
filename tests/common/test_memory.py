"""When free memory is given back to the system, and that it is; code stays in memory, data in huge pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from trio_kubelet.common import memory


async def test_memory_is_given_back_when_the_agent_has_grown(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, trimmed = [60.0], list[float]()

    def trim() -> None:
        trimmed.append(trio.current_time())
        sizes.append(sizes[-1] - 2)

    monkeypatch.setattr(memory, "resident", lambda: round(sizes[-1] * (1 << 20)))
    monkeypatch.setattr(memory, "trim", trim)
    monkeypatch.setattr(memory, "huge_pages", list)
    monkeypatch.setattr(memory, "hold_code", int)
    monkeypatch.setattr(memory, "is_crowded", bool)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.look_after_memory)
        await trio.sleep(1.5 * memory.PERIOD)  # once at its start
        # by less than it takes, then by more in one go, which may go on; it does not
        for size in (58, 61, 62, 65, 67, 67.5, 67.5):
            sizes.append(size)
            await trio.sleep(memory.PERIOD)
        nursery.cancel_scope.cancel()
    assert [round((at - began) / memory.PERIOD) for at in trimmed] == [1, 7]


async def test_memory_is_left_alone_while_more_want_a_cpu_than_there_are(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the kernel does for it takes seconds then, and the event loop waits for it."""
    load, trimmed, made = tmp_path / "loadavg", list[float](), list[float]()
    cpus, began = os.cpu_count() or 1, trio.current_time()

    def want(threads: int) -> None:
        load.write_text(f"400.00 20.00 3.00 {threads}/5643 13906\n")

    def make(pages: list[int]) -> None:
        made.append(trio.current_time() - began)
        pages.pop()
        if len(made) == 2:
            want(100 * cpus)

    monkeypatch.setattr(memory, "_LOAD", str(load))
    monkeypatch.setattr(memory, "resident", lambda: 60 << 20)
    monkeypatch.setattr(memory, "trim", lambda: trimmed.append(trio.current_time() - began))
    monkeypatch.setattr(memory, "huge_pages", lambda: [1, 2, 3])
    monkeypatch.setattr(memory, "_make_one", make)
    monkeypatch.setattr(memory, "hold_code", int)
    want(2 * cpus + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.look_after_memory)
        await trio.sleep(3.5 * memory.PERIOD)
        assert not trimmed
        want(2 * cpus)
        await trio.sleep(2 * memory.PERIOD)
        assert len(trimmed) == 1
        assert len(made) == 2
        await trio.sleep(2 * memory.PERIOD)
        assert len(made) == 2
        want(0)
        await trio.sleep(2 * memory.PERIOD)
        nursery.cancel_scope.cancel()
    assert len(trimmed) == 1
    assert len(made) == 3


def test_what_lies_free_between_pieces_in_use_is_given_back() -> None:
    memory.trim()
    pieces = [bytes(60_000) for _ in range(1000)]
    full = memory.resident()
    kept = pieces[::50]
    pieces.clear()
    memory.trim()
    assert len(kept) == 20
    assert memory.resident() < full - 40_000_000


GATHERED = """
import ctypes, mmap, trio
from trio_kubelet.common import memory
from trio_kubelet.common.memory import HUGE_PAGE, gather, huge_pages

USED = [8] * 6 + [1] * 6  # eighths of huge pages

whole = mmap.mmap(-1, len(USED) * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
begin = ctypes.addressof(ctypes.c_char.from_buffer(whole))
parts = [slice(at * HUGE_PAGE, at * HUGE_PAGE + HUGE_PAGE * n // 8) for at, n in enumerate(USED)]
for part in parts:
    whole[part] = b"x" * (part.stop - part.start)

def huge():
    inside = False
    for line in open("/proc/self/smaps"):
        if "-" in (span := line.split()[0]):
            low, high = (int(each, 16) for each in span.split("-"))
            inside = low <= begin < high
        elif inside and line.startswith("AnonHugePages:"):
            return (int(line.split()[1]) << 10) // HUGE_PAGE

memory.is_crowded = bool
before, found = huge(), set(huge_pages())
trio.run(gather)
print(before, found == set(huge_pages()), huge(), all(set(whole[part]) == {ord("x")} for part in parts))
"""


def may_have_huge_pages() -> bool:
    """Whether the kernel makes huge pages when asked to, and may."""
    if tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) < (6, 1):
        return False
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return enabled.exists() and "[madvise]" in enabled.read_text()


@pytest.mark.skipif(not may_have_huge_pages(), reason="this kernel makes no huge pages on demand alone")
def test_what_is_used_of_memory_comes_into_huge_pages_and_says_the_same() -> None:
    said = subprocess.run(
        [sys.executable, "-c", GATHERED], check=True, stdout=subprocess.PIPE, timeout=60
    ).stdout
    assert said in (b"0 True 6 True\n", b"0 True 5 True\n")  # as it lies


@pytest.mark.parametrize("said", ["always madvise [never]\n", None])
def test_a_machine_without_huge_pages_is_left_as_it_is(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled = tmp_path / "enabled"
    if said is not None:
        enabled.write_text(said)
    monkeypatch.setattr(memory, "_HUGE_PAGES", str(enabled))
    assert memory.huge_pages() == []


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
