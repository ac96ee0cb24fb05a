"""What an operator sets arrives where it acts."""

from __future__ import annotations

import msgspec
import pytest

from trio_kubelet.config.types import CrashLoopBackOff, KubeletConfiguration
from trio_kubelet.runtime.image_pulls import ImagePullSettings
from trio_kubelet.runtime.log_rotation import RotationSettings
from trio_kubelet.runtime.pod_runtime import RuntimeSettings


def test_the_defaults_are_the_kubelets() -> None:
    assert RuntimeSettings.from_config(KubeletConfiguration()) == RuntimeSettings()


def test_settings() -> None:
    config = msgspec.structs.replace(
        KubeletConfiguration(),
        pod_logs_dir="/logs",
        crash_loop_back_off=CrashLoopBackOff(max_container_restart_period=20.0),
        serialize_image_pulls=False,
        max_parallel_image_pulls=3,
        registry_pull_qps=0,
        registry_burst=1,
        container_log_max_size="-1",
        container_log_max_files=2,
        container_log_max_workers=4,
        container_log_monitor_interval=3.0,
    )
    assert RuntimeSettings.from_config(config) == RuntimeSettings(
        pod_logs_dir="/logs",
        max_container_restart_period=20.0,
        pulls=ImagePullSettings(serialize=False, max_parallel=3, qps=0, burst=1),
        rotation=RotationSettings(max_size=-1, max_files=2, workers=4, interval=3.0),
    )


@pytest.mark.parametrize(
    ("gates", "longest", "periods"),
    [
        ({}, 300.0, (1.0, 300.0)),
        ({}, 5.0, (1.0, 5.0)),
        ({"KubeletCrashLoopBackOffMax": False}, None, (1.0, 60.0)),
        (
            {"ReduceDefaultCrashLoopBackOffDecay": False, "KubeletCrashLoopBackOffMax": False},
            None,
            (10.0, 300.0),
        ),
    ],
)
def test_containers_that_crash_are_restarted_sooner_with_the_gate(
    gates: dict[str, bool], longest: float | None, periods: tuple[float, float]
) -> None:
    config = msgspec.structs.replace(
        KubeletConfiguration(),
        feature_gates={"ReduceDefaultCrashLoopBackOffDecay": True, **gates},
        crash_loop_back_off=CrashLoopBackOff(max_container_restart_period=longest),
    )
    settings = RuntimeSettings.from_config(config)
    assert (settings.first_container_restart_period, settings.max_container_restart_period) == periods


def test_images_are_asked_for_by_handler_with_the_gate() -> None:
    gates = {"RuntimeClassInImageCriApi": True}
    config = msgspec.structs.replace(KubeletConfiguration(), feature_gates=gates)
    assert RuntimeSettings.from_config(config).pulls.by_handler


def test_a_size_that_is_none() -> None:
    config = msgspec.structs.replace(KubeletConfiguration(), container_log_max_size="much")
    with pytest.raises(ValueError, match="quantities must match"):
        RuntimeSettings.from_config(config)
