"""Both lists of the runtime at once, undecoded: of all pods, or of one."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from trio_kubelet.common.error_groups import leaves
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import POD_UID


async def list_both(
    runtime: RuntimeService, uid: str | None = None
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Raw answers of ListPodSandbox and ListContainers; with `uid` of that pod only. Raises CRIError."""
    selector = {} if uid is None else {POD_UID: uid}
    sandboxes: Sequence[bytes] = ()
    containers: Sequence[bytes] = ()
    failure: CRIError | None = None

    async def list_sandboxes() -> None:
        nonlocal sandboxes
        wanted = cri.PodSandboxFilter(label_selector=selector) if selector else None
        sandboxes = await runtime.list_pod_sandboxes_raw(wanted)

    async def list_containers() -> None:
        nonlocal containers
        wanted = cri.ContainerFilter(label_selector=selector) if selector else None
        containers = await runtime.list_containers_raw(wanted)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_sandboxes)
            nursery.start_soon(list_containers)
    except* CRIError as group:
        failure = next(leaves(group))  # one reason is enough to tell
    if failure is not None:
        raise failure
    return sandboxes, containers
