"""What pods were granted survives the agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.pods.resize.allocation import AllocationStore, allocation_of, with_allocation
from trio_kubelet.pods.resize.checkpoint import ACTUATED, ALLOCATED, AllocationFileError, decode, encode


def asking(cpu: str) -> v1.Pod:
    resources = v1.ResourceRequirements(requests={"cpu": cpu})
    return make_pod(containers=[v1.Container(name="c", image="i", resources=resources)])


async def until(holds: Callable[[], bool]) -> None:
    """The file is written in a thread."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_grants_are_written_and_read_back(tmp_path: Path) -> None:
    store, path = AllocationStore(str(tmp_path)), tmp_path / ALLOCATED
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        store.grant(asking("500m"))
        await until(lambda: path.exists())
        first = path.read_bytes()
        store.forget("uid-web")
        await until(lambda: decode(path.read_bytes()) == {})
        nursery.cancel_scope.cancel()
    path.write_bytes(first)
    again = AllocationStore(str(tmp_path))
    again.load()
    pod = asking("2")
    granted = with_allocation(pod, again.get("uid-web"))
    assert (granted.spec.containers or [])[0].resources.requests == {"cpu": "500m"}
    assert (pod.spec.containers or [])[0].resources.requests == {"cpu": "2"}
    same = asking("500m")
    assert with_allocation(same, again.get("uid-web")) is same


async def test_what_containers_have_of_a_resize_is_written_when_they_have_it(tmp_path: Path) -> None:
    store = AllocationStore(str(tmp_path))

    def written(name: str) -> str | None:
        entry = decode((tmp_path / name).read_bytes()).get("uid-web") if (tmp_path / name).exists() else None
        return None if entry is None else (entry.containers["c"].requests or {})["cpu"]

    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        store.grant(asking("500m"))
        await until(lambda: (written(ALLOCATED), written(ACTUATED)) == ("500m", "500m"))
        assert store.outstanding("uid-web") is None
        store.grant(asking("1"))
        await until(lambda: written(ALLOCATED) == "1")
        assert written(ACTUATED) == "500m"
        for each in (store, AllocationStore(str(tmp_path))):
            if each is not store:
                each.load()
            assert each.outstanding("uid-web") == allocation_of(asking("500m"))
        store.actuated("uid-web")
        assert store.outstanding("uid-web") is None
        await until(lambda: written(ACTUATED) == "1")
        again = AllocationStore(str(tmp_path))
        again.load()
        assert again.outstanding("uid-web") is None
        nursery.cancel_scope.cancel()


KUBELETS = (
    b'{"data":"{\\"entries\\":{\\"24c333777eb58247da87a2c8a85c40ea\\":{\\"ContainerResources\\":'
    b'{\\"c\\":{}},\\"PodLevelResources\\":null}}}","checksum":950954690}'
)
"""A kubelet's file, v1.36.2."""


def test_the_files_are_the_kubelets() -> None:
    read = decode(KUBELETS)
    assert read["24c333777eb58247da87a2c8a85c40ea"].containers == {"c": v1.ResourceRequirements()}
    assert encode(read) == KUBELETS
    with pytest.raises(AllocationFileError, match="checkpoint is corrupted"):
        decode(KUBELETS.replace(b"24c", b"25c"))


POD_LEVEL = (
    b'{"data":"{\\"entries\\":{\\"uid-web\\":{\\"ContainerResources\\":{\\"main\\":{\\"limits\\":{\\"cpu\\":'
    b'\\"300m\\",\\"memory\\":\\"90Mi\\"},\\"requests\\":{\\"cpu\\":\\"10m\\"}},\\"two\\":{\\"limits\\":'
    b'{\\"cpu\\":\\"300m\\",\\"memory\\":\\"90Mi\\"}}},\\"PodLevelResources\\":{\\"limits\\":{\\"cpu\\":\\"300m\\",'
    b'\\"memory\\":\\"90Mi\\"},\\"requests\\":{\\"cpu\\":\\"60m\\",\\"memory\\":\\"50Mi\\"}}}}}","checksum":1683569032}'
)
"""What a kubelet v1.36 wrote for such a pod, but for its UID."""


@pytest.mark.parametrize("pod_level", [True, False])
async def test_a_container_without_a_limit_has_that_of_its_pod(tmp_path: Path, pod_level: bool) -> None:
    """So does a kubelet note it down, and without it takes the pod for one that is being resized."""
    containers = [
        v1.Container(name="main", image="i", resources=v1.ResourceRequirements(requests={"cpu": "10m"})),
        v1.Container(name="two", image="i"),
    ]
    whole = v1.ResourceRequirements(
        limits={"cpu": "300m", "memory": "90Mi"}, requests={"cpu": "60m", "memory": "50Mi"}
    )
    pod = make_pod(containers=containers, spec={"resources": whole})
    store, path = AllocationStore(str(tmp_path), pod_level=pod_level), tmp_path / ACTUATED
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        store.grant(pod)
        await until(path.exists)
        nursery.cancel_scope.cancel()
    assert decode((tmp_path / ALLOCATED).read_bytes()) == {"uid-web": allocation_of(pod)}
    written = decode(path.read_bytes())["uid-web"]
    assert (path.read_bytes() == POD_LEVEL) is pod_level
    assert (written == allocation_of(pod)) is not pod_level
    again = AllocationStore(str(tmp_path), pod_level=pod_level)
    again.load()
    assert again.outstanding("uid-web") is None, "the pod is not being resized"


def test_amounts_that_are_spelled_otherwise_are_no_resize(tmp_path: Path) -> None:
    granted = allocation_of(asking("500m"))
    pod = asking("0.5")
    assert with_allocation(pod, granted) is pod


@pytest.mark.parametrize("content", [b'{"uid": 3', encode({"uid": allocation_of(asking("much"))}), b""])
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ALLOCATED).write_bytes(content)
    store = AllocationStore(str(tmp_path))
    store.load()
    assert store.get("uid") is None


async def test_a_disk_without_room_is_told_once_and_written_to_later(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, in_the_way = AllocationStore(str(tmp_path)), tmp_path / f".{ALLOCATED}.new"
    in_the_way.mkdir()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        store.grant(make_pod("a"))
        await trio.sleep(35)
        assert capfd.readouterr().err.count("Cannot write down what pods were granted") == 1
        in_the_way.rmdir()
        await trio.sleep(11)
        assert decode((tmp_path / ALLOCATED).read_bytes())
        nursery.cancel_scope.cancel()
