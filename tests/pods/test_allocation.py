"""What pods were granted survives the agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.pods.resize.allocation import FILE_NAME, AllocationStore, with_allocation


def asking(cpu: str) -> v1.Pod:
    resources = v1.ResourceRequirements(requests={"cpu": cpu})
    return make_pod(containers=[v1.Container(name="c", image="i", resources=resources)])


async def until(holds: Callable[[], bool]) -> None:
    """The file is written in a thread."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_grants_are_written_and_read_back(tmp_path: Path) -> None:
    store, path = AllocationStore(str(tmp_path)), tmp_path / FILE_NAME
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        store.grant(asking("500m"))
        await until(lambda: path.exists())
        first = path.read_bytes()
        store.forget("uid-web")
        await until(lambda: path.read_bytes() == b"{}")
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


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"uid": 3')
    store = AllocationStore(str(tmp_path))
    store.load()
    assert store.get("uid") is None
