"""FlexVolume drivers: programs in a directory, looked for when a pod wants one, and called one by one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from trio_kubelet.common.caching import SingleFlight
from trio_kubelet.common.go_words import os_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.programs import ProgramFailed, run_program
from trio_kubelet.storage.errors import Ending, NotSupported, OperationError
from trio_kubelet.storage.flex.messages import Answer, Capabilities, answer_of, program_of
from trio_kubelet.storage.threads import in_thread

log = get_logger(__name__)

DEADLINE: Final = 110.0
"""Seconds a call may take; a program that takes longer is killed with what it started."""
ATTACH_DEADLINE: Final = 600.0
"""Seconds a driver may wait for a disk to come (kubelet: `waitForAttachTimeout`)."""

Run = Callable[[Sequence[str]], Awaitable[bytes]]
"""What a program prints. Raises ProgramFailed, OSError."""
_Version = tuple[int, int, int]


class FlexDriver:
    """A driver that was asked what it can do; what it says it does not support is not asked again."""

    def __init__(self, name: str, program: str, run: Run) -> None:
        self.name = name
        self.capabilities = Capabilities()
        self._program = program
        self._run = run
        self._unsupported: set[str] = set()

    async def init(self) -> None:
        """What the driver can do. Raises OperationError."""
        answer = await self.call("init")
        self.capabilities = answer.capabilities or Capabilities()

    async def call(self, command: str, *arguments: str, deadline: float = DEADLINE) -> Answer:
        """One call. Raises OperationError, NotSupported for what the driver leaves to the agent."""
        if command in self._unsupported:
            raise NotSupported(f"{self.name} does not support {command}")
        try:
            return await self._answer(command, arguments, deadline)
        except NotSupported:
            self._unsupported.add(command)
            raise

    async def _answer(self, command: str, arguments: Sequence[str], deadline: float) -> Answer:
        try:
            with trio.fail_after(deadline):
                return answer_of(command, await self._run([self._program, command, *arguments]))
        except trio.TooSlowError:
            text = f"{command} command did not end within {deadline:g} s"
            raise OperationError(text, Ending.UNCERTAIN) from None
        except OSError as error:
            raise OperationError(f"fork/exec {self._program}: {os_words(error)}", Ending.TRANSIENT) from error
        except ValueError as error:  # an argument that no program can be given
            raise OperationError(str(error), Ending.TRANSIENT) from error
        except ProgramFailed as error:
            answer_of(command, error.output)
            log.error("A driver has failed but says that it has not", program=self._program, err=error)
            raise OperationError(str(error)) from error


class FlexDrivers:
    """The drivers in a directory. Nobody has to tell of a new one: it is looked for when it is needed, and
    asked anew what it can do when its program is another one.
    """

    def __init__(self, directory: str, run: Run | None = None) -> None:
        self._directory = directory.rstrip("/")
        self._run = run or _run
        self._known: dict[str, tuple[_Version, FlexDriver]] = {}
        self._starting: SingleFlight[tuple[str, _Version], FlexDriver] = SingleFlight()

    def known(self, name: str) -> FlexDriver | None:
        """The driver as it was when it was last wanted."""
        found = self._known.get(name)
        return found[1] if found is not None else None

    async def find(self, name: str) -> FlexDriver | None:
        """The driver; None if there is none, or it does not begin: why is in the log."""
        relative = program_of(name)
        program = f"{self._directory}/{relative}"
        try:
            version = await in_thread(f"flex {name}", _version, program) if relative else None
        except OperationError as error:
            log.error("A FlexVolume driver cannot be looked at", driver=name, err=error)
            version = None
        if version is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is not None and known[0] == version:
            return known[1]
        try:
            driver = await self._starting.ask((name, version), lambda: self._start(name, program))
        except OperationError as error:
            log.error("A FlexVolume driver cannot be used", driver=name, err=error)
            return None
        self._known[name] = version, driver
        return driver

    async def _start(self, name: str, program: str) -> FlexDriver:
        driver = FlexDriver(name, program, self._run)
        await driver.init()
        return driver

    async def get(self, name: str) -> FlexDriver:
        """The driver. Raises OperationError if there is none."""
        driver = await self.find(name)
        if driver is None:
            raise OperationError("no volume plugin matched", Ending.TRANSIENT)
        return driver


def _version(program: str) -> _Version | None:
    """By what another program is told from this one, None if there is none."""
    try:
        found = os.stat(program)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


async def _run(command: Sequence[str]) -> bytes:
    return await run_program(command, os.environ, b"")
