"""A containerd of one's own: its configuration, and a task that keeps it running.

Every path is the node's own; what containerd would otherwise share with the host (runc state, CDI and NRI
directories, the debug socket) is moved or switched off. The process is restarted when it dies, after a delay
that doubles. Shims outlive their containerd by design, so pods survive such a restart; ending them is what
`cleanup` does.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.lanes import STANDALONE
from trio_kubelet.common.log import get_logger
from trio_kubelet.standalone.images import PAUSE_IMAGE
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.packages import Containerd
from trio_kubelet.standalone.run import CommandFailed, command

log = get_logger(__name__)

_CRI = "io.containerd.grpc.v1.cri"
_UNUSED_PLUGINS = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.nri.v1.nri",
)
_TIMEOUTS = {"io.containerd.timeout.shim.load": "30s", "io.containerd.timeout.task.state": "10s"}
"""A containerd that is started again ends each pod whose shim does not answer in time; on a busy machine that
takes longer than its own 5 and 2 seconds."""
_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PAUSES = Pauses(0.5, 30.0)
_STABLE_SECONDS = 60.0

Table = Mapping[str, object]


def config(
    layout: NodeLayout,
    cni_bin_dir: Path,
    version: tuple[int, int],
    snapshotter: str,
    runc_path: Path | None = None,
) -> dict[str, object]:
    """containerd's configuration as nested tables (file format 2 before containerd 2.0, else 3). Without
    `runc_path` containerd looks for runc itself.

    `restrict_oom_score_adj`: a machine without CAP_SYS_RESOURCE may not lower oom_score_adj; containerd then
    clamps the value the agent asks for instead of failing the container.
    """
    streaming = {
        "disable_tcp_service": True,
        "stream_server_address": "127.0.0.1",
        "stream_server_port": "0",
        "enable_tls_streaming": False,
    }
    bin_dirs = {"bin_dirs": [str(cni_bin_dir)]} if version >= (2, 1) else {"bin_dir": str(cni_bin_dir)}
    cni = {**bin_dirs, "conf_dir": str(layout.cni_conf_dir)}
    runc = {
        "runtime_type": "io.containerd.runc.v2",
        "options": {
            "Root": str(layout.base / "runc"),
            "SystemdCgroup": layout.systemd,
            **({"BinaryName": str(runc_path)} if runc_path else {}),
        },
    }
    runtimes = {"default_runtime_name": "runc", "runtimes": {"runc": runc}}
    runtime: dict[str, object] = {
        "restrict_oom_score_adj": True,
        "netns_mounts_under_state_dir": True,
        "tolerate_missing_hugetlb_controller": True,
        "disable_hugetlb_controller": True,
        "enable_unprivileged_ports": False,
        "enable_unprivileged_icmp": False,
        "enable_cdi": False,
        "cni": cni,
    }
    plugins: dict[str, object] = {"io.containerd.internal.v1.opt": {"path": str(layout.base / "opt")}}
    if version >= (2, 0):
        plugins["io.containerd.cri.v1.images"] = {
            "snapshotter": snapshotter,
            "pinned_images": {"sandbox": PAUSE_IMAGE},
        }
        plugins["io.containerd.cri.v1.runtime"] = {**runtime, "containerd": runtimes}
        plugins[_CRI] = streaming
    else:
        if version < (1, 7):
            del runtime["enable_cdi"]
        plugins[_CRI] = {
            **runtime,
            **streaming,
            "sandbox_image": PAUSE_IMAGE,
            "containerd": {**runtimes, "snapshotter": snapshotter},
        }
    return {
        "version": 3 if version >= (2, 0) else 2,
        "root": str(layout.containerd_root),
        "state": str(layout.containerd_state),
        "temp": str(layout.base / "tmp"),
        "disabled_plugins": list(_UNUSED_PLUGINS),
        "grpc": {"address": str(layout.socket)},
        "ttrpc": {"address": f"{layout.socket}.ttrpc"},
        "debug": {"address": str(layout.base / "debug.sock"), "level": "info"},
        "timeouts": _TIMEOUTS,
        "plugins": plugins,
    }


def render_toml(table: Table) -> str:
    """TOML for nested tables of strings, booleans, integers and lists of strings."""
    return "\n".join(_toml_lines(table, ())) + "\n"


def _toml_lines(table: Table, path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{'.'.join(_toml(part) for part in path)}]"] if path and plain else []
    lines += [f"{_toml(key)} = {_toml(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _toml_lines(value, (*path, key))
    return lines


def _toml(value: object) -> str:
    """One TOML value: as JSON writes it, except for DEL and escaped surrogates, which TOML does not allow."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def crictl_config(layout: NodeLayout) -> str:
    """A crictl configuration for looking into the node by hand."""
    return f"runtime-endpoint: {layout.endpoint}\nimage-endpoint: {layout.endpoint}\ntimeout: 10\n"


async def choose_snapshotter(base: Path) -> str:
    """`overlayfs` where an overlay can be mounted on `base`'s file system, else `native` (plain copies)."""
    probe = base / "overlay-probe"
    parts = {name: probe / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        await trio.Path(part).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    try:
        await command(["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])], seconds=20)
        await command(["umount", str(parts["merged"])], seconds=20)
    except CommandFailed:
        return "native"
    finally:
        with trio.CancelScope(shield=True):
            await STANDALONE.run(functools.partial(shutil.rmtree, probe, ignore_errors=True))
    return "overlayfs"


class PrivateContainerd:
    """One supervised containerd. `run` is its task; the rest may be called from other tasks meanwhile."""

    def __init__(self, layout: NodeLayout, binaries: Containerd) -> None:
        self.layout = layout
        self.binaries = binaries
        self.starts = 0
        self._process: trio.Process | None = None
        self._held = trio.Event()
        self._held.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep containerd running until cancelled; `task_status` is told when it first accepts connections.

        CommandFailed when the very first start does not succeed (its log's last lines are in the text).
        """
        failures, reported = 0, False
        while True:
            await self._held.wait()
            await trio.sleep(_PAUSES.after(failures))
            began = trio.current_time()
            process = await self._spawn()
            try:
                ready = await self._until_ready(process)
                if ready:
                    if not reported:
                        reported = True
                        task_status.started()
                    await process.wait()
            finally:
                await _stop(process)
                self._process = None
            if not reported:
                raise CommandFailed(f"containerd does not start: {await self.log_tail()}")
            if self._held.is_set():
                stable = ready and trio.current_time() - began > _STABLE_SECONDS
                failures = 0 if stable else failures + 1
                log.warning("Private containerd ended", code=process.returncode)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the running containerd; it is started again unless held."""
        if self._process is not None:
            self._process.send_signal(number)

    async def hold(self) -> None:
        """Stop containerd, pods stay, and keep it down until `release`."""
        self._held = trio.Event()
        process = self._process
        if process is not None:
            await _stop(process)

    def release(self) -> None:
        """Let a held containerd come back."""
        self._held.set()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def log_tail(self, lines: int = 5) -> str:
        """The last lines of containerd's log."""
        try:
            text = await trio.Path(self.layout.containerd_log).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    async def _spawn(self) -> trio.Process:
        path = f"{self.binaries.bin_dir}:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
        argv = [str(self.binaries.daemon), "--config", str(self.layout.containerd_config)]

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = await STANDALONE.run(os.open, self.layout.containerd_log, flags, 0o600)
        try:
            # A session of its own: Ctrl-C at the terminal must reach only this program, which takes the
            # node down in order.
            process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                start_new_session=True,
                env={**os.environ, "PATH": path},
            )
        finally:
            os.close(fd)
        self._process = process
        self.starts += 1
        return process

    async def _until_ready(self, process: trio.Process) -> bool:
        """Whether containerd accepted a connection before its deadline and before it died."""
        with trio.move_on_after(_READY_SECONDS):
            while process.returncode is None:
                try:
                    stream = await trio.open_unix_socket(str(self.layout.socket))
                except (OSError, RuntimeError):
                    await trio.sleep(0.02)
                else:
                    await stream.aclose()
                    return True
        return False


async def _stop(process: trio.Process) -> None:
    """End the process, whatever state it is in."""
    if process.returncode is not None:
        return
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_SECONDS):
        process.terminate()
        with trio.move_on_after(_STOP_SECONDS / 2):
            await process.wait()
            return
        process.kill()
        await process.wait()


async def write_config(layout: NodeLayout, binaries: Containerd, cni_bin_dir: Path) -> str:
    """Create the node's directories and configuration; returns the snapshotter that works there."""

    def directories() -> None:
        for path in (layout.containerd_root, layout.containerd_state, layout.base / "tmp"):
            path.mkdir(parents=True, exist_ok=True)

    await STANDALONE.run(directories)
    snapshotter = await choose_snapshotter(layout.base)
    text = render_toml(config(layout, cni_bin_dir, binaries.version, snapshotter, binaries.oci_runtime))
    await trio.Path(layout.containerd_config).write_text(text)
    await trio.Path(layout.base / "crictl.yaml").write_text(crictl_config(layout))
    return snapshotter
