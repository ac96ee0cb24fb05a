"""Why containers could not be started the last time, for their statuses (kubelet: `ReasonCache`)."""

from __future__ import annotations

from trio_kubelet.pods.status.containers import Reasons
from trio_kubelet.runtime.results import PodSyncResult


class ReasonCache:
    """Reason and message by pod UID and container name; one that started has none."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, tuple[str, str]]] = {}

    def update(self, uid: str, result: PodSyncResult) -> bool:
        """Takes what a sync led to; whether any reason is new or gone."""
        before = self._reasons.get(uid, {})
        after = dict(before)
        for start in result.start_results():
            if start.reason is None:
                after.pop(start.target, None)
            else:
                after[start.target] = (start.reason.value, start.message)
        if after:
            self._reasons[uid] = after
        else:
            self._reasons.pop(uid, None)
        return after != before

    def get(self, uid: str) -> Reasons:
        """The reasons of one pod's containers."""
        return self._reasons.get(uid, {})

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._reasons.pop(uid, None)
