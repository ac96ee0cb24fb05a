"""A running machine: a process (User Mode Linux or qemu), a network of its own, and a shell in it.

Each machine has a directory (what it writes to its disks goes there, the image stays as it is), a network
namespace and a process namespace, so that two do not meet and nothing of one that was left is hard to find.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tools.node_machine import archive, emulator
from tools.node_machine.cache import Unavailable, root, run, say
from tools.node_machine.image import ADDRESS, GATEWAY, image
from tools.node_machine.kernel import kernel

_MEMORY, _CPUS = "4G", "2"
_BOOT_SECONDS, _OFF_SECONDS = 600.0, 60.0
_DISKS = 2  # empty ones, for what needs a block device
_DISK_SIZE = 1 << 30


class Machine:
    """A machine that has been started; `directory` is its own."""

    def __init__(
        self, directory: Path, namespace: str, start: Callable[[], subprocess.Popen[bytes]], built: Path
    ) -> None:
        self.directory = directory
        self.image = built
        self._namespace = namespace
        self._start = start
        self._process = start()
        self._key = built / "key"

    def beside(self, *command: str) -> list[str]:
        """The command line of a process of this machine that sees the other one's network."""
        return ["ip", "netns", "exec", self._namespace, *command]

    def start_again(self) -> None:
        """Starts one that has ended; its root disk is as it left it."""
        self._process = self._start()

    def ended(self, seconds: float) -> bool:
        """Whether it ends by itself within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def switch_off(self) -> None:
        """Switches it off, so that its disk is whole. Raises Unavailable."""
        with contextlib.suppress(Unavailable):  # it may be gone before it has answered
            self.do("systemctl poweroff")
        if not self.ended(_OFF_SECONDS):
            raise Unavailable("the machine does not go off")

    def ssh(self, *command: str, terminal: bool = False) -> list[str]:
        """The command line that runs a command in the machine."""
        options = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": "5",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "8",
            "IdentitiesOnly": "yes",
        }
        words = [f"-o{name}={value}" for name, value in options.items()]
        enter = self.beside("ssh", "-i", str(self._key), *words)
        return [*enter, *(["-t"] if terminal else []), f"root@{ADDRESS}", *command]

    def do(self, command: str, seconds: float = 600) -> str:
        """Runs a shell command in the machine; its output. Raises Unavailable."""
        return run(self.ssh(command), seconds=seconds)

    def wait(self) -> None:
        """Waits until the machine can be worked with. Raises Unavailable."""
        deadline = time.monotonic() + _BOOT_SECONDS
        state = ["systemctl is-system-running --wait || true"]
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(Unavailable):
                run(self.ssh(*state), seconds=60)
                return
            time.sleep(0.5)
        lines = (self.directory / "console").read_text(errors="replace").splitlines()
        raise Unavailable("\n".join(["the machine does not come up:", *lines[-15:]]))

    def stop(self) -> None:
        """Ends it; what it would still write does not count."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def machine(prepare: Callable[[Machine], None], *, emulated: bool = False) -> Iterator[Machine]:
    """A machine that is up and prepared, until the context is left. Raises Unavailable.

    For one that is `emulated` (by qemu) the user-mode one is prepared first and switched off. On its disk the
    emulated one starts, where all that would take ten times as long.
    """
    if os.geteuid() != 0:
        raise Unavailable("root is needed, for a network namespace of its own")
    archive.install({"ip": "iproute2", "ssh": "openssh-client", "unshare": "util-linux"})
    if emulated:
        archive.install(emulator.NEEDS)
    linux, built = kernel(), image()
    end_leftovers()
    name = f"{os.getpid()}-{secrets.token_hex(3)}"
    directory, namespace = root() / "run" / name, f"tk-{name}"
    directory.mkdir(parents=True)
    try:
        _make_network(namespace)
        disks = _empty_disks(directory)
        started = partial(_started, directory, namespace, built)
        if not emulated:
            changes = f"{directory / 'root.cow'},{built / 'root.img'}"
            with started(_user_mode_command(directory, linux, changes, disks)) as up:
                prepare(up)
                yield up
            return
        disk = directory / "root.img"
        run(["cp", "--sparse=always", built / "root.img", disk])
        with started(_user_mode_command(directory, linux, str(disk), disks)) as up:
            prepare(up)
            up.switch_off()
        with started(emulator.command(directory, built, [disk, *disks])) as up:
            yield up
    finally:
        _remove_network(namespace)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _started(directory: Path, namespace: str, built: Path, command: Sequence[str]) -> Iterator[Machine]:
    began = time.monotonic()
    up = Machine(directory, namespace, partial(_start, directory, namespace, command), built)
    try:
        up.wait()
        say(f"up after {time.monotonic() - began:.1f} s")
        yield up
    finally:
        up.stop()


def _empty_disks(directory: Path) -> list[Path]:
    paths = [directory / f"disk{number}.img" for number in range(1, _DISKS + 1)]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(_DISK_SIZE)
    return paths


def _user_mode_command(directory: Path, linux: Path, root_disk: str, disks: Sequence[Path]) -> list[str]:
    return [
        str(linux),
        f"mem={_MEMORY}",
        f"ncpus={min(int(_CPUS), os.cpu_count() or 1)}",
        "seccomp=on",
        f"ubd0={root_disk}",
        *(f"ubd{number}={path}" for number, path in enumerate(disks, 1)),
        "root=/dev/ubda",
        "rw",
        "vec0:transport=tap,ifname=tap0,depth=128,gro=1",
        "con0=null,fd:1",
        "con=null",
        "ssl=null",
        "psi=1",
        "noreboot",  # it ends instead: what it started again as itself would not have its network
        f"uml_dir={directory}",
        "systemd.show_status=no",
    ]


def _start(directory: Path, namespace: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    # With its process namespace all of the machine's processes end together.
    enter = ["ip", "netns", "exec", namespace, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (directory / "console").open("ab") as console:
        return subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": "/dev/shm"},
            start_new_session=True,
        )


def _make_network(namespace: str) -> None:
    def ip(*words: str) -> None:
        run(["ip", *words])

    ip("netns", "add", namespace)
    ip("-n", namespace, "link", "set", "lo", "up")
    ip("-n", namespace, "tuntap", "add", "tap0", "mode", "tap")
    ip("-n", namespace, "addr", "add", f"{GATEWAY}/24", "dev", "tap0")
    ip("-n", namespace, "link", "set", "tap0", "up")


def _remove_network(namespace: str) -> None:
    with contextlib.suppress(Unavailable):
        run(["ip", "netns", "delete", namespace])


def end_leftovers() -> None:
    """Ends machines whose starter is gone."""
    for directory in sorted((root() / "run").glob("*")):
        owner = directory.name.partition("-")[0]
        if Path(f"/proc/{owner}").exists() and "node_machine" in _command_line(owner):
            continue
        say(f"ending a machine that was left ({directory.name})")
        for entry in Path("/proc").glob("[0-9]*"):
            if str(directory) in _command_line(entry.name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        _remove_network(f"tk-{directory.name}")
        shutil.rmtree(directory, ignore_errors=True)


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def send(up: Machine, source: Path, files: Sequence[str], target: str) -> None:
    """Copies files of a directory into the machine, to a new directory."""
    pack = subprocess.Popen(["tar", "-C", source, "-cf", "-", "--", *files], stdout=subprocess.PIPE)
    try:
        unpack = f"mkdir -p {shlex.quote(target)} && tar -C {shlex.quote(target)} -xf -"
        done = subprocess.run(up.ssh(unpack), stdin=pack.stdout, check=False, timeout=300)
    finally:
        pack.kill()
        pack.wait()
    if done.returncode:
        raise Unavailable(f"the tree could not be copied into the machine ({done.returncode})")
