"""Which wanted pods run or will run here, and what they take of the node (kubelet: `filterOutInactivePods`).

Whoever changes what makes a pod active tells its UID. It is looked at when somebody asks about the pods
beside another one, so that of a thousand pods only those are looked at that something happened to.
"""

from __future__ import annotations

from collections.abc import Collection

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.log import get_logger
from trio_kubelet.pods.admission.occupancy import Occupancy, Others
from trio_kubelet.pods.doors import Admitter
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.resize.allocation import with_larger_requests
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)


class ActivePods:
    """The active pods. `untaken` are pods that have not been taken: they stand in nobody's way."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        statuses: StatusManager,
        admitter: Admitter,
        untaken: Collection[str],
    ) -> None:
        self._pods = pods
        self._workers = workers
        self._statuses = statuses
        self._admitter = admitter
        self._untaken = untaken
        self._occupancy = Occupancy()
        self._touched: dict[str, None] = {}
        self._refused: set[str] = set()
        statuses.forgotten.listen(self._refused.discard)
        for news in (pods.changed, workers.changed, statuses.changed, statuses.forgotten):
            news.listen(self.touch)

    def all(self) -> list[Pod]:
        """The pods, as their sources want them."""
        return [pod for pod in self._pods.pods() if self._is_active(pod)]

    def beside(self, uid: str) -> Others:
        """The active pods beside this one, with the resources they were granted, or still have."""
        itself = uid in self._touched
        touched, self._touched = self._touched, {uid: None} if itself else {}
        for one in touched:
            if one != uid:
                self._count(one)
        return self._occupancy.beside(uid)

    def _count(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None or uid in self._untaken or not self._is_active(pod):
            self._occupancy.drop(uid)
            return
        try:
            self._occupancy.put(self._as_counted(pod))
        except Exception as exc:  # what one pod makes the code raise does not keep out others
            log.error("Unexpected error in counting what a pod takes", pod=pod, podUID=uid, err=exc)

    def _as_counted(self, pod: Pod) -> Pod:
        """The pod with what it takes: what it was granted, and while it runs with more, that (KEP-1287)."""
        granted = self._admitter.as_granted(pod)
        actuated = self._admitter.as_actuated(granted)
        if actuated is granted or not self._runs(pod.metadata.uid):
            return granted
        return with_larger_requests(granted, actuated)

    def _runs(self, uid: str) -> bool:
        status = self._statuses.get(uid)
        if status is None:
            return False
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        return any(each.state.running is not None for each in statuses)

    def take(self, uid: str) -> None:
        """This node has taken the pod."""
        self._refused.discard(uid)
        self.touch(uid)

    def refuse(self, uid: str) -> None:
        """This node has refused the pod, which so takes nothing of it: not while it is deleted, either. A
        kubelet then refuses others for want of what it asked for (kubernetes/kubernetes 135296).
        """
        self._refused.add(uid)
        self.touch(uid)

    def touch(self, uid: str) -> None:
        """Whether this pod is active, or what it was granted, may be different."""
        self._touched[uid] = None

    def is_over(self, pod: Pod) -> bool:
        """Whether the pod has ended, or was refused."""
        if is_terminal_phase(pod.status.phase):
            return True
        status = self._statuses.get(pod.metadata.uid)
        return status is not None and is_terminal_phase(status.phase)

    def _is_active(self, pod: Pod) -> bool:
        uid = pod.metadata.uid
        if uid in self._refused or self._workers.is_known_terminated(uid):
            return False
        return not self.is_over(pod) or self._workers.is_termination_requested(uid)
