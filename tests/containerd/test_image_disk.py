"""Images on a small disk of their own: those that nothing uses go when it fills up, until it is under the low
threshold; what is in use stays, whatever the disk is short of.
"""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.scenes import own_image
from tests.containerd.test_pressure import MIB, small_disk
from tests.node.world import Said
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.images import manager
from trio_kubelet.images.manager import ImageGarbage
from trio_kubelet.images.selection import ImagePolicy
from trio_kubelet.standalone import images
from trio_kubelet.standalone import node as standalone_node
from trio_kubelet.standalone.containerd import write_config
from trio_kubelet.standalone.layout import NodeLayout

ONE = 5 * MIB


@asynccontextmanager
async def node_with_a_small_disk(
    new_node: NewNode, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Node, str]]:
    """The runtime's root is a filesystem of 64 MB; its snapshotter."""
    with ExitStack() as stack:
        kept: dict[str, str] = {}

        async def mounted_first(layout: NodeLayout, *rest: Any) -> Any:
            stack.enter_context(small_disk(Path(layout.containerd_root), scratch))
            kept["snapshotter"] = await write_config(layout, *rest)
            return kept["snapshotter"]

        monkeypatch.setattr(standalone_node, "write_config", mounted_first)
        async with new_node() as node:
            yield node, kept["snapshotter"]
            stack.close()


async def add_image(node: Node, name: str, snapshotter: str) -> None:
    """An image of its own content; it takes its size twice, packed and unpacked."""
    archive = node.layout.base / f"{name}.tar"
    archive.write_bytes(images.archive([own_image(name, ONE)], platform.machine()))
    await images.import_archive(node.containerd.binaries.ctr, node.layout.socket, archive, snapshotter)
    archive.unlink()


def percent(path: Path) -> int:
    found = os.statvfs(path)
    return 100 - found.f_bavail * 100 // found.f_blocks


def fill(filler: Path, used: int) -> None:
    """What the file gets until so many percent of its disk are used."""
    found = os.statvfs(filler.parent)
    missing = (found.f_bavail - found.f_blocks * (100 - used) // 100) * found.f_frsize
    with filler.open("ab") as file:
        file.write(bytes(max(0, missing)))


async def test_a_disk_over_the_high_threshold_is_brought_under_the_low_one(
    new_node: NewNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PERIOD", 0.3)
    async with node_with_a_small_disk(new_node, tmp_path, monkeypatch) as (node, snapshotter):
        disk = Path(node.layout.containerd_root)
        await add_image(node, "used", snapshotter)
        # The disk is the collection's alone: under pressure the agent would remove the images itself.
        await node.start_agent(config={"evictionHard": {"memory.available": "1Mi"}})
        node.write(pod("user", container(image="localhost/used:1")))
        before = await node.wait_running("user", "main")
        said, registry = Said(), CollectorRegistry()

        def filesystem() -> tuple[int, int]:
            found = os.statvfs(disk)
            return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

        async with open_cri(node.layout.endpoint) as cri, trio.open_nursery() as nursery:
            garbage = ImageGarbage(
                ImagePolicy(high=85, low=80, min_age=0),
                runtime=cri.runtime,
                images=cri.images,
                filesystem=filesystem,
                pods=lambda: (),
                events=said,
                registry=registry,
            )

            async def names() -> set[str]:
                return {tag for each in await cri.images.list_images() for tag in each.repo_tags}

            async def knows_the_last() -> bool:
                return f"localhost/idle-{number - 1}:1" in await names()

            nursery.start_soon(garbage.run)
            number = 0
            while percent(disk) < 80:
                await add_image(node, f"idle-{number}", snapshotter)
                number += 1
                await trio.sleep(0.4)
            assert number >= 2
            await wait_until(knows_the_last, 10, "the runtime lists what was imported")
            filler = disk / "filler"
            for _ in range(2):  # the first time images go that share what they have, which frees little
                fill(filler, 88)
                await wait_until(lambda: percent(disk) < 85, 30, "the disk is under the high threshold")
            shares: list[int] = []

            def under_the_low_threshold() -> bool:
                """Between the two nothing is removed: where it rests there, it is filled again."""
                shares.append(percent(disk))
                if shares[-1] in shares[-2:-1] and 80 < shares[-1] < 85:
                    fill(filler, 88)
                return shares[-1] <= 80

            await wait_until(under_the_low_threshold, 30, "the disk is under the low threshold", interval=1.0)
            left = await names()
            assert {"localhost/used:1", "localhost/pause:1"} <= left
            assert "localhost/idle-0:1" not in left
            counted = "kubelet_image_garbage_collected_total"
            assert (registry.get_sample_value(counted, {"reason": "space"}) or 0) >= 1
            told = [reason for _, reason, _ in said.events]
            # What else fills the disk no removal of images helps against; it is told, and the pod runs on.
            # containerd frees the last images' space some time after it removed them, so it is filled again.

            def told_twice() -> bool:
                fill(filler, 97)
                return [reason for _, reason, _ in said.events].count("FreeDiskSpaceFailed") >= 2

            await wait_until(told_twice, 30, "the disk stays full")
            await wait_until(lambda: "ImageGCFailed" in [each[1] for each in said.events], 30, "it is told")
            assert "ImageGCFailed" not in told
            message = next(text for _, reason, text in said.events if reason == "FreeDiskSpaceFailed")
            assert message.startswith("Insufficient free disk space on the node's image filesystem (")
            assert {"localhost/used:1", "localhost/pause:1"} <= await names()
            nursery.cancel_scope.cancel()
        filler.unlink()
        assert [each.id for each in await node.running("user", "main")] == [each.id for each in before]
