"""What the PLEG needs of who knows the runtime's answers."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.observed.types import PodParts, PodStatus


class PodStatusReader(Protocol):
    """Reads the status of a pod's known parts (implemented by `runtime.pod_runtime.PodRuntime`)."""

    async def read_pod_status(self, parts: PodParts) -> PodStatus: ...
