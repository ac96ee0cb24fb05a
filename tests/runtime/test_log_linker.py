"""Links for log collectors: many in one turn, none lost, none that holds up the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_kubelet.common.lanes import WorkHangs
from trio_kubelet.runtime import log_linker
from trio_kubelet.runtime.log_linker import MOST_WAITING, PAUSE, LogLinker
from trio_kubelet.runtime.log_links import LogLink, make_links


class Directory:
    """Where links are made, in turns that wait for `gate`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links, self._logs = path / "containers", path / "pods"
        self._logs.mkdir()
        self.turns: list[int] = []  # how many links in each
        self.gate = trio.Event()
        self._make = make_links
        monkeypatch.setattr(log_linker, "LOGS", self)
        self.linker = LogLinker(str(self.links))

    async def run(
        self, function: object, directory: str, links: Sequence[LogLink]
    ) -> list[tuple[LogLink, OSError]]:
        self.turns.append(len(links))
        await self.gate.wait()
        return self._make(directory, links)

    def link(self, number: int) -> LogLink:
        log = self._logs / f"{number}.log"
        log.touch()
        return LogLink(f"link-{number}.log", str(log), f"id-{number}")

    def made(self) -> int:
        return len(list(self.links.iterdir())) if self.links.exists() else 0


@asynccontextmanager
async def running(here: Directory) -> AsyncIterator[trio.CancelScope]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.linker.run)
        await wait_all_tasks_blocked()
        yield nursery.cancel_scope
        nursery.cancel_scope.cancel()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(tmp_path, monkeypatch)


async def test_all_that_wait_are_made_in_one_turn(here: Directory, autojump_clock: MockClock) -> None:
    async with running(here):
        await here.linker.add(here.link(0))
        await wait_all_tasks_blocked()
        assert here.turns == [1]  # at once, as nothing else was under way
        for number in range(1, 5):
            await here.linker.add(here.link(number))
        here.gate.set()
        await trio.sleep(1)
        assert (here.turns, here.made()) == ([1, 4], 5)


async def test_links_of_containers_that_start_at_short_intervals_share_turns(
    here: Directory, autojump_clock: MockClock
) -> None:
    here.gate.set()
    async with running(here):
        for number in range(100):
            await here.linker.add(here.link(number))
            await trio.sleep(PAUSE / 20)
        await trio.sleep(PAUSE)
        assert here.made() == 100
        assert len(here.turns) == pytest.approx(6, abs=1)


async def test_who_finds_too_many_waiting_makes_its_own(here: Directory, autojump_clock: MockClock) -> None:
    async with running(here), trio.open_nursery() as nursery:
        for number in range(MOST_WAITING):
            await here.linker.add(here.link(number))
        nursery.start_soon(here.linker.add, here.link(MOST_WAITING))
        await wait_all_tasks_blocked()
        assert sorted(here.turns) == [1, MOST_WAITING]
        here.gate.set()
        await trio.sleep(1)
        await here.linker.add(here.link(MOST_WAITING + 1))
        await trio.sleep(1)
        assert here.made() == MOST_WAITING + 2


async def test_without_the_task_each_makes_its_own(here: Directory, autojump_clock: MockClock) -> None:
    here.gate.set()
    await here.linker.add(here.link(0))
    assert here.made() == 1


async def test_what_waits_when_the_agent_stops_is_made(here: Directory, autojump_clock: MockClock) -> None:
    async with running(here) as stop:
        await here.linker.add(here.link(0))
        await wait_all_tasks_blocked()
        await here.linker.add(here.link(1))
        here.gate.set()
        stop.cancel()
    assert here.made() == 2


async def test_a_link_that_cannot_be_made_is_told_and_keeps_no_other_back(
    here: Directory, autojump_clock: MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    here.gate.set()
    here.links.mkdir()
    (here.links / "link-0.log").touch()
    (here.links / "link-1.log").symlink_to(here.link(1).log_path)  # made already
    (here.links / "link-2.log").symlink_to("/elsewhere")
    async with running(here):
        for number in range(3):
            await here.linker.add(here.link(number))
        await wait_all_tasks_blocked()
    assert here.turns == [3]
    assert (here.links / "link-1.log").is_symlink()
    told = capfd.readouterr().err
    assert "Failed to create symbolic link to container log" in told
    assert "id-0" in told
    assert "id-2" in told
    assert "id-1" not in told


async def test_a_turn_that_hangs_is_told_and_the_next_comes(
    here: Directory,
    autojump_clock: MockClock,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hangs(directory: str, links: Sequence[LogLink]) -> list[tuple[LogLink, OSError]]:
        raise WorkHangs("logs: no end within 60 s")

    here.gate.set()
    async with running(here):
        with monkeypatch.context() as patched:
            patched.setattr(here, "_make", hangs)
            await here.linker.add(here.link(0))
            await wait_all_tasks_blocked()
        await here.linker.add(here.link(1))
        await trio.sleep(1)
        assert (here.made(), "id-0" in capfd.readouterr().err) == (1, True)
