"""What is observed of each pod, and since when it is known to be true.

One writer (the PLEG), many readers (pod workers, `/pods`). A worker that has just acted asks for a
status *newer than* the moment of its action; the cache lets it wait until a look at that pod, or a
relist that found the pod unchanged, is newer (kubelet: `pkg/kubelet/container/cache.go`).

Moments are Trio's clock (`trio.current_time()`, seconds), which no change of the wall clock disturbs.
"""

from __future__ import annotations

import math

import trio

from trio_kubelet.common.log import describe_error
from trio_kubelet.observed.types import ContainerState, PodStatus


class InspectionFailed(Exception):
    """The last look at a pod failed; the cause is chained."""


class _Entry:
    __slots__ = ("error", "moment", "status")

    def __init__(self) -> None:
        self.status: PodStatus | None = None
        self.error: Exception | None = None
        self.moment = -math.inf


class StatusCache:
    """Observed pod statuses by uid.

    A pod is *dirty* from the moment something was seen to have changed until a look at it succeeded;
    for a dirty pod the global time says nothing.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._dirty: set[str] = set()
        self._gone: set[str] = set()  # entries that only say that nothing exists
        self._global_moment = -math.inf
        self._changed: dict[str, trio.Event] = {}

    def get(self, uid: str) -> PodStatus | None:
        """The last observed status, None when nothing of the pod is known to exist."""
        entry = self._entries.get(uid)
        return entry.status if entry else None

    def has_ended(self, uid: str, container_id: str) -> bool:
        """Whether the container of the pod was seen to have ended."""
        containers = status.containers if (status := self.get(uid)) is not None else ()
        return any(each.id == container_id and each.state is ContainerState.EXITED for each in containers)

    def uids(self) -> tuple[str, ...]:
        """The pods of which something was observed."""
        return tuple(uid for uid in self._entries if uid not in self._gone)

    def statuses(self) -> list[PodStatus]:
        """All that was observed."""
        return [entry.status for entry in self._entries.values() if entry.status is not None]

    async def get_newer_than(self, uid: str, moment: float) -> PodStatus:
        """The status as it was at some point after `moment`; empty when nothing of the pod exists.

        Waits as long as it takes: the caller sets the deadline. Raises `InspectionFailed` when the
        look that would have told failed.
        """
        while (known := self.known_newer_than(uid, moment)) is None:
            await self._changed.setdefault(uid, trio.Event()).wait()
        return known

    def known_newer_than(self, uid: str, moment: float) -> PodStatus | None:
        """The same if it is known already, else None."""
        entry = self._entries.get(uid)
        if entry is not None and entry.moment > moment:
            return self._result(uid, entry)
        if uid not in self._dirty and self._global_moment > moment:
            return self._result(uid, entry)
        return None

    def set(self, uid: str, status: PodStatus, moment: float) -> None:
        """A look that listed the pod at `moment` saw this. An older look never replaces a newer one. An error
        it does: that is of the same look, which was tried again.
        """
        self._store(uid, status, None, moment)

    def set_error(self, uid: str, error: Exception, moment: float) -> None:
        """A look, or another try of it, failed that began at `moment`: who waits for it is told, the last
        status stays.
        """
        self._store(uid, self.get(uid), error, moment)

    def delete(self, uid: str, moment: float) -> None:
        """A look that listed the pod at `moment` found nothing of it."""
        self._store(uid, None, None, moment)

    def touch(self, uid: str, moment: float) -> None:
        """A look that began at `moment` found the pod as it is known."""
        entry = self._entries.get(uid)
        if entry is None or entry.error is None:
            self._store(uid, self.get(uid), None, moment)

    def mark_dirty(self, uid: str) -> None:
        """Something about the pod changed: its status is not current before the next look."""
        self._dirty.add(uid)

    def mark_clean(self, uid: str) -> None:
        """The pod's status is current again."""
        self._dirty.discard(uid)
        self._wake(uid)

    def update_time(self, moment: float) -> None:
        """All pods that are not dirty are known to be as they were at `moment`."""
        if moment > self._global_moment:
            self._global_moment = moment
            for uid in [uid for uid in self._gone if self._entries[uid].moment <= moment]:
                self._gone.discard(uid)
                del self._entries[uid]
            for uid in list(self._changed):
                if uid not in self._dirty:
                    self._wake(uid)

    def _store(self, uid: str, status: PodStatus | None, error: Exception | None, moment: float) -> None:
        entry = self._entries.setdefault(uid, _Entry())
        if moment >= entry.moment or entry.error is not None:
            entry.status, entry.error, entry.moment = status, error, moment
            (self._gone.add if status is None and error is None else self._gone.discard)(uid)
        self._wake(uid)

    def _wake(self, uid: str) -> None:
        event = self._changed.pop(uid, None)
        if event is not None:
            event.set()

    @staticmethod
    def _result(uid: str, entry: _Entry | None) -> PodStatus:
        if entry is None:
            return PodStatus(uid=uid, name="", namespace="")
        if entry.error is not None:
            why = describe_error(entry.error)
            raise InspectionFailed(f"pod {uid} could not be inspected: {why}") from entry.error
        return entry.status or PodStatus(uid=uid, name="", namespace="")
