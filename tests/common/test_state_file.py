"""The file that says what was given to whom, on a disk without room."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from trio_kubelet.common.state_file import RETRY_SECONDS, StateFile


async def test_a_disk_without_room_is_told_once_and_written_to_later(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, in_the_way = tmp_path / "state", tmp_path / ".state.new"
    file = StateFile(str(path), lambda: b"given", bytes)

    async def fails(times: float) -> None:
        in_the_way.mkdir()
        file.write_soon()
        await trio.sleep(times * RETRY_SECONDS)
        assert capfd.readouterr().err.count("Failed to write checkpoint file") == 1
        in_the_way.rmdir()
        await file.written()
        assert path.read_bytes() == b"given"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        await fails(3.5)
        await fails(0.5)
        nursery.cancel_scope.cancel()
