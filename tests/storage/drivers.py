"""Runs the tests' CSI driver, tells it how to fail, and reads what it was asked."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.storage import loop


class DriverProcess:
    """A driver in a process of its own; `start` again after `kill`."""

    def __init__(self, name: str, directory: Path, registration: Path | None = None) -> None:
        self.name = name
        self.directory = directory
        self.socket = directory / "csi.sock"
        self.registration = registration
        self.process: subprocess.Popen[bytes] | None = None
        self._elsewhere = False
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Starts the process; it answers when this returns."""
        self.socket.unlink(missing_ok=True)
        sockets = [str(self.socket), *([str(self.registration)] if self.registration else [])]
        command = [sys.executable, "-m", "tests.storage.csi_driver", self.name, str(self.directory), *sockets]
        with (self.directory / "driver.log").open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        deadline = time.monotonic() + 60
        while not all(listens(path) for path in (self.socket, self.registration) if path is not None):
            assert self.process.poll() is None, (self.directory / "driver.log").read_text()
            assert time.monotonic() < deadline, "the driver does not start"
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9; what it had mounted stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def attach(self) -> None:
        """Somebody else runs the process."""
        self._elsewhere = True

    @property
    def running(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._elsewhere or (self.process is not None and self.process.poll() is None)

    def fail(self, **faults: dict[str, Any]) -> None:
        """What goes wrong from now on, by method; without any nothing does."""
        fresh = self.directory / "faults.next"
        fresh.write_text(json.dumps(faults))
        fresh.rename(self.directory / "faults.json")

    def set(self, **settings: Any) -> None:
        """What the driver says of itself."""
        (self.directory / "settings.json").write_text(json.dumps(settings))

    def calls(self, what: str = "begin") -> list[dict[str, Any]]:
        """The calls that began (or ended: `end`, failed: `error`) so far."""
        try:
            lines = (self.directory / "calls.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [entry for line in lines if (entry := json.loads(line))["what"] == what]

    def methods(self, what: str = "end") -> list[str]:
        """The names of the calls that concern volumes, without questions about the node."""
        return [each["method"] for each in self.calls(what) if each["volume"]]

    def clean(self) -> None:
        """Ends the process and takes away what is left mounted."""
        self.kill()
        self.free_disks()

    def free_disks(self) -> None:
        """No loop device shows an image any more."""
        for image in self.directory.glob("*.img"):
            loop.detach(str(image))


def listens(path: Path) -> bool:
    """Whether somebody is behind a socket: there is a moment between its binding and that."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def mounted_below(directory: Path) -> list[str]:
    """Mount points below a directory, as the kernel says."""
    return sorted(mount.path for mount in mounts() if mount.path.startswith(f"{directory}/"))
