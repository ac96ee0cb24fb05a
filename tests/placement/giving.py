"""One container after the other is given what it asks for, as by an allocator without a policy."""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.placement.doors import HintProvider
from trio_kubelet.placement.hints import Hint


async def give(
    provider: HintProvider, pod: v1.Pod, container: v1.Container, affinity: Hint | None = None
) -> None:
    """What is refused leaves nothing taken. Raises AllocationError."""
    try:
        provider.take(pod, container, affinity)
        await provider.confirm(pod, container, affinity)
    except BaseException:
        provider.let_go(pod)
        raise
