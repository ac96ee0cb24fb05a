"""What is counted, and under which names."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.runtime.pods import container, pod
from tests.runtime.world import world
from trio_kubelet.api import v1
from trio_kubelet.runtime.metrics import size_label


async def test_starts_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.fail("RunPodSandbox")
        await here.sync(pod(host_users=False))
        await here.sync(pod(container("a"), container("b", image="localhost/missing:1"), host_users=False))
        for name, value in (
            ("kubelet_started_pods_total", 2),
            ("kubelet_started_pods_errors_total", 1),
            ("kubelet_started_user_namespaced_pods_total", 2),
            ("kubelet_started_user_namespaced_pods_errors_total", 2),  # also of a container
        ):
            assert here.measured(name) == value
        assert here.measured("kubelet_started_containers_total", container_type="container") == 2
        labels = {"container_type": "container", "code": "ErrImagePull"}
        assert here.measured("kubelet_started_containers_errors_total", **labels) == 1


async def test_a_sandbox_whose_config_cannot_be_made_was_started(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.configs.sandbox_failure = "no such class"
        await here.sync(pod())
        assert here.measured("kubelet_started_pods_total") == 1
        assert here.measured("kubelet_started_pods_errors_total") == 1
        assert here.measured("kubelet_started_user_namespaced_pods_errors_total") == 0


@pytest.mark.parametrize(
    ("error", "succeeded", "failed"),
    [("", 2, 0), ("ImageVolumeMountFailed: bad layer", 0, 2), ("no space left on device", 2, 0)],
)
async def test_image_volumes_are_counted(
    error: str, succeeded: int, failed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        names = ("data", "unused", "gone")
        volumes = [
            v1.Volume(name=name, image=v1.ImageVolumeSource(reference=f"localhost/{image}:1"))
            for name, image in zip(names, ("data", "data", "missing"), strict=True)
        ]
        mounts = [v1.VolumeMount(name="data", mount_path=path) for path in ("/a", "/b")]
        gone = container("gone", volume_mounts=[v1.VolumeMount(name="gone", mount_path="/c")])
        if error:
            here.fail("CreateContainer", message=error)
        await here.sync(pod(container("c", volume_mounts=mounts), gone, volumes=volumes))
        for name, value in (("requested", 1), ("mounted_succeed", succeeded), ("mounted_errors", failed)):
            assert here.measured(f"kubelet_image_volume_{name}_total") == value, name
        labels = {"container_type": "container", "code": "ErrImagePull"}
        assert not here.measured("kubelet_started_containers_errors_total", **labels)


async def test_images_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        slow = container("c", image="localhost/slow-7:1")
        always = container("b", image="localhost/busybox:1", image_pull_policy="Always")
        await here.sync_ok(pod(container("a"), always, slow))
        name = "kubelet_image_manager_ensure_image_requests_total"
        for policy, present, pull in (
            ("ifnotpresent", "true", "false"),
            ("ifnotpresent", "false", "true"),
            ("always", "unknown", "true"),
        ):
            labels = {"pull_policy": policy, "present_locally": present, "pull_required": pull}
            assert here.measured(name, **labels) == 1, labels
        size = {"image_size_in_bytes": size_label(here.container("c").image.size)}
        assert here.measured("kubelet_image_pull_duration_seconds_sum", **size) == pytest.approx(7, abs=0.1)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "N/A"),
        (1, "0-10MB"),
        (10 << 20, "0-10MB"),
        ((10 << 20) + 1, "10MB-100MB"),
        (700 << 20, "500MB-1GB"),
        (4 << 30, "1GB-5GB"),
        (200 << 30, "GT100GB"),
    ],
)
def test_classes_of_image_sizes(size: int, label: str) -> None:
    assert size_label(size) == label
