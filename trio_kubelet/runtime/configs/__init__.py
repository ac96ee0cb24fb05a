"""CRI sandbox and container configs of a pod, made by pure functions.

What a container may do and see is decided by these messages alone, so they follow the kubelet to the
field. Everything the machine or the cluster has a say in (`NodeContext`, addresses, volumes, config maps)
comes in as a value; `builder` gathers those and is the only part that touches files.
"""

from __future__ import annotations

from trio_kubelet.podinfo.context import (
    ContainerInputs,
    Features,
    NodeContext,
    ResolvConf,
    RuntimeHandler,
    VolumeMountPoint,
)
from trio_kubelet.runtime.configs.container import container_config
from trio_kubelet.runtime.configs.sandbox import sandbox_config

__all__ = [
    "ContainerInputs",
    "Features",
    "NodeContext",
    "ResolvConf",
    "RuntimeHandler",
    "VolumeMountPoint",
    "container_config",
    "sandbox_config",
]
