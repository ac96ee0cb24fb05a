"""`build`: what the machine is made of; `test [pytest options]`: the tests marked `node` and those on a real
containerd, in it; `shutdown`: it really goes down, with pods; `shell [command]`: a shell in it. With
MACHINE=qemu in the environment the machine is emulated, and the tests are those marked `hardware`.

Ends with 0, with pytest's status, or with 77 where the machine cannot be had, and says why.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tools.node_machine.boot import Machine, machine, send
from tools.node_machine.cache import Unavailable, say
from tools.node_machine.image import dependencies, image, network_disks, newer_wheels
from tools.node_machine.kernel import kernel

PROJECT = Path(__file__).parents[2]
REPORTS = PROJECT / "build" / "node-machine"
UNAVAILABLE = 77
_TREE = "/root/trio-kubelet"
_PYTEST = "/opt/venv/bin/python -m pytest -q -p no:cacheprovider"
_SELECT = "(node or containerd) and not (soak or hardware)"
_SELECT_EMULATED = "hardware and not soak"
_TEST_SECONDS = 1800
_EMULATED_SLOWER = 10
_OFF_SECONDS = 60
_INSTALL_PACKAGES = r"""
set -e
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # nothing is started
chmod 755 /usr/sbin/policy-rc.d
DEBIAN_FRONTEND=noninteractive dpkg --no-triggers -i /root/packages/*.deb
rm /usr/sbin/policy-rc.d
systemctl disable nfs-server open-iscsi # tests start what they want
"""


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    action, rest = arguments[0] if arguments else "build", arguments[1:]
    try:
        if action == "build":
            print(kernel())
            print(image() / "root.img")
            return 0
        emulated = _is_emulated()
        with machine(partial(prepare, emulated=emulated), emulated=emulated) as up:
            if action == "shutdown":
                return shutdown(up)
            return test(up, rest, emulated=emulated) if action == "test" else shell(up, rest)
    except Unavailable as error:
        say(str(error))
        return UNAVAILABLE


def _is_emulated() -> bool:
    """Raises Unavailable."""
    kind = os.environ.get("MACHINE") or "uml"
    if kind not in ("uml", "qemu"):
        raise Unavailable(f"MACHINE={kind}: there are uml and qemu")
    return kind == "qemu"


def prepare(up: Machine, *, emulated: bool) -> None:
    """The tree as it is, installed in the machine's Python. For the emulated one also what only its kernel
    can do, and the bytecode of what it runs. Raises Unavailable.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, timeout=60).stdout
    files = [name for name in listed.decode().split("\0") if name and (PROJECT / name).is_file()]
    send(up, PROJECT, files, _TREE)
    pip = "/opt/venv/bin/pip install -q --no-index --no-build-isolation"
    if (wheels := newer_wheels(up.image)) is not None:
        send(up, wheels, ["."], "/root/wheels")
        up.do(f"{pip} --find-links /root/wheels {shlex.join(dependencies())}")
    up.do(f"cd {_TREE} && {pip} --no-deps -e .")
    if emulated:
        send(up, network_disks(up.image), ["."], "/root/packages")
        up.do(_INSTALL_PACKAGES)
        up.do(f"cd {_TREE} && python3 -m compileall -q trio_kubelet tests")
        up.do(f"cd {_TREE} && {_PYTEST} --collect-only {shlex.join(emulated_tests())}")


def emulated_tests() -> list[str]:
    """The files with tests for the emulated machine, which would be long at reading all of them."""
    files = sorted((PROJECT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(PROJECT)) for file in files if "mark.hardware" in file.read_text()]


def test(up: Machine, options: list[str], *, emulated: bool) -> int:
    """Runs the tests and brings their report and the machine's log back."""
    started = time.monotonic()
    select, files = (_SELECT_EMULATED, emulated_tests()) if emulated else (_SELECT, ["tests"])
    words = shlex.join(options or ["-m", select, *files])
    variables = "TRIO_KUBELET_REQUIRE_CONTAINERD=1 TRIO_KUBELET_NODE_MACHINE=1 PATH=/opt/venv/bin:$PATH"
    if emulated:
        variables += f" TRIO_KUBELET_PATIENCE={3 * _EMULATED_SLOWER} TRIO_KUBELET_EMULATED=1"
    done = subprocess.run(
        up.ssh(f"cd {_TREE} && env {variables} {_PYTEST} --junit-xml=/root/report.xml {words}"),
        check=False,
        timeout=_TEST_SECONDS * (_EMULATED_SLOWER if emulated else 1),
    )
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name, command in (
        ("report.xml", "cat /root/report.xml"),
        ("journal.log", "journalctl -b --no-pager"),
    ):
        (REPORTS / name).write_text(up.do(f"{command} || true"))
    (REPORTS / "console.log").write_bytes((up.directory / "console").read_bytes())
    say(f"tests ended with {done.returncode} after {time.monotonic() - started:.0f} s; reports in {REPORTS}")
    skipped = (REPORTS / "report.xml").read_text().count("<skipped ")
    if emulated and not options and skipped:
        say(f"{skipped} tests were skipped in the machine that is there for them")
        return done.returncode or 1
    return done.returncode


def shutdown(up: Machine) -> int:
    """A reboot and a power-off with pods, an API server beside the machine (`tests/real_shutdown.py`)."""
    words = [sys.executable, "-m", "tests.real_shutdown", *up.ssh()]
    playing = subprocess.Popen(up.beside(*words), cwd=PROJECT)
    try:
        while playing.poll() is None and not up.ended(0.5):
            pass
        if playing.poll() is None:
            say("it went down, and is started again")
            up.start_again()
        result = playing.wait(_TEST_SECONDS)
    finally:
        playing.kill()
        playing.wait()
    if result == 0 and not up.ended(_OFF_SECONDS):
        say("the machine did not go off")
        result = 1
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / "shutdown-console.log").write_bytes((up.directory / "console").read_bytes())
    say(f"the shutdown ended with {result}")
    return result


def shell(up: Machine, words: list[str]) -> int:
    command = " ".join(words) or "bash -l"
    return subprocess.run(up.ssh(f"cd {_TREE}; {command}", terminal=not words), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
