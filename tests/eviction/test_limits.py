"""Limits of local storage: what is told of a pod that exceeds them."""

from __future__ import annotations

import pytest

from tests.eviction.build import pod_stats
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.eviction.limits import breach, has_limits


def limited(name: str, limit: str, restart: str | None = None) -> v1.Container:
    resources = v1.ResourceRequirements(limits={"ephemeral-storage": limit} if limit else None)
    return v1.Container(name=name, resources=resources, restart_policy=restart)


@pytest.mark.parametrize(
    ("main", "sidecar", "init", "shown"),
    [
        ("1G", "", "1Mi", "1G"),
        ("100M", "", "1Gi", "1Gi"),
        ("", "2G", "1Gi", "3001701Ki"),
        ("", "2G", "", "2G"),
        ("0", "1Gi", "", "1Gi"),
        ("1Gi", "", "600M", "1Gi"),
        ("1Gi", "", "1073741824", "1Gi"),
    ],
)
def test_the_limit_of_a_pod_is_written_as_what_adds_up_to_it(
    main: str, sidecar: str, init: str, shown: str
) -> None:
    """As the kubelet adds quantities; the third is one it has told."""
    before = [limited("sidecar", sidecar, "Always"), limited("init", init), limited("again", init)]
    pod = make_pod("pod", containers=[limited("main", main)], spec={"init_containers": before})
    assert has_limits(pod)
    found = breach(pod, pod_stats("pod", {"es": 1 << 40}), layers_count=True)
    assert found is not None
    text = f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "
    assert found.message == text


def test_a_sidecar_has_its_own_limit_and_an_init_container_that_is_over_has_none() -> None:
    before = [limited("sidecar", "1Ki", "Always"), limited("init", "1Ki")]
    pod = make_pod("pod", containers=[limited("main", "1Gi")], spec={"init_containers": before})
    over = pod_stats("pod", {"c": [{"n": "init", "logs": [2048]}]})
    assert breach(pod, over, layers_count=True) is None
    used = pod_stats("pod", {"c": [{"n": "sidecar", "logs": [512], "root": [513]}]})
    assert breach(pod, used, layers_count=False) is None
    found = breach(pod, used, layers_count=True)
    assert found is not None
    assert found.signal == "ephemeralcontainerfs.limit"
    assert found.message == 'Container sidecar exceeded its local ephemeral storage limit "1Ki". '


@pytest.mark.parametrize(("more", "told"), [(0, ""), (1, "emptydirfs.limit")])
def test_a_volume_may_be_as_large_as_its_limit(more: int, told: str) -> None:
    volumes = [v1.Volume(name="v", empty_dir=v1.EmptyDirVolumeSource(size_limit="1Ki"))]
    pod = make_pod("pod", spec={"volumes": volumes})
    found = breach(pod, pod_stats("pod", {"v": {"v": (1024 + more, 1)}}), layers_count=True)
    assert (found.signal if found else "") == told
    unknown = pod_stats("pod", {})
    unknown.volume = None
    assert breach(pod, unknown, layers_count=True) is None
