"""The file in which a manager writes down what it has given, so that its successor goes on with it."""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from trio_kubelet.common.go_words import error_words, os_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.state_file import read_state, replace_state
from trio_kubelet.common.trouble import Trouble
from trio_kubelet.placement import checkpoint, memory_checkpoint
from trio_kubelet.placement.doors import PlacementStateError

log = get_logger(__name__)


class ManagerFile:
    """A file of the kubelet's name and format, written when that is asked for: who cannot write it gives
    nothing. `manager`: whose it is, as the kubelet's errors call it.
    """

    def __init__(self, *, root_dir: str, name: str, manager: str) -> None:
        self.path = os.path.join(root_dir, name)
        self.manager = manager
        self._writing = trio.Lock()
        self._trouble = Trouble()

    async def read(self) -> bytes | None:
        """Its content; None if there is none. Raises PlacementStateError."""
        return await NODE_FILES.run(self._read)

    async def write(self, content: Callable[[], bytes]) -> None:
        """`content`, as it is when its turn has come, is on disk afterwards. Raises OSError."""
        async with self._writing:
            await NODE_FILES.run(replace_state, self.path, content())
        self._trouble.over()

    def complain(self, error: OSError) -> None:
        """Says why it cannot be written, once."""
        if self._trouble.is_new(why := error_words(error)):
            log.error("Failed to save checkpoint", path=self.path, err=why)

    async def keep_empty(self, empty: bytes, check: Callable[[bytes], object]) -> None:
        """Without a policy: the file says that nothing is given. Raises PlacementStateError when `check` does
        for what somebody else wrote there. Where it cannot be written it is missing, which says the same.
        """
        content = await self.read()
        if content is None:
            try:
                await self.write(lambda: empty)
            except OSError as exc:
                self.complain(exc)
            return
        try:
            check(content)
        except PlacementStateError as exc:
            raise self.unfit(exc) from exc

    def unfit(self, why: Exception) -> PlacementStateError:
        """The error of an agent that cannot go on with the file."""
        return PlacementStateError(
            f"{why}, please drain this node and delete the {self.manager} checkpoint file "
            f'"{self.path}" before restarting Kubelet'
        )

    def _read(self) -> bytes | None:
        try:
            return read_state(self.path)
        except OSError as exc:
            raise PlacementStateError(f"could not read {self.path}: {os_words(exc)}") from exc


def cpu_state_file(root_dir: str) -> ManagerFile:
    """The CPU manager's, in the agent's directory."""
    return ManagerFile(root_dir=root_dir, name=checkpoint.FILE_NAME, manager="CPU manager")


def memory_state_file(root_dir: str) -> ManagerFile:
    """The memory manager's."""
    return ManagerFile(root_dir=root_dir, name=memory_checkpoint.FILE_NAME, manager="memory manager")
