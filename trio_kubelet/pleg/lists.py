"""Both lists of the runtime, undecoded: of all pods, or of one."""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import POD_UID


async def list_both(
    runtime: RuntimeService, uid: str | None = None
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Raw answers of ListPodSandbox and ListContainers; with `uid` of that pod only. Raises CRIError.

    One after the other, as they are on the wire: lists have one connection.
    """
    selector = {} if uid is None else {POD_UID: uid}
    of_sandboxes = cri.PodSandboxFilter(label_selector=selector) if selector else None
    of_containers = cri.ContainerFilter(label_selector=selector) if selector else None
    sandboxes = await runtime.list_pod_sandboxes_raw(of_sandboxes)
    return sandboxes, await runtime.list_containers_raw(of_containers)
