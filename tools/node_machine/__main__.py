"""`build`: what the machine is made of; `test [pytest options]`: the tests marked `node` and those on a real
containerd, in it; `shell [command]`: a shell in it.

Ends with 0, with pytest's status, or with 77 where the machine cannot be had, and says why.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools.node_machine.boot import Machine, machine, send
from tools.node_machine.cache import Unavailable, say
from tools.node_machine.image import dependencies, image, newer_wheels
from tools.node_machine.kernel import kernel
from trio_kubelet.standalone.packages import cache_dir

PROJECT = Path(__file__).parents[2]
REPORTS = PROJECT / "build" / "node-machine"
UNAVAILABLE = 77
_TREE = "/root/trio-kubelet"
_SELECT = "(node or containerd) and not soak"
_TEST_SECONDS = 1800


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    action, rest = arguments[0] if arguments else "build", arguments[1:]
    try:
        if action == "build":
            print(kernel())
            print(image() / "root.img")
            return 0
        with machine() as up:
            copy_project(up)
            return test(up, rest) if action == "test" else shell(up, rest)
    except Unavailable as error:
        say(str(error))
        return UNAVAILABLE


def copy_project(up: Machine) -> None:
    """The tree as it is, installed in the machine's Python. Raises Unavailable."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, timeout=60).stdout
    files = [name for name in listed.decode().split("\0") if name and (PROJECT / name).is_file()]
    send(up, PROJECT, files, _TREE)
    for newer in cache_dir().glob("containerd-2"):  # the machine has no network to fetch it
        send(up, newer.parent, [newer.name], "/root/.cache/trio-kubelet")
    pip = "/opt/venv/bin/pip install -q --no-index --no-build-isolation"
    if (wheels := newer_wheels(up.image)) is not None:
        send(up, wheels, ["."], "/root/wheels")
        up.do(f"{pip} --find-links /root/wheels {shlex.join(dependencies())}")
    up.do(f"cd {_TREE} && {pip} --no-deps -e .")


def test(up: Machine, options: list[str]) -> int:
    """Runs the tests and brings their report and the machine's log back."""
    started = time.monotonic()
    words = shlex.join(options) if options else f"-m {shlex.quote(_SELECT)} tests"
    pytest = f"/opt/venv/bin/python -m pytest -q -p no:cacheprovider --junit-xml=/root/report.xml {words}"
    variables = "TRIO_KUBELET_REQUIRE_CONTAINERD=1 TRIO_KUBELET_REQUIRE_NODE=1 PATH=/opt/venv/bin:$PATH"
    done = subprocess.run(
        up.ssh(f"cd {_TREE} && env {variables} {pytest}"), check=False, timeout=_TEST_SECONDS
    )
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name, command in (
        ("report.xml", "cat /root/report.xml"),
        ("journal.log", "journalctl -b --no-pager"),
    ):
        (REPORTS / name).write_text(up.do(f"{command} || true"))
    (REPORTS / "console.log").write_bytes((up.directory / "console").read_bytes())
    say(f"tests ended with {done.returncode} after {time.monotonic() - started:.0f} s; reports in {REPORTS}")
    return done.returncode


def shell(up: Machine, words: list[str]) -> int:
    command = " ".join(words) or "bash -l"
    return subprocess.run(up.ssh(f"cd {_TREE}; {command}", terminal=not words), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
