"""Configs, volumes and cgroups as a container of a real containerd meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.cgroups.build import cgroupfs_cgroups
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node
from tests.runtime.world import Events
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.cgroups.plan import CgroupSettings
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.pod_runtime import PodRuntime, RuntimeSettings
from trio_kubelet.standalone.images import BUSYBOX_IMAGE
from trio_kubelet.volumes.manager import VolumeManager

pytestmark = pytest.mark.node

_SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def _pod(host_path: Path) -> v1.Pod:
    mounts: list[dict[str, Any]] = [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "scratch", "mountPath": "/part", "subPath": "a/b"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "host", "mountPath": "/host", "readOnly": True},
        {"name": "facts", "mountPath": "/facts"},
    ]
    env: list[dict[str, Any]] = [
        {"name": "WHO", "value": "$(POD).$(NOPE)"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]
    main = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _SLEEP],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, *env],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi", "cpu": "500m"}},
        "terminationMessagePath": "/dev/termination-log",
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    annotations = {"note": "first"}
    facts = [{"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]
    fields = {
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-1", "annotations": annotations},
        "spec": {
            "containers": [main],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": str(host_path), "type": "Directory"}},
                {"name": "facts", "downwardAPI": {"items": facts}},
            ],
            "dnsPolicy": "Default",
            "enableServiceLinks": True,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 2,
            "hostname": "hh",
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["alias"]}],
            "securityContext": {
                "runAsUser": 1000,
                "runAsGroup": 1001,
                "fsGroup": 2000,
                "runAsNonRoot": True,
                "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1024 65000"}],
            },
        },
    }
    return msgspec.convert(fields, v1.Pod)


class _Room:
    """Everything of this room on one node, as the agent puts it together."""

    def __init__(self, node: Node) -> None:
        layout = node.layout
        facts = read_machine(str(layout.agent_root))
        self.context = NodeContext(
            node_name=node.name,
            root_dir=str(layout.agent_root),
            pod_logs_dir=str(layout.pod_logs),
            cgroup_root=layout.cgroup_root,
            memory_capacity=facts.memory,
            swap_controller=facts.swap_controller,
            allocatable={"memory": "1Gi", "cpu": "2"},
        )
        self.volumes = VolumeManager(self.node)
        self.directories = PodDirectories(self.context.root_dir)
        self.cgroups = cgroupfs_cgroups(self.node(), CgroupSettings(pids_limit=50))
        ranges = UserNamespaceRanges(self.context.root_dir, dict)
        self.configs = ConfigBuilder(self.node, "/etc/resolv.conf", ranges)

    def node(self) -> NodeContext:
        return self.context

    async def prepare(self, pod: v1.Pod) -> None:
        await self.cgroups.start()
        await self.cgroups.ensure(pod)
        await self.directories.make(pod)
        await self.volumes.set_up(pod)

    async def clear(self, uid: str) -> None:
        await self.volumes.tear_down(uid)
        await self.directories.remove(uid)
        await self.cgroups.remove(uid)


async def test_what_a_container_sees_and_what_is_left(new_node: NewNode, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("kept")
    pod = _pod(precious)
    async with new_node() as node, open_cri(node.layout.endpoint) as (runtime_service, images):
        room = _Room(node)
        settings = RuntimeSettings(
            pod_logs_dir=str(node.layout.pod_logs), container_logs_dir=str(tmp_path / "links")
        )
        runtime = PodRuntime(
            runtime=runtime_service,
            images=images,
            configs=room.configs,
            recorder=Events(),
            clock=SystemClock(),
            settings=settings,
        )
        await room.prepare(pod)
        with trio.fail_after(60):
            while not await node.running():
                result = await runtime.sync_pod(
                    pod, await runtime.get_pod_status("uid-1", "web", "default"), SyncContext()
                )
                assert result.ok, str(result)
                await trio.sleep(0.1)
        (main,) = await node.running()

        async def ask(script: str) -> str:
            return (await node.exec(main.id, "sh", "-c", script)).strip()

        assert await ask("id -u; id -g; id -G") == "1000\n1001\n1001 2000"
        assert await ask("hostname; echo $WHO $MEM") == "hh\nweb.$(NOPE) 64"
        address = await ask("echo $IP")
        assert await ask(f"grep -c '^{address}.hh$' /etc/hosts; grep alias /etc/hosts") == "1\n1.2.3.4\talias"
        assert await ask("cat /proc/sys/net/ipv4/ip_local_port_range") == "1024\t65000"
        assert await ask("grep -E 'NoNewPrivs|CapEff' /proc/self/status | tr -d '\\t'") == (
            "CapEff:0000000000000000\nNoNewPrivs:1"
        )
        assert await ask("touch /no 2>/dev/null || echo read-only") == "read-only"
        assert await ask("touch /host/no 2>/dev/null || cat /host/data") == "kept"
        assert await ask("touch /scratch/x && touch /part/y && ls /scratch/a/b") == "y"
        assert await ask("df -P /memory | awk 'NR==2 {print $1, $2}'") == "tmpfs 1024"
        assert await ask("cat /facts/note; echo; echo ended > /dev/termination-log") == "first"

        meta = msgspec.structs.replace(pod.metadata, annotations={"note": "second"})
        await room.volumes.set_up(msgspec.structs.replace(pod, metadata=meta))
        assert await ask("cat /facts/note") == "second"

        hierarchies = find_hierarchies()
        mount = hierarchies.get("pids", hierarchies.get(""))
        pids = Path(f"{mount}{node.layout.cgroup_root}/kubepods/burstable/poduid-1")
        assert await trio.Path(pids / main.id).is_dir()
        assert await trio.Path(pids / "pids.max").read_text() == "50\n"

        status = await runtime.get_pod_status("uid-1", "web", "default")
        assert (await runtime.kill_pod(pod, status)).ok
        ended = (await runtime.get_pod_status("uid-1", "web", "default")).container_status("main")
        assert ended is not None
        assert ended.message == "ended\n"
        await room.clear("uid-1")
        await room.clear("uid-1")
        traces = [trace for trace in node.pod_traces("uid-1") if str(node.layout.pod_logs) not in trace]
        assert traces == []
        assert (precious / "data").read_text() == "kept"
        assert await room.cgroups.pods() == set()
