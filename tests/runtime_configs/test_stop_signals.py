"""The signal a container is stopped with, which a pod may name where the gate allows it (KEP-4960)."""

from __future__ import annotations

import pytest

from tests.runtime_configs.pods import container, first, node, pod
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import ContainerInputs, Features
from trio_kubelet.runtime.configs.container import container_config


@pytest.mark.parametrize(
    ("asked", "enabled", "signal"),
    [
        ("SIGUSR1", True, cri.SIGUSR1),
        ("SIGRTMIN+3", True, cri.SIGRTMINPLUS3),
        ("SIGUSR1", False, cri.RUNTIME_DEFAULT),
        (None, True, cri.RUNTIME_DEFAULT),
    ],
)
def test_the_runtime_is_told_the_signal(asked: str | None, enabled: bool, signal: int) -> None:
    made = pod(container(lifecycle={"stopSignal": asked}))
    ctx = node(features=Features(container_stop_signals=enabled))
    config = container_config(made, first(made), ctx, ContainerInputs(image_ref="sha256:1"))
    assert config.stop_signal == signal
