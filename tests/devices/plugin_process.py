"""Sample device plugins as processes, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

RESOURCE = "example.com/sample"


class PluginProcess:
    """A running sample plugin; `said` is what it has told so far."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    async def tell(self, **command: object) -> None:
        """Gives it a command; it has obeyed when this returns."""
        assert self.process.stdin is not None
        before = len(self.calls("obeyed"))
        await self.process.stdin.send_all(json.dumps(command).encode() + b"\n")
        with trio.fail_after(60):
            while len(self.calls("obeyed")) == before:  # noqa: ASYNC110 (another process is waited for)
                await trio.sleep(0.005)

    def calls(self, what: str) -> list[dict[str, Any]]:
        """What it has told of one kind."""
        return [each for each in self.said if each["what"] == what]

    async def listen(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]


@asynccontextmanager
async def sample_plugin(
    directory: Path, devices: int, *options: str, resource: str = RESOURCE
) -> AsyncIterator[PluginProcess]:
    """A plugin in `directory`; killed when the context is left."""
    command = [sys.executable, "-m", "tests.devices.sample_plugin"]
    process = await trio.lowlevel.open_process(
        [*command, str(directory), resource, str(devices), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    plugin = PluginProcess(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plugin.listen)
        try:
            yield plugin
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()
