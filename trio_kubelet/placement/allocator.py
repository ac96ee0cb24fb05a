"""Gives the containers of a pod that is admitted what they ask for, one after the other.

The order is the kubelet's: init containers first, in each container every provider in turn. What an init
container was given can so be given to a later container of its pod.
"""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.api import v1
from trio_kubelet.placement.doors import AllocationError, Provider

UNEXPECTED = "UnexpectedAdmissionError"


class Allocator:
    """All providers of the node (kubelet: the topology manager with policy `none`)."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    async def allocate(self, pod: v1.Pod) -> tuple[str, str] | None:
        """Gives the pod everything; else reason and message of its refusal."""
        try:
            for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
                for provider in self._providers:
                    await provider.allocate(pod, container, None)
        except AllocationError as exc:
            return UNEXPECTED, f"Allocate failed due to {exc}, which is unexpected"
        return None
