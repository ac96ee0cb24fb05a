"""logind, as far as a node that goes down needs it: how long it can be delayed, the delay, and its word."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.dbus.doors import Bus
from trio_kubelet.dbus.values import Descriptor, Method, Signals
from trio_kubelet.nodeshutdown.plan import logind_drop_in

DROP_IN_DIRECTORY: Final = "/etc/systemd/logind.conf.d"
_DROP_IN: Final = "99-kubelet.conf"

_SECONDS: Final = 10.0
_SERVICE = "org.freedesktop.login1"
_PATH = "/org/freedesktop/login1"
_MANAGER = "org.freedesktop.login1.Manager"
_GET = Method(_SERVICE, _PATH, "org.freedesktop.DBus.Properties", "Get", "ss")
_INHIBIT = Method(_SERVICE, _PATH, _MANAGER, "Inhibit", "ssss")
_KILL_UNIT = Method(
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "KillUnit",
    "ssi",
)
_SIGHUP = 1
SHUTDOWNS: Final = Signals(_SERVICE, _PATH, _MANAGER, "PrepareForShutdown", by_anyone=True)
"""As the kubelet's `MonitorShutdown`: who knows of a shutdown before logind does (say, that a machine is
taken back by who lends it) can announce it to the node.
"""

_PAUSES, _TRIES = Pauses(0.1, 60.0), 5
"""Seconds before it is asked whether logind has read its configuration, doubling, and how often."""


class LogindError(Exception):
    """logind cannot be had for what is needed; the text says why."""


class Logind:
    """Raises BusError and LogindError."""

    def __init__(self, bus: Bus, drop_in_directory: str = DROP_IN_DIRECTORY) -> None:
        self._bus = bus
        self._drop_ins = drop_in_directory

    async def is_going_down(self) -> bool:
        """Whether a shutdown is under way."""
        return bool(await self._get("PreparingForShutdown", "b"))

    async def allow(self, seconds: int) -> None:
        """Sees to it that logind lets itself be delayed for so long."""
        if await self._delay() >= seconds:
            return
        try:
            await NODE_FILES.run(_write, self._drop_ins, logind_drop_in(seconds))
        except OSError as error:
            text = f"unable to override inhibit delay by shutdown manager: {error_words(error)}"
            raise LogindError(text) from error
        await self._bus.call(_KILL_UNIT, "systemd-logind.service", "all", _SIGHUP, seconds=_SECONDS)
        for tries in range(1, _TRIES + 1):
            delay = await self._delay()
            if delay >= seconds:
                return
            await trio.sleep(_PAUSES.after(tries))
        raise LogindError(
            f"node shutdown manager was timed out after {_TRIES} attempts waiting for logind "
            f"InhibitDelayMaxSec to update to {format_duration(seconds)} (ShutdownGracePeriod), "
            f"current value is {format_duration(delay)}"
        )

    @asynccontextmanager
    async def delayed(self) -> AsyncIterator[DelayLock]:
        """While this is open, logind waits with a shutdown until the lock is released."""
        why = "Kubelet needs time to handle node shutdown"
        answer = await self._bus.call(_INHIBIT, "shutdown", "kubelet", why, "delay", seconds=_SECONDS)
        descriptors = [each for each in answer if isinstance(each, Descriptor)]
        if not descriptors:  # any other number could be a file of this process
            raise LogindError("logind answered Inhibit without a file descriptor")
        lock = DelayLock(*descriptors)
        try:
            yield lock
        finally:
            lock.release()

    async def _delay(self) -> float:
        """Seconds for which logind lets itself be delayed."""
        return float(await self._get("InhibitDelayMaxUSec", "t")) / 1e6

    async def _get(self, name: str, signature: str) -> int:
        """A property, which has to be a boolean or a number."""
        answer = await self._bus.call(_GET, _MANAGER, name, seconds=_SECONDS)
        match answer:
            case ((str() as kind, int() as value),) if kind == signature:
                return value
        raise LogindError(f"{name} from logind is not a {signature} as expected")


class DelayLock:
    """A delay of logind's: file descriptors (one, from a logind that is well) that end it when closed."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def release(self) -> None:
        """logind goes on. Fine if it was released before."""
        numbers, self._numbers = self._numbers, ()
        for number in numbers:
            os.close(number)


def _write(directory: str, text: str) -> None:
    os.makedirs(directory, 0o755, exist_ok=True)
    path = os.path.join(directory, _DROP_IN)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
