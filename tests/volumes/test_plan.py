"""What a pod's volumes come to, for pods of any size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.plan import (
    MOST_NESTED,
    EmptyDir,
    PodWide,
    Projection,
    mount_points,
    nested_mount_points,
    plan_volume,
    source_name,
)

NODE = NodeContext(node_name="n", allocatable={"memory": "8Gi"})
FILES: dict[str, Any] = {"downwardAPI": {}}
segments = st.sampled_from(["a", "a-b", "b", "..", ".", ""])
paths = st.lists(segments, max_size=4).map(lambda path: "/" + "/".join(path))
mounts_of_containers = st.lists(st.lists(st.tuples(st.sampled_from("vwx"), paths), max_size=6), max_size=3)


def pod(containers: list[list[tuple[str, str]]], volumes: dict[str, Any], **fields: Any) -> v1.Pod:
    """Containers that mount volumes by name and path."""
    spec = {
        "containers": [
            {
                "name": f"c{number}",
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts],
                **fields,
            }
            for number, mounts in enumerate(containers)
        ],
        "volumes": [{"name": name, **source} for name, source in volumes.items()],
    }
    return msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec}, v1.Pod)


def parts(path: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            found = found[:-1]
        elif part not in ("", "."):
            found.append(part)
    return tuple(found)


def outermost_inside(containers: list[list[tuple[str, str]]], volume: str) -> set[str]:
    """Each mount against each: those inside a mount of the volume that are not inside another of those."""
    found = set()
    for mounts in containers:
        every = {parts(path) for _, path in mounts}
        for base in (parts(path) for name, path in mounts if name == volume and parts(path)):
            inside = {path for path in every if path != base and path[: len(base)] == base}
            outermost = {
                p for p in inside if not any(other != p and p[: len(other)] == other for other in inside)
            }
            found |= {"/".join(path[len(base) :]) for path in outermost}
    return found


@given(mounts_of_containers)
def test_nested_mounts_agree_with_each_compared_with_each(containers: list[list[tuple[str, str]]]) -> None:
    made = pod(containers, {"v": FILES, "w": FILES, "x": {"emptyDir": {}}})
    nested = nested_mount_points(made)
    assert {name: set(nested.get(name, ())) for name in "vwx"} == {
        "v": outermost_inside(containers, "v"),
        "w": outermost_inside(containers, "w"),
        "x": set(),  # nothing is made in volumes of others
    }


def test_nested_mounts_reach_the_plan() -> None:
    made = pod(
        [[("v", "/a"), ("x", "/a/b"), ("w", "/a/b/c")]], {"v": FILES, "w": FILES, "x": {"emptyDir": {}}}
    )
    plans = [plan_volume(made, volume, NODE) for volume in made.spec.volumes or ()]
    assert [plan.nested for plan in plans if isinstance(plan, Projection)] == [("b",), ()]


def test_mounts_of_an_ephemeral_container_are_nested_too() -> None:
    """It came later: what it mounts inside a volume of files needs a directory there as well."""
    made = pod([[("v", "/a")]], {"v": FILES, "x": {"emptyDir": {}}})
    mounts = [v1.VolumeMount(name="v", mount_path="/b"), v1.VolumeMount(name="x", mount_path="/b/c")]
    made.spec.ephemeral_containers = [v1.EphemeralContainer(name="e", volume_mounts=mounts)]
    assert set(nested_mount_points(made)["v"]) == {"c"}


@pytest.mark.parametrize(
    ("path", "cleaned"), [("foo/../../dir", "../dir"), ("../a/./", "../a"), ("/../a", None), ("a/..", None)]
)
def test_files_are_not_mounted_outside_of_their_container(path: str, cleaned: str | None) -> None:
    made = pod([[("w", "/w"), ("v", path), ("x", path)]], {"v": FILES, "w": FILES, "x": {"emptyDir": {}}})
    plans = [plan_volume(made, volume, NODE) for volume in made.spec.volumes or ()]
    problems = [plan.directory.problem for plan in plans if isinstance(plan, Projection)]
    assert problems == [f"invalid container mount point {cleaned}" if cleaned else "", ""]


def test_thousands_of_volumes_and_mounts_are_planned_at_once() -> None:
    """Each volume was compared with each mount, and each mount below one with each other: seconds."""
    names = [f"v{number}" for number in range(3000)]
    flat = pod([[(name, f"/{name}") for name in names]], dict.fromkeys(names, FILES))
    below = [("v", "/a"), *(("x", f"/a/{number}") for number in range(6000))]
    covered = pod([below], {"v": FILES, "x": {"emptyDir": {}}})
    for _ in within_cpu(1.0):
        assert len(mount_points(flat, NODE)) == 3000
        assert len(nested_mount_points(covered)["v"]) == 6000


def test_volumes_at_one_place_need_no_more_directories_than_there_is_room_for() -> None:
    """A path has many spellings, so a hundred volumes may be where a thousand mounts are."""
    names = [f"v{number}" for number in range(100)]
    spelled = [(name, "/a" + "/" * number) for number, name in enumerate(names)]
    inside = [("x", f"/a/{number}") for number in range(1000)]
    made = pod([spelled + inside], {**dict.fromkeys(names, FILES), "x": {"emptyDir": {}}})
    with pytest.raises(VolumeError, match=f"more than {MOST_NESTED} directories"):
        mount_points(made, NODE)
    deep = pod([[("v", "/a"), *(("x", f"/a/{n}" + "/b" * 1000) for n in range(17))]], {"v": FILES})
    with pytest.raises(VolumeError, match=f"more than {MOST_NESTED} directories"):
        mount_points(deep, NODE)


def test_one_volume_in_many_spellings_is_one_place() -> None:
    spelled = [("v", "/a" + "/" * number) for number in range(200)]
    made = pod([[*spelled, *(("x", f"/a/{number}") for number in range(200))]], {"v": FILES})
    assert len(nested_mount_points(made)["v"]) == 200


def test_the_files_of_the_agents_own_volumes_are_labelled_for_their_pods() -> None:
    sources = {"v": FILES, "w": {"emptyDir": {}}, "x": {"hostPath": {"path": "/etc"}}}
    made = pod([[(name, f"/{name}") for name in sources]], sources)
    assert {name: point.relabel for name, point in mount_points(made, NODE).items()} == {
        "v": True,
        "w": True,
        "x": False,
    }


def test_the_limit_of_memory_is_that_of_the_node_the_pod_and_the_volume() -> None:
    in_memory = {"medium": "Memory"}
    sources = {
        "v": {"emptyDir": in_memory},
        "w": {"emptyDir": {**in_memory, "sizeLimit": "1Mi"}},
        "x": {"emptyDir": {**in_memory, "sizeLimit": "1Gi"}},
        "y": FILES,
    }
    limited = pod([[], []], sources, resources={"limits": {"memory": "2Mi"}})
    sizes = {}
    for made in (limited, pod([[]], sources)):
        shared = PodWide(made, NODE)
        plans = [plan_volume(made, volume, NODE, shared) for volume in made.spec.volumes or ()]
        directories = [plan.directory if isinstance(plan, Projection) else plan for plan in plans]
        sizes[made is limited] = [each.size >> 20 for each in directories if isinstance(each, EmptyDir)]
    assert sizes == {True: [4, 1, 4, 4], False: [8192, 1, 1024, 8192]}


def test_the_limit_of_a_pods_memory_is_added_up_once() -> None:
    """It was for each volume, over all containers: seconds for thousands of both."""
    names = [f"v{number}" for number in range(2000)]
    sources = {name: {"emptyDir": {"medium": "Memory"}} for name in names}
    made = pod([[(name, "/a")] for name in names], sources, resources={"limits": {"memory": "1Mi"}})
    for _ in within_cpu(0.5):
        assert len(mount_points(made, NODE)) == 2000


def test_kinds_of_thousands_of_volumes_are_told_at_once() -> None:
    """All annotations of a volume's fields were looked up for each: a second for three thousand."""
    volumes = [v1.Volume(name="v", secret=v1.SecretVolumeSource()) for _ in range(3000)]
    for _ in within_cpu(0.3):
        assert {source_name(volume) for volume in volumes} == {"secret"}
    assert source_name(v1.Volume(name="v", downward_api=v1.DownwardAPIVolumeSource())) == "downwardAPI"
    assert source_name(v1.Volume(name="v")) == "unknown"
