"""Keeps the checkpoint on disk: one task writes, whoever needs to know that it is written waits.

A container is created only when the file that says which devices it has is on disk: a machine that fails in
between gives the same devices again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.devices.checkpoint import FILE_NAME, MAX_BYTES, CheckpointError, Data, decode, encode

log = get_logger(__name__)

RETRY_SECONDS = 5.0
_DIRECTORY_MODE = 0o750
_MODE = 0o600


class CheckpointStore:
    """One file in the directory of device plugins; `data` is asked when it is to be written."""

    def __init__(self, directory: str, data: Callable[[], Data]) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._data = data
        self._wanted = 0
        self._written = 0
        self._changed = trio.Event()
        self._progress = trio.Event()

    def load(self) -> Data | None:
        """What an earlier agent wrote, None if there is nothing that can be used. Blocking."""
        try:
            with open(self._path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise CheckpointError(f"is larger than {MAX_BYTES} bytes")
            return decode(content)
        except FileNotFoundError:
            log.v(2).info("There is no checkpoint of devices", path=self._path)
        except (OSError, CheckpointError) as exc:
            log.error(
                "Continue after failing to read checkpoint file. "
                "Device allocation info may NOT be up-to-date",
                path=self._path,
                err=exc,
            )
        return None

    def write_soon(self) -> None:
        """What is to be written has changed."""
        self._wanted += 1
        self._changed.set()

    async def written(self) -> None:
        """Returns when everything that changed until now is on disk."""
        wanted = self._wanted
        while self._written < wanted:
            await self._progress.wait()

    async def run(self) -> None:
        """Writes after each change until cancelled; changes made meanwhile are written together."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            wanted, data = self._wanted, self._data()
            try:
                await NODE_FILES.run(self._write, data)
            except OSError as exc:
                log.error("Failed to write checkpoint file", path=self._path, err=exc)
                await trio.sleep(RETRY_SECONDS)
                self._changed.set()
                continue
            self._written = wanted
            self._progress.set()
            self._progress = trio.Event()

    def _write(self, data: Data) -> None:
        directory, name = os.path.split(self._path)
        temporary = os.path.join(directory, f".{name}.new")
        os.makedirs(directory, _DIRECTORY_MODE, exist_ok=True)
        with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, _MODE)) as file:
            file.write(encode(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
