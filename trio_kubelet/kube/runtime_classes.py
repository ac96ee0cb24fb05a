"""Handlers of runtime classes, followed at the API server; the config builder's `RuntimeClasses`."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.podinfo.doors import ConfigError

TIMINGS: Final = Timings(ping_period=60.0)


class FollowedRuntimeClasses:
    """The cluster's runtime classes."""

    def __init__(self, door: APIDoor) -> None:
        self._reflector: Reflector[v1.RuntimeClass] = Reflector(
            door, "/apis/node.k8s.io/v1/runtimeclasses", v1.RuntimeClass, timings=TIMINGS
        )

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._reflector.run()

    def handlers(self) -> dict[str, str]:
        """All runtime classes, names to handlers."""
        return {found.metadata.name: found.handler for found in self._reflector.objects.values()}

    def handler(self, name: str) -> str:
        """The handler of a runtime class. Raises ConfigError for one that does not exist."""
        found = self._reflector.find(name)
        if found is None:
            raise ConfigError(f'runtimeclass.node.k8s.io "{name}" not found')
        return found.handler
