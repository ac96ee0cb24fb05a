"""Removes dead containers: their logs first, so that a container whose logs cannot be removed is
tried again.
"""

from __future__ import annotations

import trio

from trio_kubelet.common.lanes import LOGS
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import NotFound
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.runtime.configs.labels import read_identity
from trio_kubelet.runtime.log_links import link_name, remove_link, remove_logs

log = get_logger(__name__)


class ContainerRemover:
    """Removes containers with what belongs to them.

    That a container died, that its pod is gone and a collection may all ask for one at the same time. They go
    one after the other, for a runtime refuses to remove what it is removing.
    """

    def __init__(self, runtime: RuntimeService, container_logs_dir: str) -> None:
        self._runtime = runtime
        self._container_logs_dir = container_logs_dir
        self._under_way: dict[str, trio.Event] = {}  # by container

    async def remove(self, container_id: str, *, keep_logs: bool = False) -> None:
        """Removes a container that does not run; fine if it is gone already. Raises CRIError, OSError.

        Logs that are kept stay until the pod's log directory goes.
        """
        while (other := self._under_way.get(container_id)) is not None:
            await other.wait()
        done = self._under_way[container_id] = trio.Event()
        log.v(4).info("Removing container", containerID=container_id)
        try:
            if not keep_logs:
                await self._remove_logs(container_id)
            await self._runtime.remove_container(container_id)
        except NotFound:
            return
        finally:
            del self._under_way[container_id]
            done.set()

    async def _remove_logs(self, container_id: str) -> None:
        status = (await self._runtime.container_status(container_id)).status
        owner = read_identity(status.labels)
        name = link_name(owner.name, owner.namespace, owner.container, container_id)

        def remove() -> None:
            if status.log_path:
                remove_logs(status.log_path)
            remove_link(self._container_logs_dir, name)

        await LOGS.run(remove)
