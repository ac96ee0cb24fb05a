"""A node for tests against a real containerd: one private containerd, one agent process, and eyes of its own.

What runs is read straight from the runtime with a second, unrelated gRPC client, so that a test never judges
the agent by the agent's own view.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import grpc  # type: ignore[import-untyped]
import httpx
import trio
import yaml

from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.standalone import cleanup
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.containerd import PrivateContainerd
from trio_kubelet.standalone.images import BUSYBOX_IMAGE
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import Provisions, new_layout, private_node

T = TypeVar("T")
Manifest = dict[str, Any]

RUNNING = cri.CONTAINER_RUNNING
EXITED = cri.CONTAINER_EXITED
SANDBOX_READY = cri.SANDBOX_READY

PATIENCE = float(os.environ.get("TRIO_KUBELET_PATIENCE", "3"))
"""How much longer everything may take than the tests say, who think of a machine with nothing else to do."""
_CALL_SECONDS = 20.0 * PATIENCE
_AGENT_START_SECONDS = 20.0
_AGENT_STOP_SECONDS = 60.0
_numbers = itertools.count()
_NO_SUBNET = ipaddress.IPv4Network("192.0.2.0/24")  # of a node that is only taken down


@overload
async def wait_until(
    predicate: Callable[[], Coroutine[Any, Any, T | None]],
    timeout: float = ...,
    what: str = ...,
    interval: float = ...,
) -> T: ...


@overload
async def wait_until(
    predicate: Callable[[], T | None], timeout: float = ..., what: str = ..., interval: float = ...
) -> T: ...


async def wait_until(
    predicate: Callable[[], Any], timeout: float = 30.0, what: str = "", interval: float = 0.03
) -> Any:
    """Ask `predicate` (plain or async) until it answers something true, and return that.

    AssertionError after `timeout` seconds of an idle machine, with the last answer. gRPC errors count as
    "not yet": containerd may just be restarting. A machine that is slow is asked less often, too.
    """
    timeout *= PATIENCE
    interval *= max(1.0, PATIENCE / 3)
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            answer = predicate()
            value = await answer if isinstance(answer, Awaitable) else answer
            if value:
                return value
            last = value
        except (grpc.RpcError, httpx.HTTPError) as err:
            last = err
        await trio.sleep(interval)
    raise AssertionError(f"not within {timeout:g} s: {what or predicate}; last answer: {last!r}")


def container(name: str = "main", script: str = "", **fields: Any) -> Manifest:
    """A busybox container that runs a shell script, by default one that only waits for SIGTERM."""
    idle = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
    return {
        "name": name,
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script or idle],
        **fields,
    }


def pod(name: str, *containers: Manifest, namespace: str = "default", **spec: Any) -> Manifest:
    """A pod manifest; without containers it gets an idle one named `main`. `spec` fields as in YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": list(containers) or [container()], **spec},
    }


@dataclass
class Agent:
    """One run of the agent process."""

    process: trio.Process
    log: Path

    def cpu_seconds(self) -> float:
        """User and system time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory now."""
        resident_pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Node:
    """A running private node. Made by `running_node`; the agent is started by the test."""

    layout: NodeLayout
    containerd: PrivateContainerd
    manifests: Path
    logs: Path
    ports: AgentPorts
    agent: Agent | None = None
    agent_starts: int = 0
    _nursery: trio.Nursery | None = None
    _expected_exits: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The node's name; a static pod is called `NAME-<this>`."""
        return self.layout.name

    # --- the agent ---------------------------------------------------------------------------------------

    async def start_agent(
        self, *flags: str, config: Mapping[str, object] | None = None, wait: bool = True
    ) -> Agent:
        """Start the `trio-kubelet` command. `config` fields override the file's; waits for healthz
        and the pages.
        """
        file = self.layout.base / "agent.json"
        file.write_text(configuration(self.layout, self.manifests, self.ports, config))
        return await self.start_program(command_line(self.layout, file, flags), wait=wait)

    async def start_program(self, command: Sequence[str], *, wait: bool = True) -> Agent:
        """Start this as the node's agent; waits for healthz and the pages."""
        assert self.agent is None, "an agent is already running"
        self.agent_starts += 1
        log = self.logs / f"agent-{self.agent_starts}.log"
        with log.open("wb") as out:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.agent = Agent(process, log)
        if wait:
            await wait_until(self._serves, _AGENT_START_SECONDS, "the agent's healthz says ok")
        return self.agent

    async def stop_agent(self, number: int = signal.SIGTERM) -> int:
        """Signal the agent, wait for its end and return its exit code (-9 for SIGKILL)."""
        agent, self.agent = self.agent, None
        assert agent is not None, "no agent is running"
        agent.process.send_signal(number)
        with trio.move_on_after(_AGENT_STOP_SECONDS):
            return await agent.process.wait()
        agent.process.kill()
        await agent.process.wait()
        raise AssertionError(f"the agent did not end within {_AGENT_STOP_SECONDS:g} s of signal {number}")

    async def kill_agent(self, number: int = signal.SIGKILL) -> int:
        """kill -9."""
        return await self.stop_agent(number)

    async def _healthy(self) -> bool:
        assert self.agent is not None
        code = self.agent.process.poll()
        assert code is None, f"the agent ended with {code}:\n{self.agent.log_text()[-4000:]}"
        return (await self.get(self.ports.healthz, "/healthz")).status_code == 200

    async def _serves(self) -> bool:
        """Whether there are the pages, too, which come after health."""
        if not await self._healthy():
            return False
        return (await self.get(self.ports.read_only, "/healthz/ping")).status_code == 200

    async def get(self, port: int, path: str) -> httpx.Response:
        """An HTTP answer of the agent."""
        # Certificates are of no use here, and to load them costs more than the whole request.
        async with httpx.AsyncClient(timeout=4 * PATIENCE, trust_env=False, verify=False) as client:
            return await client.get(f"http://127.0.0.1:{port}{path}")

    async def main_port_open(self) -> bool:
        """Whether the agent's main port takes connections."""
        try:
            await trio.aclose_forcefully(await trio.open_tcp_stream("127.0.0.1", self.ports.main))
        except OSError:
            return False
        return True

    async def wait_main_port(self) -> None:
        """Until the main port is open. It comes with its certificate; health is told before that."""
        await wait_until(self.main_port_open, _AGENT_START_SECONDS, "the main port is open")

    async def pods(self) -> list[dict[str, Any]]:
        """The agent's own view: the items of /pods."""
        answer = await self.get(self.ports.read_only, "/pods")
        answer.raise_for_status()
        return list(answer.json()["items"] or [])

    async def pod_status(self, pod_name: str) -> dict[str, Any]:
        """`status` of a static pod as the agent reports it; empty while the agent does not know the pod."""
        full = f"{pod_name}-{self.name}"
        found = [item for item in await self.pods() if item["metadata"]["name"] == full]
        return dict(found[0].get("status") or {}) if found else {}

    async def metrics(self) -> str:
        """The text of /metrics."""
        return (await self.get(self.ports.read_only, "/metrics")).text

    # --- manifests ---------------------------------------------------------------------------------------

    def write(self, manifest: Manifest, file: str = "") -> Path:
        """Write a manifest in one step (rename), as `<pod name>.yaml` unless told otherwise."""
        scratch, path = self.prepare(manifest, file)
        scratch.replace(path)
        return path

    def prepare(self, manifest: Manifest, file: str = "") -> tuple[Path, Path]:
        """Write a manifest beside the directory: where it is, and where it belongs."""
        scratch = self.layout.base / f"manifest-{next(_numbers)}"
        scratch.write_text(yaml.safe_dump(manifest, sort_keys=False))
        return scratch, self.manifests / (file or f"{manifest['metadata']['name']}.yaml")

    def remove(self, pod_name: str) -> None:
        """Remove `<pod name>.yaml`."""
        (self.manifests / f"{pod_name}.yaml").unlink()

    # --- the runtime -------------------------------------------------------------------------------------

    async def call(self, method: str, request: Any, response: Any, service: str = "RuntimeService") -> Any:
        """One CRI call on a fresh channel, in a thread. Raises grpc.RpcError."""

        def run() -> Any:
            # A fresh channel: a kept one would back off for seconds after containerd was restarted.
            with grpc.insecure_channel(self.layout.endpoint) as channel:
                rpc = channel.unary_unary(
                    f"/runtime.v1.{service}/{method}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=response.FromString,
                )
                return rpc(request, timeout=_CALL_SECONDS)

        return await trio.to_thread.run_sync(run)

    async def sandboxes(self, pod_name: str = "") -> list[Any]:
        """cri.PodSandbox messages, newest first; of one static pod when named."""
        answer = await self.call("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
        found = [s for s in answer.items if not pod_name or s.metadata.name == f"{pod_name}-{self.name}"]
        return sorted(found, key=lambda sandbox: -sandbox.created_at)

    async def containers(self, pod_name: str = "", name: str = "", state: int | None = None) -> list[Any]:
        """cri.Container messages, newest first, narrowed by static pod, container name and state."""
        answer = await self.call("ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse)
        full = f"{pod_name}-{self.name}"
        found = [
            c
            for c in answer.containers
            if (not pod_name or c.labels.get("io.kubernetes.pod.name") == full)
            and (not name or c.metadata.name == name)
            and (state is None or c.state == state)
        ]
        return sorted(found, key=lambda each: -each.created_at)

    async def running(self, pod_name: str = "", name: str = "") -> list[Any]:
        return await self.containers(pod_name, name, RUNNING)

    async def container_status(self, container_id: str) -> Any:
        """cri.ContainerStatus."""
        request = cri.ContainerStatusRequest(container_id=container_id)
        return (await self.call("ContainerStatus", request, cri.ContainerStatusResponse)).status

    async def pod_ip(self, pod_name: str) -> str:
        """Address of a static pod's newest sandbox."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=(await self.sandboxes(pod_name))[0].id)
        answer = await self.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        return str(answer.status.network.ip)

    async def exec(self, container_id: str, *argv: str) -> str:
        """Standard output of a command in a container; AssertionError unless it ends with 0."""
        request = cri.ExecSyncRequest(container_id=container_id, cmd=argv, timeout=round(4 * PATIENCE))
        answer = await self.call("ExecSync", request, cri.ExecSyncResponse)
        assert answer.exit_code == 0, (argv, answer.exit_code, answer.stderr)
        return str(answer.stdout.decode())

    async def kill_container(self, container_id: str, number: int = signal.SIGKILL) -> None:
        """Signal the first process of a container behind the agent's back."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        answer = await self.call("ContainerStatus", request, cri.ContainerStatusResponse)
        pid = json.loads(answer.info["info"])["pid"]
        assert pid > 0, f"container {container_id} has no process"  # 0 would be the tests themselves
        os.kill(pid, number)

    async def wait_running(
        self, pod_name: str, *names: str, timeout: float = 30.0, besides: Sequence[str] = ()
    ) -> list[Any]:
        """Until every named container (default `main`) runs; returns them in that order.

        Containers whose IDs are in `besides` do not count: so one waits for a replacement.
        """
        wanted = names or ("main",)

        async def all_running() -> list[Any]:
            found = {c.metadata.name: c for c in await self.running(pod_name) if c.id not in besides}
            return [found[name] for name in wanted] if found.keys() >= set(wanted) else []

        return await wait_until(all_running, timeout, f"{pod_name}: {', '.join(wanted)} running")

    async def wait_gone(self, pod_name: str, timeout: float = 30.0) -> None:
        """Until the runtime has neither a container nor a sandbox of the static pod."""

        async def gone() -> bool:
            return not await self.containers(pod_name) and not await self.sandboxes(pod_name)

        await wait_until(gone, timeout, f"{pod_name} gone from the runtime")

    def pod_traces(self, uid: str) -> list[str]:
        """What of a pod is left on the node's file system: directories, logs, mounts, cgroups."""
        found = [str(path) for path in (self.layout.agent_root / "pods").glob(uid)]
        found += [str(path) for path in self.layout.pod_logs.glob(f"*_{uid}")]
        found += [point for point in cleanup.mounts_under(mounts(), self.layout.base) if uid in point]
        return found + [str(path) for path in self.cgroups(f"pod{uid}")]

    def cgroups(self, name: str) -> list[Path]:
        """The cgroups of this name below the node's, in every hierarchy.

        Others may come and go meanwhile. (`Path.glob` fails when a directory vanishes under it.)
        """
        return [
            Path(directory, name)
            for mount in cleanup.cgroup_mounts(mounts())
            for directory, children, _ in os.walk(mount / self.layout.cgroup_path[1:])
            if name in children
        ]

    async def restart_containerd(self, number: int = signal.SIGKILL, down: float = 0.0) -> None:
        """End containerd (pods stay), keep it away for `down` seconds, wait until it answers again."""
        starts = self.containerd.starts
        if down:
            await self.containerd.hold()
            await trio.sleep(down)
            self.containerd.release()
        else:
            self.containerd.kill(number)
        await wait_until(lambda: self.containerd.starts > starts, 60, "containerd started again")
        await wait_until(self.runtime_ready, 60, "containerd answers again")

    async def runtime_ready(self) -> bool:
        """Whether runtime and network report ready."""
        answer = await self.call("Status", cri.StatusRequest(), cri.StatusResponse)
        wanted = {"RuntimeReady", "NetworkReady"}
        return all(c.status for c in answer.status.conditions if c.type in wanted)

    # --- after a failure ---------------------------------------------------------------------------------

    def report(self) -> str:
        """The last lines of every log, for a failed test."""
        parts = []
        for path in [*sorted(self.logs.glob("agent-*.log")), self.layout.containerd_log]:
            if path.exists():
                parts.append(
                    f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-400:])
                )
        return "\n".join(parts)


def base_of(name: str) -> Path:
    """The directory of the node of that name, short for its sockets."""
    return Path(f"/tmp/tk-{name}")


_ROOT_OF_A_RUN = re.compile(r"trio[-_]kubelet[-_]t(\d+)[-_](\d+)(\.slice)?")


def _nodes_of_killed_runs() -> list[NodeLayout]:
    """Those whose cgroups are there and whose run is not: no process has its number."""
    roots = {path.name for mount in cleanup.cgroup_mounts(mounts()) for path in mount.iterdir()}
    # After that: a run that has begun meanwhile is at work.
    alive = {int(path.name) % 10**6 for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = []
    for root in filter(None, map(_ROOT_OF_A_RUN.fullmatch, roots)):
        if int(root[1]) not in alive:
            name = f"t{root[1]}-{root[2]}"
            found.append(NodeLayout(name, base_of(name), _NO_SUBNET, systemd=root[3] is not None))
    return found


async def take_down_what_killed_runs_left() -> None:
    """Thousands of cgroups make every call of the runtime slower, also those that nobody is in."""
    for layout in _nodes_of_killed_runs():
        print(f"taking down node {layout.name} of a run that was killed", file=sys.stderr)
        await cleanup.take_down(layout)


@asynccontextmanager
async def running_node(
    provisions: Provisions, scratch: Path, *, systemd: bool = False, name: str = ""
) -> AsyncIterator[Node]:
    """A node with containerd up and no agent yet. On the way out: agent killed, nothing left, or it fails.

    `scratch` receives manifests and logs; it stays, the node's own directory goes.
    """
    cleanup.become_subreaper()
    await take_down_what_killed_runs_left()
    number = next(_numbers)
    name = name or f"t{os.getpid() % 10**6}-{number}"
    layout = await new_layout(name, base_of(name), systemd=systemd)
    manifests, logs = scratch / f"manifests-{number}", scratch / f"logs-{number}"
    manifests.mkdir()
    logs.mkdir()
    async with private_node(layout, provisions) as containerd:
        node = Node(layout, containerd, manifests, logs, free_ports())
        try:
            await wait_until(node.runtime_ready, 30, "containerd is ready")
            yield node
        except BaseException:
            print(node.report())
            raise
        finally:
            if node.agent is not None and node.agent.process.returncode is None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                    node.agent.process.kill()
                    await node.agent.process.wait()
    left = await cleanup.leftovers(layout)
    assert not left, f"the node left something behind: {left}"
