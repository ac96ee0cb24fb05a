"""Volumes of huge pages: which size they have (kubelet: `getPageSizeMountOption` and its tests)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.plan import EmptyDir, PodWide, asked_page_sizes, huge_page_size, plan_volume

NODE = NodeContext(node_name="n")
SMALL, LARGE = {"hugepages-2Mi": "4Mi"}, {"hugepages-1Gi": "2Gi"}


def pod(*requests: dict[str, str], init: dict[str, str] | None = None, **spec: Any) -> v1.Pod:
    def container(name: str, asked: dict[str, str]) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": asked, "limits": asked}}

    containers = [container(f"c{number}", asked) for number, asked in enumerate(requests)]
    starts = [] if init is None else [container("i", init)]
    spec |= {"containers": containers, "initContainers": starts}
    return msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec}, v1.Pod)


@pytest.mark.parametrize(
    ("made", "medium", "size"),
    [
        (pod(SMALL), "HugePages", "2Mi"),
        (pod(SMALL, SMALL), "HugePages", "2Mi"),
        (pod({"cpu": "1"}, init=LARGE), "HugePages", "1Gi"),
        (pod(SMALL, LARGE), "HugePages-2Mi", "2Mi"),
        (pod(SMALL | LARGE), "HugePages-1Gi", "1Gi"),
        (pod({"hugepages-2048Ki": "4Mi"}), "HugePages-2Mi", "2048Ki"),
        (pod({}, resources={"requests": SMALL, "limits": SMALL}), "HugePages", "2Mi"),
    ],
)
def test_size_of_the_pages(made: v1.Pod, medium: str, size: str) -> None:
    assert huge_page_size(medium, asked_page_sizes(made, NODE)) == size


@pytest.mark.parametrize(
    ("made", "medium", "problem"),
    [
        (pod({"cpu": "1"}), "HugePages", "there is no resource request for huge pages"),
        (pod(LARGE), "HugePages-2Mi", "medium HugePages-2Mi: hugePages storage requested, but there is no"),
        (pod(SMALL, LARGE), "HugePages", "can't be used if container requests multiple huge page sizes"),
        (pod(SMALL, init=LARGE), "HugePages", "can't be used if container requests multiple huge page sizes"),
    ],
)
def test_sizes_that_are_not_asked_for(made: v1.Pod, medium: str, problem: str) -> None:
    with pytest.raises(VolumeError, match=problem):
        huge_page_size(medium, asked_page_sizes(made, NODE))


@pytest.mark.parametrize("size", ["{}Mi", "{}many"])
def test_thousands_of_volumes_and_sizes_are_gone_through_once(size: str) -> None:
    """All containers were looked at for each volume, for seconds."""
    asking = [{f"hugepages-{size.format(number)}": "1"} for number in range(1, 3001)]
    volumes = [{"name": f"v{number}", "emptyDir": {"medium": "HugePages-2Mi"}} for number in range(3000)]
    made = pod(*asking, volumes=volumes)
    for _ in within_cpu(1.0):
        shared = PodWide(made, NODE)
        plans = [plan_volume(made, volume, NODE, shared) for volume in made.spec.volumes or ()]
    assert all(isinstance(plan, EmptyDir) and (plan.page_size == "2Mi" or plan.problem) for plan in plans)
