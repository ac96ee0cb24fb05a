"""A file that says what has been given to whom: one task writes it, whoever needs to know that it is written
waits.

A container is created only when the file that says what it was given is on disk: after a machine has failed
in between, the same is given again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import read_small, replace_small
from trio_kubelet.common.trouble import Trouble

log = get_logger(__name__)

T = TypeVar("T")

RETRY_SECONDS: Final = 5.0
MAX_BYTES: Final = 64 << 20
_DIRECTORY_MODE: Final = 0o750
_MODE: Final = 0o600


class StateFile(Generic[T]):
    """One file. `state` is asked when it is to be written, `encode` makes its content in a worker thread."""

    def __init__(self, path: str, state: Callable[[], T], encode: Callable[[T], bytes]) -> None:
        self.path = path
        self._state = state
        self._encode = encode
        self._wanted = 0
        self._written = 0
        self._changed = trio.Event()
        self._progress = trio.Event()

    def read(self) -> bytes | None:
        """What an earlier agent wrote, None if there is no file. Blocking; raises OSError."""
        return read_state(self.path)

    def write_soon(self) -> None:
        """The state has changed."""
        self._wanted += 1
        self._changed.set()

    async def written(self) -> None:
        """Returns when everything that changed until now is on disk."""
        wanted = self._wanted
        while self._written < wanted:
            await self._progress.wait()

    async def run(self) -> None:
        """Writes after each change until cancelled; changes made meanwhile are written together. After a
        failure, which is said once, it is tried again.
        """
        trouble = Trouble()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            wanted, state = self._wanted, self._state()
            try:
                await NODE_FILES.run(self._write, state)
            except OSError as exc:
                if trouble.is_new(why := error_words(exc)):
                    log.error("Failed to write checkpoint file", path=self.path, err=why)
                await trio.sleep(RETRY_SECONDS)
                self._changed.set()
                continue
            trouble.over()
            self._written = wanted
            self._progress.set()
            self._progress = trio.Event()

    def _write(self, state: T) -> None:
        os.makedirs(os.path.dirname(self.path), _DIRECTORY_MODE, exist_ok=True)
        replace_state(self.path, self._encode(state))


def read_state(path: str) -> bytes | None:
    """The content of a state file, None if there is none. Blocking; raises OSError."""
    try:
        return read_small(path, MAX_BYTES)
    except FileNotFoundError:
        return None


def replace_state(path: str, content: bytes) -> None:
    """The state file has this content or, whatever happens, the one it had. Blocking; raises OSError."""
    replace_small(path, content, mode=_MODE)
