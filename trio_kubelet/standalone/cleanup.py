"""Taking a private node down so that nothing of it is left, whatever state it was in.

The node is found by looking (processes, mounts, links, cgroups), not by what some program remembers: the same
code therefore works after a crash, with containerd dead, and at the next start after a `kill -9`. Pods are
ended by SIGKILL; whoever wants them to end gracefully removes their manifests first.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.common.mountinfo import Mount, mounts
from trio_kubelet.standalone import cni
from trio_kubelet.standalone.layout import NodeLayout

CONTAINER_LOG_LINKS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_SHIM_SOCKETS = Path("/run/containerd/s")
_MNT_DETACH = 2
_PR_SET_CHILD_SUBREAPER = 36
_TASKS = "io.containerd.runtime.v2.task/k8s.io"
_ATTEMPTS, _PAUSE_SECONDS = 100, 0.05
_STOP_SECONDS = 30
_REAP_PERIOD = 5.0


@dataclass(frozen=True)
class Process:
    """What /proc says of one process."""

    pid: int
    parent: int
    state: str
    cmdline: str
    cgroups: str


def belonging(processes: Iterable[Process], layout: NodeLayout) -> set[int]:
    """Processes of the node: containerd, shims and agent by their arguments, pods by cgroup, descendants.

    An ended process that only waits for another program to read its exit code is not counted.
    """
    table = {p.pid: p for p in processes if p.state != "Z" or p.parent == os.getpid()}
    config, root_dir = str(layout.containerd_config), f"--root-dir={layout.agent_root}"
    in_cgroup = re.compile(re.escape(layout.cgroup_path) + r"(/|$)", re.MULTILINE)
    own = {
        process.pid
        for process in table.values()
        if {config, root_dir} & set(process.cmdline.split("\0"))
        or ("containerd-shim" in process.cmdline and str(layout.socket) in process.cmdline.split("\0"))
        or in_cgroup.search(process.cgroups)
    }
    grown = True
    while grown:
        children = {p.pid for p in table.values() if p.parent in own and p.pid not in own}
        own |= children
        grown = bool(children)
    return own - {os.getpid()}


def mounts_under(mounts: Sequence[Mount], base: Path) -> list[str]:
    """Mount points at or below `base`, the last mounted first."""
    return [m.path for m in reversed(mounts) if m.path == str(base) or m.path.startswith(f"{base}/")]


def cgroup_mounts(mounts: Sequence[Mount]) -> list[Path]:
    """Mount points of all cgroup hierarchies, version 1 and 2."""
    return [Path(mount.path) for mount in mounts if mount.fs_type in ("cgroup", "cgroup2")]


# --- looking ----------------------------------------------------------------------------------------------


def read_processes() -> list[Process]:
    """All processes; those that end meanwhile are left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text(errors="replace")
            state, parent = stat.rpartition(")")[2].split()[:2]
            cmdline = (entry / "cmdline").read_bytes().decode(errors="replace")
            cgroups = (entry / "cgroup").read_text(errors="replace")
            found.append(Process(int(entry.name), int(parent), state, cmdline, cgroups))
    return found


def _cgroups(layout: NodeLayout) -> list[Path]:
    candidates = [mount / layout.cgroup_path.lstrip("/") for mount in cgroup_mounts(mounts())]
    return [path for path in candidates if path.is_dir()]


def _log_links(layout: NodeLayout) -> list[Path]:
    """Links of log collectors that point into the node's directory."""
    found = []
    with contextlib.suppress(OSError):
        for link in CONTAINER_LOG_LINKS.iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(f"{layout.base}/"):
                    found.append(link)
    return found


def _sandboxes(layout: NodeLayout) -> set[str]:
    """IDs under which containerd kept tasks and sandboxes; some outlive their task."""
    found: set[str] = set()
    for directory in (
        layout.containerd_state / _TASKS,
        layout.containerd_state / "io.containerd.grpc.v1.cri/sandboxes",
        layout.containerd_root / _TASKS,
        layout.containerd_root / "io.containerd.grpc.v1.cri/sandboxes",
    ):
        with contextlib.suppress(OSError):
            found |= {entry.name for entry in directory.iterdir()}
    return found


def _host_files(layout: NodeLayout) -> list[Path]:
    """Files outside the node's directory: shim sockets and cached CNI results, whose places are fixed."""
    found: list[Path] = []
    for sandbox in _sandboxes(layout):
        digest = hashlib.sha256(f"{layout.socket}/k8s.io/{sandbox}".encode()).hexdigest()
        found.append(_SHIM_SOCKETS / digest)
        found.append(_CNI_RESULTS / f"cni-loopback-{sandbox}-lo")
    with contextlib.suppress(OSError):
        found += [p for p in _CNI_RESULTS.iterdir() if p.name.startswith(f"{layout.bridge}-")]
    return [path for path in found if path.exists()]


def _has_threads(pid: int) -> bool:
    """Whether threads of a process are left besides its first."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _reaped(pid: int) -> bool:
    """Whether an ended process was this one's to reap, and now is."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _look(layout: NodeLayout) -> list[str]:
    processes = {process.pid: process for process in read_processes()}
    found = []
    for pid in sorted(belonging(processes.values(), layout)):
        process = processes[pid]
        if process.state == "Z" and _has_threads(pid):
            continue  # killed; until the kernel has ended its other threads nobody can reap it
        if process.state == "Z" and layout.cgroup_path in process.cgroups and _reaped(pid):
            continue  # of a pod: it came to this process after all, for its shim ended last
        command = process.cmdline.replace("\0", " ").strip() or f"state {process.state}"
        found.append(f"process {pid}: {command}")
    found += [f"mount {point}" for point in mounts_under(mounts(), layout.base)]
    found += [f"network namespace {path}" for path in sorted(layout.containerd_state.glob("*/netns/*"))]
    found += [f"cgroup {path}" for path in _cgroups(layout)]
    found += [f"log link {path}" for path in _log_links(layout)]
    found += [f"file {path}" for path in _host_files(layout)]
    return found


async def leftovers(layout: NodeLayout) -> list[str]:
    """What of the node exists on this machine, one line each; empty after a complete `take_down`.

    While a node is up this lists its parts, so it also serves as proof that the look finds something.
    """
    found = await STANDALONE.run(_look, layout)
    return found + [f"link {name}" for name in await cni.links(layout.bridge)]


# --- taking down ------------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Let orphaned descendants (shims) become children of this process, so that it can reap them.

    Shims leave their parent on purpose; on a machine whose PID 1 does not reap, they would stay as zombies.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_shims() -> int:
    """Reap ended shims that became children of this process; returns how many. Other children stay."""
    reaped = 0
    own = os.getpid()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            if state == "Z" and int(parent) == own and name.partition("(")[2].startswith("containerd-shim"):
                reaped += os.waitpid(int(entry.name), os.WNOHANG)[0] != 0
    return reaped


async def reap_shims_for_ever() -> None:
    """A task for a long-lived subreaper."""
    while True:
        await trio.sleep(_REAP_PERIOD)
        await STANDALONE.run(reap_shims)


async def take_down(layout: NodeLayout) -> list[str]:
    """End everything of the node and delete its directory; returns what is left.

    Call it when containerd and the agent have been stopped. Safe to call again, or for a node that is not
    there. The work has a bounded number of attempts, about five seconds for each kind of object.
    """
    host_files = await STANDALONE.run(_host_files, layout)
    await STANDALONE.run(_end_processes, layout)
    await STANDALONE.run(unmount, layout.base)
    await cni.tear_down(layout.bridge)
    await STANDALONE.run(_remove_files, layout, host_files)
    return await leftovers(layout)


def _end_processes(layout: NodeLayout) -> None:
    seen: set[int] = set()
    for _ in range(_ATTEMPTS):
        alive = belonging(read_processes(), layout)
        if not alive:
            return
        seen |= alive
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in seen:
            # Only those adopted from the node are waited for: no other child's exit status is taken away.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_SECONDS)


def unmount(base: Path) -> None:
    """Unmounts everything at or below a directory: of a node also its agent's root directory. Blocking."""
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(_ATTEMPTS):
        points = mounts_under(mounts(), base)
        if not points:
            return
        for point in points:
            libc.umount2(os.fsencode(point), _MNT_DETACH)
        if mounts_under(mounts(), base):
            time.sleep(_PAUSE_SECONDS)


def _remove_files(layout: NodeLayout, host_files: Iterable[Path]) -> None:
    if layout.systemd and _cgroups(layout):
        stop = ["systemctl", "stop", layout.cgroup_path[1:]]
        subprocess.run(stop, check=False, capture_output=True, timeout=_STOP_SECONDS)
    for _ in range(_ATTEMPTS):
        for root in _cgroups(layout):
            for directory, _children, _files in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        if not _cgroups(layout):
            break
        time.sleep(_PAUSE_SECONDS)
    for path in [*host_files, *_log_links(layout)]:
        path.unlink(missing_ok=True)
    remove_directory(layout.base)


def remove_directory(base: Path) -> None:
    """Deletes a directory, with what is mounted in it taken away before. Blocking."""
    unmount(base)
    if not mounts_under(mounts(), base):  # deleting through a mount could reach a volume's content
        shutil.rmtree(base, ignore_errors=True)
