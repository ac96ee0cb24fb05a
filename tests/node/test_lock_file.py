"""Two agents and one lock file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.node.lock_file import locked


async def hold(
    path: Path, name: str, said: list[str], *, make_way: bool, task_status: trio.TaskStatus[None]
) -> None:
    async with locked(str(path), exit_on_contention=make_way):
        said.append(f"{name} has it")
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            said.append(f"{name} ends")


async def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "lock"
    async with trio.open_nursery() as first, trio.open_nursery() as second:
        await first.start(partial(hold, path, "one", said, make_way=False))
        assert path.stat().st_mode & 0o777 == 0o600
        with trio.move_on_after(0.6) as waited:
            await second.start(partial(hold, path, "two", said, make_way=False))
        assert waited.cancelled_caught
        first.cancel_scope.cancel()
    async with locked(str(path), exit_on_contention=False):
        said.append("three has it")
    assert said == ["one has it", "one ends", "three has it"]


async def test_the_first_makes_way(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "lock"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(hold, path, "one", said, make_way=True))
        with trio.fail_after(10):
            await nursery.start(partial(hold, path, "two", said, make_way=False))
        nursery.cancel_scope.cancel()
    assert said == ["one has it", "one ends", "two has it", "two ends"]


async def test_without_a_file_there_is_no_lock() -> None:
    async with locked("", exit_on_contention=False):
        pass
    with pytest.raises(ConfigurationError, match="no lock file specified"):
        async with locked("", exit_on_contention=True):
            raise AssertionError
