"""What admission has to wait for: pods are given what is handed out piece by piece (devices, CPUs, memory),
and what is known of the node may have to be asked for anew.

Plugins are asked for that, which takes a while; so admission is asked twice about such a pod. The first
answer is `Allocate`, a task gives the pod its pieces, and the second answer is that of the other rules.
A plugin that does not answer holds up the pods that want its devices, and nobody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.handover import Handover
from trio_kubelet.common.log import get_logger
from trio_kubelet.pods.admission.admitter import UNEXPECTED, Reject
from trio_kubelet.pods.doors import ResourceAllocator

log = get_logger(__name__)


class NothingToAllocate:
    """A node where nothing is handed out."""

    def concerns(self, pod: Pod) -> bool:
        return False

    def passes(self, pod: Pod) -> None:
        pass

    async def allocate(self, pod: Pod) -> tuple[str, str] | None:
        return None


class Allocating:
    """Which pods have been given their pieces, and the tasks that give them."""

    def __init__(self, allocator: ResourceAllocator) -> None:
        self._allocator = allocator
        self._done: dict[str, Reject | None] = {}
        self._looks: dict[str, Callable[[], Awaitable[None]] | None] = {}  # None: it was looked
        self._at_work: dict[str, trio.CancelScope] = {}
        self._begun = Handover[Pod]()

    def outstanding(self, pod: Pod) -> bool:
        """Whether the pod asks for pieces that nobody has tried to give to it yet. One that asks for none is
        done with.
        """
        if pod.metadata.uid in self._done:
            return False
        if self._allocator.concerns(pod):
            return True
        self._allocator.passes(pod)
        self._done[pod.metadata.uid] = None
        return False

    def resizes(self, pod: Pod) -> None:
        """A running pod asks for other resources, which is an admission once more. It keeps its pieces."""
        self._allocator.passes(pod)

    def refusal(self, uid: str) -> Reject | None:
        """Why a pod could not be given its pieces."""
        return self._done.get(uid)

    def look_first(self, uid: str, look: Callable[[], Awaitable[None]]) -> bool:
        """Has `begin` look before admission is asked again, once for a pod; whether it will."""
        if uid in self._looks:
            return False
        self._looks[uid] = look
        return True

    def begin(self, pod: Pod) -> None:
        """Gives the pod its pieces, or looks; `ended` of `run` is called when that is over, however it
        went.
        """
        if pod.metadata.uid not in self._at_work:
            self._at_work[pod.metadata.uid] = trio.CancelScope()
            self._begun.give(pod)

    def forget(self, uid: str) -> None:
        """The pod is not wanted any more; what it was given is taken back by who gave it."""
        self._done.pop(uid, None)
        self._looks.pop(uid, None)
        if (scope := self._at_work.pop(uid, None)) is not None:
            scope.cancel()

    async def settle(self, pod: Pod) -> Reject | None:
        """Gives the pod its pieces and returns why it could not be given them."""
        try:
            refused = await self._allocator.allocate(pod)
        except Exception as exc:  # what one pod asks for is its own affair
            log.error("Unexpected error in giving a pod its devices", pod=pod, err=exc)
            message = f"Allocate failed due to {type(exc).__name__}: {exc}, which is unexpected"
            refused = UNEXPECTED, message
        self._done[pod.metadata.uid] = outcome = None if refused is None else Reject(*refused)
        return outcome

    async def run(
        self,
        ended: Callable[[str], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves `begin` until cancelled."""

        def begin(nursery: trio.Nursery, pod: Pod) -> None:
            if (scope := self._at_work.get(pod.metadata.uid)) is not None:
                nursery.start_soon(self._give, pod, scope, ended)

        await self._begun.serve(begin, task_status)

    async def _give(self, pod: Pod, scope: trio.CancelScope, ended: Callable[[str], None]) -> None:
        uid = pod.metadata.uid
        with scope:
            if (look := self._looks.get(uid)) is not None:
                await look()
                if uid in self._looks:
                    self._looks[uid] = None
            else:
                await self.settle(pod)
        if not scope.cancel_called:
            del self._at_work[pod.metadata.uid]
            ended(pod.metadata.uid)
