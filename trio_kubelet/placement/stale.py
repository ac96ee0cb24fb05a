"""What was given to containers that are wanted no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.log import get_logger
from trio_kubelet.placement.doors import PlacementPods

log = get_logger(__name__)


def stale_containers(
    assigned: Mapping[str, Mapping[str, object]], pods: PlacementPods
) -> Iterator[tuple[str, str]]:
    """Pod UID and name of containers that have something and belong to no pod of this node; none as long as
    not all pods are known.
    """
    if not assigned or not pods.all_known():
        return
    active = {pod.metadata.uid: {c.name for c in regular_containers(pod.spec)} for pod in pods.active()}
    for uid, containers in assigned.items():
        for name in containers.keys() - active.get(uid, set()):
            log.v(2).info("Removing container", podUID=uid, containerName=name)
            yield uid, name
