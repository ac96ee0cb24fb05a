"""The private node itself: comes up, runs a pod without an agent, survives containerd, leaves nothing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import trio

from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import RUNNING, SANDBOX_READY, Node, base_of, wait_until
from tests.containerd.registry import running_registry
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.standalone import cleanup
from trio_kubelet.standalone.images import BUSYBOX_IMAGE, NONROOT_IMAGE, PAUSE_IMAGE, WEB_IMAGE
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import Provisions
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD


async def run_web(node: Node) -> tuple[str, str]:
    """A sandbox with the web image in it, made by hand; returns both IDs."""
    cgroup = f"{node.layout.cgroup_root}/kubepods/podx"
    sandbox = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=f"web-{node.name}", uid="x", namespace="default"),
        labels={"io.kubernetes.pod.name": f"web-{node.name}"},
        log_directory=str(node.layout.pod_logs / "web"),
        linux=cri.LinuxPodSandboxConfig(cgroup_parent=cgroup),
    )
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="web"),
        image=cri.ImageSpec(image=WEB_IMAGE),
        log_path="web.log",
        labels={"io.kubernetes.pod.name": f"web-{node.name}"},
        linux=cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(oom_score_adj=-997)),
    )
    run = cri.RunPodSandboxRequest(config=sandbox)
    sandbox_id = (await node.call("RunPodSandbox", run, cri.RunPodSandboxResponse)).pod_sandbox_id
    create = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
    container_id = (await node.call("CreateContainer", create, cri.CreateContainerResponse)).container_id
    start = cri.StartContainerRequest(container_id=container_id)
    await node.call("StartContainer", start, cri.StartContainerResponse)
    return sandbox_id, container_id


async def fetch(ip: str) -> bytes:
    """The page of a pod whose container runs; its server may not listen yet."""

    async def answer() -> bytes:
        with trio.move_on_after(20), suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(ip, 8080) as stream:
                await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
                return b"".join([chunk async for chunk in stream])
        return b""

    return await wait_until(answer, 20, f"an answer of {ip}")


@pytest.mark.parametrize("new_node", ["1.7", "2.1"], indirect=True)
async def test_a_pod_runs_serves_and_leaves_nothing(new_node: NewNode) -> None:
    async with new_node() as node:
        answer: Any = await node.call(
            "ListImages", cri.ListImagesRequest(), cri.ListImagesResponse, "ImageService"
        )
        tags = {tag for image in answer.images for tag in image.repo_tags}
        assert tags >= {PAUSE_IMAGE, BUSYBOX_IMAGE, WEB_IMAGE, NONROOT_IMAGE}

        sandbox_id, container_id = await run_web(node)
        assert [s.id for s in await node.sandboxes("web")] == [sandbox_id]
        assert [c.id for c in await node.running("web", "web")] == [container_id]
        assert b"Served from a pod" in await fetch(await node.pod_ip("web"))
        assert (await node.exec(container_id, "id", "-u")).strip() == "0"

        kinds = {line.split()[0] for line in await cleanup.leftovers(node.layout)}
        assert kinds >= {"process", "mount", "network", "link", "cgroup", "file"}
        layout = node.layout
    assert await cleanup.leftovers(layout) == []
    assert not layout.base.exists()


async def test_pods_survive_a_killed_containerd(new_node: NewNode) -> None:
    async with new_node() as node:
        sandbox_id, container_id = await run_web(node)
        for number in (signal.SIGKILL, signal.SIGTERM):
            await node.restart_containerd(number)
            assert [c.id for c in await node.containers("web", state=RUNNING)] == [container_id]
            assert [(s.id, s.state) for s in await node.sandboxes("web")] == [(sandbox_id, SANDBOX_READY)]
        assert b"Served from a pod" in await fetch(await node.pod_ip("web"))


async def test_a_container_killed_behind_the_runtimes_back_is_seen_as_exited(new_node: NewNode) -> None:
    async with new_node() as node:
        _, container_id = await run_web(node)
        await node.kill_container(container_id)

        async def exited() -> bool:
            return bool((await node.container_status(container_id)).exit_code == 137)

        assert await wait_until(exited, 5)


async def test_two_nodes_side_by_side_do_not_meet(new_node: NewNode) -> None:
    async with new_node() as first:
        await run_web(first)
        async with new_node() as second:
            assert first.layout.subnet != second.layout.subnet
            assert await second.sandboxes() == []
            await run_web(second)
        assert len(await first.running("web")) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import trio
from tests.containerd.harness import running_node
from tests.containerd.test_harness import run_web
from trio_kubelet.standalone import cleanup
from trio_kubelet.standalone.node import provide

async def main():
    async with running_node(await provide(sys.argv[1], lambda text: None), Path(sys.argv[2])) as node:
        await run_web(node)
        print(node.name, *{line.split()[0] for line in await cleanup.leftovers(node.layout)}, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


async def test_what_a_killed_run_left_is_taken_down_before_the_next_node(
    new_node: NewNode, tmp_path: Path
) -> None:
    """Nodes of other runs that are at work stay; this one may be taken down by one of those."""
    scratch = tmp_path / "killed"
    scratch.mkdir()
    killed = await trio.run_process(
        [sys.executable, "-c", KILLED, CHOSEN, str(scratch)], capture_stdout=True, check=False
    )
    name, *kinds = killed.stdout.decode().split()
    assert killed.returncode == -signal.SIGKILL
    assert {"process", "mount", "cgroup", "file"} <= set(kinds)
    async with new_node() as node:
        assert node.name != name
        of_killed = NodeLayout(name, base_of(name), node.layout.subnet)

        async def is_gone() -> bool:
            return not await cleanup.leftovers(of_killed)

        assert await wait_until(is_gone, 30)
        await run_web(node)


async def test_an_image_is_pulled_from_a_registry_on_loopback(
    new_node: NewNode, provisions: Callable[[str], Provisions]
) -> None:
    images = provisions(DEFAULT_CONTAINERD).images_archive
    with running_registry(images) as registry:
        async with new_node() as node:

            async def pull(name: str) -> str:
                request = cri.PullImageRequest(image=cri.ImageSpec(image=registry.reference(name)))
                answer = await node.call("PullImage", request, cri.PullImageResponse, "ImageService")
                return str(answer.image_ref)

            assert (await pull("busybox:1")).startswith("sha256:")
            assert any("/v2/busybox/manifests/1" in path for path in registry.requests)
            with pytest.raises(grpc.RpcError, match="not found"):
                await pull("missing:1")
            registry.failing["web"] = 403
            with pytest.raises(grpc.RpcError, match="403"):
                await pull("web:1")
