"""Images that a runtime does not give up, or says so: pods go when that is needed, and only then."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from tests.eviction.world import World as Node
from tests.images.test_garbage import Runtime
from tests.images.test_garbage import World as Images
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.images.selection import ImagePolicy
from trio_kubelet.pressure import Reclaimer

Clock = trio.testing.MockClock


async def evicted(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Images]:
    """Who goes from a full disk of which unused images are 300 of 1000."""
    node = Node(Threshold("nodefs.available", "100"), disk=True)
    images = Images(runtime, ImagePolicy(min_age=0))
    cleaner: Any = node
    reclaimer = Reclaimer(cleaner, images.garbage)
    monkeypatch.setattr(Node, "delete_unused_containers", node.dead_containers, raising=False)
    monkeypatch.setattr(node, "unused_images", reclaimer.unused_images)
    monkeypatch.setattr(node, "left", lambda: 1000 - sum(i.size for i in runtime.images.values()) - use())

    def use() -> int:
        return sum(node.uses.values())

    node.add("pod", 650)
    async with node.running():
        await trio.sleep(20)
    return [name for name, _, _ in node.evicted], images


async def test_images_that_go_spare_the_pods(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(a=150, b=150)
    assert (await evicted(runtime, monkeypatch))[0] == []
    assert runtime.images == {}


async def test_a_runtime_that_removes_an_image_and_says_it_did_not(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(a=150, b=150)
    runtime.lying = {"a", "b"}
    gone, images = await evicted(runtime, monkeypatch)
    assert gone == []
    assert images.removed("space") == 2


async def test_a_runtime_that_refuses_to_remove_images_costs_a_pod(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(a=150, b=150)
    runtime.refusing = {"a", "b"}
    gone, images = await evicted(runtime, monkeypatch)
    assert gone == ["pod"]
    assert set(runtime.images) == {"a", "b"}
    assert images.removed("space") == 0


async def test_a_runtime_that_is_away_costs_a_pod(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(a=150, b=150)
    runtime.away = True
    assert (await evicted(runtime, monkeypatch))[0] == ["pod"]
