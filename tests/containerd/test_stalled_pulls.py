"""A pull that makes no progress: the agent cannot see that, for the runtime tells nothing of a pull before
its end, but the runtime has a deadline for it. When that has passed, the pod waits with the words of a
kubelet and is tried again; pulls for other pods go on meanwhile.
"""

from __future__ import annotations

import platform
from typing import Any

import pytest

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, container, pod, wait_until
from tests.containerd.registry import Registry, running_registry
from tests.containerd.scenes import own_image, until_waiting
from trio_kubelet.standalone import images
from trio_kubelet.standalone import node as standalone_node
from trio_kubelet.standalone.containerd import write_config
from trio_kubelet.standalone.layout import NodeLayout

SECTIONS = ('["plugins"."io.containerd.cri.v1.images"]', '["plugins"."io.containerd.grpc.v1.cri"]')
"""Where containerd's settings of pulls are, from 2.0 on and before."""


def own_images() -> bytes:
    """Two images that have nothing in common and that nobody has yet."""
    made = [own_image(name, 100_000) for name in ("stuck", "fine")]
    return images.archive(made, platform.machine())


def pulled(registry: Registry, name: str) -> Manifest:
    return container(image=registry.reference(name), imagePullPolicy="IfNotPresent")


async def test_a_stalled_pull_ends_and_others_go_on(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def impatient(layout: NodeLayout, *rest: Any) -> Any:
        snapshotter = await write_config(layout, *rest)
        file = layout.containerd_config
        text = file.read_text()
        section = next(each for each in SECTIONS if each in text)
        file.write_text(text.replace(section, f'{section}\nimage_pull_progress_timeout = "2s"', 1))
        return snapshotter

    monkeypatch.setattr(standalone_node, "write_config", impatient)
    with running_registry(own_images()) as registry:
        registry.stalling.add("stuck")
        async with new_node() as node:
            await node.start_agent(config={"serializeImagePulls": False})
            node.write(pod("stuck", pulled(registry, "stuck:1")))
            await wait_until(
                lambda: any("/stuck/blobs/" in each for each in registry.requests), 30, "it began"
            )
            node.write(pod("fine", pulled(registry, "fine:1")))
            await node.wait_running("fine", "main")
            found = await until_waiting(node, "stuck", "ImagePullBackOff")
            assert "ErrImagePull" in found["message"]
            registry.stalling.clear()
            registry.go_on.set()
            await node.wait_running("stuck", "main")
