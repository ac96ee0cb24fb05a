"""Which images are removed, when, and what is told when that fails."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.node.world import Said
from trio_kubelet.api import v1
from trio_kubelet.cri.errors import NotFound, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.images.manager import MOST_HANGS, TIMEOUT, ImageGarbage, ImageGCError
from trio_kubelet.images.selection import (
    FoundImage,
    ImagePolicy,
    ImageRecord,
    recorded,
    removable,
    shown_size,
    to_free,
    too_old,
)
from trio_kubelet.observed.types import POD_UID

Clock = trio.testing.MockClock
POLICY = ImagePolicy(high=85, low=80, min_age=120.0)


class Runtime:
    """Images and containers; `refusing` are not removed, `lying` are, with an error."""

    def __init__(self, **sizes: int) -> None:
        self.images = {name: cri.Image(id=name, size=size) for name, size in sizes.items()}
        self.containers: list[cri.Container] = []
        self.mounts: dict[str, list[cri.Mount]] = {}  # by container ID; others are gone
        self.refusing: set[str] = set()
        self.lying: set[str] = set()
        self.away = False
        self.slow = 0.0  # seconds that removing one takes
        self.hanging: set[str] = set()  # are removed never
        self.removing = trio.Event()
        self.config = "{}"  # as the verbose status tells it
        self.short: dict[str, str] = {}  # IDs by names that no list tells

    async def status(self, verbose: bool = False) -> cri.StatusResponse:
        await trio.lowlevel.checkpoint()
        return cri.StatusResponse(info={"config": self.config, "golang": "go1.19"} if verbose else {})

    async def list_images(self) -> list[cri.Image]:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise Unknown("the runtime is away")
        return list(self.images.values())

    async def image_status(self, image: cri.ImageSpec) -> cri.ImageStatusResponse:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise Unknown("the runtime is away")
        if not image.image:
            raise Unknown("no image is named")
        return cri.ImageStatusResponse(image=self.images.get(self.short.get(image.image, image.image)))

    async def remove_image(self, image: cri.ImageSpec) -> None:
        self.removing.set()
        await trio.sleep(self.slow)
        if image.image in self.hanging:
            await trio.sleep_forever()
        if image.image in self.refusing:
            raise Unknown("device or resource busy")
        del self.images[image.image]
        if image.image in self.lying:
            raise Unknown("connection reset")

    async def list_containers(self, filter: Any = None) -> list[cri.Container]:
        await trio.lowlevel.checkpoint()
        return self.containers

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        if container_id not in self.mounts:
            raise NotFound("no such container")
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(mounts=self.mounts[container_id]))


class World:
    def __init__(
        self,
        runtime: Runtime,
        policy: ImagePolicy = POLICY,
        span: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.runtime, self.said, self.registry = runtime, Said(), CollectorRegistry()
        self.capacity, self.elsewhere = 1000, 0
        self.pods: list[v1.Pod] = []
        door: Any = runtime
        self.garbage = ImageGarbage(
            policy,
            runtime=door,
            images=door,
            filesystem=self._filesystem,
            pods=lambda: self.pods,
            events=self.said,
            registry=self.registry,
            span=span,
        )

    def _filesystem(self) -> tuple[int, int] | None:
        used = sum(image.size for image in self.runtime.images.values()) + self.elsewhere
        return (self.capacity, self.capacity - used) if self.capacity >= 0 else None

    def removed(self, reason: str) -> float:
        found = self.registry.get_sample_value("kubelet_image_garbage_collected_total", {"reason": reason})
        return found or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.garbage.run)
            yield
            nursery.cancel_scope.cancel()


async def test_under_the_high_threshold_all_stay(autojump_clock: Clock) -> None:
    world = World(Runtime(a=400, b=440))
    async with world.running():
        await trio.sleep(3000)
    assert set(world.runtime.images) == {"a", "b"}


async def test_the_longest_unused_go_until_the_low_threshold(autojump_clock: Clock) -> None:
    world = World(Runtime(never=100, once=100, used=700))
    world.runtime.containers = [
        cri.Container(id="1", image_id="used"),
        cri.Container(id="2", image_id="once"),
    ]
    async with world.running():
        await trio.sleep(310)
        # What was never used went; 800 of 1000 is low enough.
        assert set(world.runtime.images) == {"once", "used"}
        world.runtime.containers.pop()
        world.elsewhere = 60
        await trio.sleep(300)
    assert set(world.runtime.images) == {"used"}
    assert world.removed("space") == 2


async def test_at_the_high_threshold_just_as_much_goes_as_has_to(autojump_clock: Clock) -> None:
    world = World(Runtime(first=50, second=50, used=750))
    world.runtime.containers = [cri.Container(id="1", image_id="used")]
    async with world.running():
        await trio.sleep(310)
    assert len(world.runtime.images) == 2
    assert world.said.events == []


async def test_pinned_mounted_and_young_images_stay(autojump_clock: Clock) -> None:
    await trio.sleep(1000)
    world = World(Runtime(pause=300, volume=300, young=300))
    world.runtime.images["pause"].pinned = True
    world.runtime.images["volume"].repo_tags.append("registry.example/files:1")
    source = v1.ImageVolumeSource(reference="registry.example/files:1")
    other = v1.Volume(name="w", empty_dir=v1.EmptyDirVolumeSource())
    spec = v1.PodSpec(containers=[], volumes=[other, v1.Volume(name="v", image=source)])
    without = v1.Pod(metadata=v1.ObjectMeta(name="without"), spec=v1.PodSpec(containers=[]))
    world.pods = [without, v1.Pod(metadata=v1.ObjectMeta(name="p"), spec=spec)]
    await world.garbage.delete_unused()
    await trio.sleep(119)
    await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"pause", "volume", "young"}
    await trio.sleep(1)
    await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"pause", "volume"}


async def test_an_image_volume_may_name_its_image_as_only_the_runtime_understands(
    autojump_clock: Clock,
) -> None:
    world = World(Runtime(volume=300, idle=300))
    world.runtime.short = {"files": "volume"}
    volumes = [
        v1.Volume(name=f"v-{name}", image=v1.ImageVolumeSource(reference=name))
        for name in ("files", "not-there", "")  # a controller may fill in the last one later
    ]
    spec = v1.PodSpec(containers=[], volumes=volumes)
    world.pods = [v1.Pod(metadata=v1.ObjectMeta(name="p"), spec=spec)]
    await _after_a_while(world)
    assert set(world.runtime.images) == {"volume"}


async def test_an_image_volume_of_a_pod_that_no_source_tells_of_is_in_use(autojump_clock: Clock) -> None:
    """It ends and is not wanted any more, or the API server has been away since the agent started."""
    world = World(Runtime(volume=300, left=300, idle=300))
    world.runtime.containers = [
        cri.Container(id="runs", labels={POD_UID: "u"}, state=cri.CONTAINER_RUNNING),
        cri.Container(id="over", labels={POD_UID: "u"}, state=cri.CONTAINER_EXITED),
        cri.Container(id="gone", labels={POD_UID: "u"}, state=cri.CONTAINER_RUNNING),
    ]
    world.runtime.mounts = {
        "runs": [cri.Mount(host_path="/h"), cri.Mount(image=cri.ImageSpec(image="volume"))],
        "over": [cri.Mount(image=cri.ImageSpec(image="left"))],
    }
    await _after_a_while(world)
    assert set(world.runtime.images) == {"volume"}


async def test_an_image_that_is_pulled_again_is_young_again(autojump_clock: Clock) -> None:
    world = World(Runtime(a=300))
    image = world.runtime.images["a"]
    await _after_a_while(world)
    assert world.runtime.images == {}
    world.runtime.images["a"] = image
    await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"a"}


@pytest.mark.parametrize("name", ["registry.example/pause:3.6", "short"])
async def test_the_image_of_sandboxes_stays_though_the_runtime_does_not_pin_it(
    autojump_clock: Clock, name: str
) -> None:
    """containerd 10270, kubernetes 81756: no container shows it, and without it no pod starts."""
    world = World(Runtime(short=300, idle=300, mine=300))
    world.runtime.images["short"].repo_tags.append("registry.example/pause:3.6")
    world.runtime.images["mine"].pinned = True  # by somebody else
    world.runtime.config = json.dumps({"sandboxImage": name})
    await world.garbage.delete_unused()
    await trio.sleep(121)
    await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"short", "mine"}


@pytest.mark.parametrize(
    "policy", [ImagePolicy(high=85, low=10, min_age=120.0), ImagePolicy(high=100, low=80, max_age=300.0)]
)
async def test_an_image_that_comes_into_use_while_others_are_removed_stays(
    policy: ImagePolicy, autojump_clock: Clock
) -> None:
    """kubernetes 123631: a pod that started meanwhile lost its image."""
    world = World(Runtime(a=300, b=300, c=300), policy)
    world.runtime.slow = 60.0
    async with world.running():
        await world.runtime.removing.wait()
        world.runtime.containers = [cri.Container(id="1", image_ref="b")]
        await trio.sleep(1000)
    assert set(world.runtime.images) == {"b"}


async def test_a_container_may_name_its_image_by_a_digest(autojump_clock: Clock) -> None:
    world = World(Runtime(a=100))
    world.runtime.images["a"].repo_digests.append("registry.example/a@sha256:1")
    world.runtime.containers = [cri.Container(id="1", image_ref="registry.example/a@sha256:1")]
    await world.garbage.delete_unused()
    await trio.sleep(200)
    await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"a"}


async def test_a_full_disk_is_told_from_the_second_time_on(autojump_clock: Clock) -> None:
    world = World(Runtime(a=100))
    world.elsewhere = 850
    text = (
        "Insufficient free disk space on the node's image filesystem (95% of 1000 B used). Failed to free "
        "sufficient space by deleting unused images (freed 0 bytes). Investigate disk usage, as it could be "
        "used by active images, logs, volumes, or other data."
    )
    world.runtime.containers = [cri.Container(id="1", image_id="a")]
    async with world.running():
        await trio.sleep(310)
        assert world.said.events == [("Warning", "FreeDiskSpaceFailed", text)]
        await trio.sleep(300)
    assert world.said.events[1:] == [
        ("Warning", "FreeDiskSpaceFailed", text),
        ("Warning", "ImageGCFailed", text),
    ]


async def test_a_runtime_that_refuses_and_one_that_lies(autojump_clock: Clock) -> None:
    world = World(Runtime(kept=100, gone=200))
    world.runtime.refusing, world.runtime.lying = {"kept"}, {"gone"}
    with pytest.raises(
        ImageGCError,
        match=r"wanted to free 9223372036854775807 bytes, but freed 200 bytes .* image deletion: .*device or",
    ):
        await _after_a_while(world)
    assert set(world.runtime.images) == {"kept"}
    assert world.removed("space") == 1


async def test_it_is_told_how_much_could_not_be_freed(autojump_clock: Clock) -> None:
    world = World(Runtime(a=300, b=600))
    world.runtime.refusing = {"a", "b"}
    async with world.running():
        await trio.sleep(1000)
    assert world.said.events[0][2].startswith("wanted to free 100 bytes, but freed 0 bytes space with errors")


async def test_a_runtime_that_takes_too_long_to_remove_an_image(autojump_clock: Clock) -> None:
    world = World(Runtime(a=100, b=200))
    world.runtime.slow = 1000.0
    with pytest.raises(ImageGCError, match=r"freed 0 bytes .*did not remove it in time"):
        await _after_a_while(world)
    assert set(world.runtime.images) == {"a", "b"}


async def test_a_runtime_that_removes_nothing_is_given_up_after_two_images(autojump_clock: Clock) -> None:
    """A disk that is full cannot wait for two minutes with each."""
    world = World(Runtime(**{f"i{number:02}": 10 for number in range(50)}))
    await world.garbage.delete_unused()
    await trio.sleep(130)
    world.runtime.hanging = set(world.runtime.images)
    began = trio.current_time()
    with pytest.raises(ImageGCError, match=r"freed 0 bytes"):
        await world.garbage.delete_unused()
    assert trio.current_time() - began == pytest.approx(MOST_HANGS * TIMEOUT)


async def test_images_that_hang_let_the_others_go_first_the_next_time(autojump_clock: Clock) -> None:
    world = World(Runtime(a=10, b=10, c=10, d=10))
    await world.garbage.delete_unused()
    await trio.sleep(130)
    world.runtime.hanging = {"a", "b"}
    for _ in range(2):
        with pytest.raises(ImageGCError):
            await world.garbage.delete_unused()
    assert set(world.runtime.images) == {"a", "b"}
    world.runtime.hanging = set()
    await world.garbage.delete_unused()
    assert not world.runtime.images


async def test_an_image_of_which_nobody_can_tell_counts_as_not_removed(autojump_clock: Clock) -> None:
    world = World(Runtime(a=100))
    world.runtime.slow, world.runtime.refusing = 60.0, {"a"}

    async def goes_away() -> None:
        await world.runtime.removing.wait()
        world.runtime.away = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(goes_away)
        with pytest.raises(ImageGCError, match=r"freed 0 bytes .*device or resource busy"):
            await _after_a_while(world)
    assert world.removed("space") == 0


async def _after_a_while(world: World) -> None:
    await world.garbage.delete_unused()
    await trio.sleep(130)
    await world.garbage.delete_unused()


@pytest.mark.parametrize("capacity", [-1, 0])
async def test_a_disk_without_a_size(autojump_clock: Clock, capacity: int) -> None:
    world = World(Runtime(a=1))
    world.capacity = capacity
    async with world.running():
        await trio.sleep(310)
    assert world.said.events == [("Warning", "InvalidDiskCapacity", "invalid capacity 0 on image filesystem")]


async def test_a_runtime_that_is_away_is_told_from_the_second_time_on(autojump_clock: Clock) -> None:
    world = World(Runtime(a=1))
    world.runtime.away = True
    async with world.running():
        await trio.sleep(10)
        assert world.said.events == []
        await trio.sleep(300)
    assert [reason for _, reason, _ in world.said.events] == ["ImageGCFailed"]


async def test_failures_with_a_success_between_them_are_not_told(autojump_clock: Clock) -> None:
    world = World(Runtime(a=1))
    async with world.running():
        for _ in range(3):
            world.runtime.away = True
            await trio.sleep(300)
            world.runtime.away = False
            await trio.sleep(300)
    assert world.said.events == []


async def test_old_images_go_but_not_right_after_a_start(autojump_clock: Clock) -> None:
    await trio.sleep(10_000)
    world = World(Runtime(old=1, used=1), ImagePolicy(high=100, low=80, max_age=3600.0))
    world.runtime.containers = [cri.Container(id="1", image_id="used")]
    async with world.running():
        await trio.sleep(3605)
        assert set(world.runtime.images) == {"old", "used"}
        await trio.sleep(300)
    assert set(world.runtime.images) == {"used"}
    assert world.removed("age") == 1


async def test_where_the_old_images_are_not_enough_others_go_for_space(autojump_clock: Clock) -> None:
    world = World(Runtime(old=100, once=100, used=100), ImagePolicy(high=85, low=80, max_age=3600.0))
    world.runtime.containers = [cri.Container(id=name, image_id=name) for name in ("used", "once")]
    async with world.running():
        await trio.sleep(3605)
        world.runtime.containers.pop()
        world.elsewhere = 650
        await trio.sleep(300)
    assert set(world.runtime.images) == {"used"}
    assert (world.removed("age"), world.removed("space")) == (1, 1)
    assert world.said.events == []


async def test_an_image_is_old_when_it_has_not_been_used_for_so_long(autojump_clock: Clock) -> None:
    world = World(Runtime(a=1), ImagePolicy(high=100, low=80, max_age=3600.0))
    world.runtime.containers = [cri.Container(id="1", image_id="a")]
    async with world.running():
        await trio.sleep(3605)
        world.runtime.containers = []
        await trio.sleep(3600)
        assert set(world.runtime.images) == {"a"}
        await trio.sleep(300)
    assert world.runtime.images == {}


async def test_an_old_image_that_the_runtime_does_not_remove_is_told(autojump_clock: Clock) -> None:
    world = World(Runtime(kept=1, gone=1), ImagePolicy(high=100, low=80, max_age=3600.0))
    world.runtime.refusing = {"kept"}
    async with world.running():
        await trio.sleep(4205)
    assert set(world.runtime.images) == {"kept"}
    [(_, reason, message)] = world.said.events
    assert reason == "ImageGCFailed"
    assert message.startswith(
        "wanted to free images older than 1h0m0s, encountered errors in image deletion: "
    )
    assert "device or resource busy" in message


async def test_off_at_100_percent(autojump_clock: Clock) -> None:
    world = World(Runtime(a=1000), ImagePolicy(high=100, low=80))
    async with world.running():
        await trio.sleep(10_000)
    assert set(world.runtime.images) == {"a"}


def test_sizes_as_the_kubelet_spells_them() -> None:
    kib, mib, gib, tib = (1024**power for power in (1, 2, 3, 4))
    sizes = (1023, kib, 1536, 1023 * kib, 64 * mib, 1023 * mib, gib * 3 // 2, 1023 * gib, 1000 * tib)
    spelled = ["1023 B", "1.0 KiB", "1.5 KiB", "1023.0 KiB", "64.0 MiB", "1023.0 MiB"]
    spelled += ["1.5 GiB", "1023.0 GiB", "1000.0 TiB"]
    assert [shown_size(size) for size in sizes] == spelled


def test_how_much_is_to_be_freed() -> None:
    assert to_free(POLICY, 1000, 150) == (85, 50)
    assert to_free(POLICY, 1000, 160) == (84, 0)
    assert to_free(POLICY, 1000, 2000) == (0, 0)


IMAGES = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.booleans()), max_size=8, unique_by=lambda i: i[0]
)


@given(st.lists(st.tuples(st.integers(1, 5000), IMAGES), max_size=12), st.sampled_from([0.0, 600.0, 9000.0]))
def test_nothing_in_use_or_pinned_is_ever_chosen(
    looks: list[tuple[int, list[tuple[str, bool, bool]]]], max_age: float
) -> None:
    records: Any = {}
    now = 0.0
    seen: dict[str, float] = {}
    used: dict[str, float | None] = {}
    policy = ImagePolicy(max_age=max_age)
    for seconds, images in looks:
        now += seconds
        found = [FoundImage(id=id, pinned=pinned) for id, pinned, _ in images]
        in_use = {id for id, _, running in images if running}
        records = recorded(records, found, in_use, now)
        seen = {image.id: seen.get(image.id, now) for image in found}
        used = {image.id: now if image.id in in_use else used.get(image.id) for image in found}
        order = removable(records, in_use)
        assert {each.image.id for each in order} == {i for i, pin, run in images if not (pin or run)}
        for one, other in itertools.pairwise(order):
            assert _age(one, seen, used) <= _age(other, seen, used)
        for each in too_old(order, policy, now, 0.0):
            last = used[each.image.id]
            assert now > max_age
            assert last is None or now - last > max_age


def _age(record: ImageRecord, seen: dict[str, float], used: dict[str, float | None]) -> tuple[float, float]:
    last = used[record.image.id]
    return -1.0 if last is None else last, seen[record.image.id]
