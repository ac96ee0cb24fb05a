"""The agent as a service of systemd: what it says over `$NOTIFY_SOCKET` (sd_notify(3)), and its watchdog.

Without systemd nothing is said. The kubelet's rules: a watchdog of a second or less is a mistake; it is told
twice in its time, or more often, that all is well, and not while a health check fails, so that systemd starts
the agent anew.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

import trio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

_SHORTEST_WATCHDOG = 1.0
_STATUS_PERIOD = 10.0


class ServiceManager:
    """systemd, as far as it wants to hear of this process; `environment` is the process's."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._said = ""
        self.watchdog = _watchdog_seconds(environment)

    def ready(self) -> None:
        """The agent is up."""
        self._tell("READY=1")

    def reloading(self) -> None:
        """The agent reads its configuration anew; `ready` ends that."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """All is well, says the watchdog."""
        self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`, told when it changes."""
        if text != self._said:
            self._said = text
            self._tell(f"STATUS={text}")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
                speaker.setblocking(False)
                speaker.sendto(message.encode(), self._address)
        except OSError as error:
            log.warning("systemd could not be told", message=message.partition("=")[0], err=error)

    async def look_after(
        self, checks: Mapping[str, Callable[[], str | None]], text: Callable[[], str]
    ) -> None:
        """Keeps the watchdog quiet while every check is well (None), and the status line true."""
        period = self.watchdog / 2 or _STATUS_PERIOD
        while self._address:
            self.status(text())
            if self.watchdog:
                failed = {name: reason for name, check in checks.items() if (reason := check()) is not None}
                if failed:
                    log.error(
                        "Do not notify watchdog this iteration as the kubelet is reportedly not healthy",
                        checks=failed,
                    )
                else:
                    self.alive()
            await trio.sleep(min(period, _STATUS_PERIOD))


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Seconds of the watchdog, 0 without one. Raises ValueError for one that makes no sense."""
    text = environment.get("WATCHDOG_USEC", "")
    if not text or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    if not text.isdecimal():
        raise ValueError(f"configure watchdog: WATCHDOG_USEC is {text!r}, not a number")
    seconds = int(text) / 1_000_000
    if seconds <= _SHORTEST_WATCHDOG:
        raise ValueError(f"configure watchdog timeout too small: {seconds:g}s")
    return seconds
