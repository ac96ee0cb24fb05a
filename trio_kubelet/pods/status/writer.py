"""Brings the pods' statuses to the API server, and takes pods off it that the node is done with.

A change marks its pod; marked pods are written a bounded number at a time, each by one request at a time and
always with its latest status, so that nothing is written twice or out of order and a pod that changes often
costs one request after another, not a queue of them. What to write follows from what the server shows (as
the source last told, and what it answered us), so a restarted agent begins with nothing to write.

Without an answer everything waits, and one request with back-off tries whether the server is there again. It
may be one pod's own trouble, too (a webhook that hangs), so the first request of another pod need not wait;
when others are answered in between, it is, and that pod waits alone, as after an error about it. The pod that
changed last is tried first: there may be hundreds before it with the same trouble.

Every ten seconds what others have changed on the server is put right (kubelet: `syncBatch`), and so is what a
server put back to an older state has forgotten.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import filterfalse, islice

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.recovery import WAKE_WITHIN
from trio_kubelet.podinfo.updates import is_mirror_of, is_static
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import status_sync_durations
from trio_kubelet.pods.refs import PENDING, is_terminal_phase, pod_path
from trio_kubelet.pods.status.manager import StatusManager, VersionedStatus
from trio_kubelet.pods.status.patch import may_be_deleted, status_patch, status_to_write

log = get_logger(__name__)

PARALLEL = 16
MOST_TROUBLED = 8
"""Of these, those of pods that the server has failed with."""
RECONCILE_PERIOD = 10.0  # seconds
HELD_PAUSE = 1.0
"""Seconds after which a terminal phase that was held back is looked at again."""
PAUSES = Pauses(0.5, 30.0, jitter=0.5)
MOST_ATTEMPTS = 8
"""So many different statuses may have arrived unanswered before the server is asked what it shows."""
BUSY = (429, 503)
BREATH = 0.02
"""Seconds until a status that another mostly follows at once is written: of a pod that is pending, whose
start goes on meanwhile, and of one that is over, but for what the node still has to stop of it.
"""
DEFECT_PAUSE = 30.0
"""Seconds until a status is tried again that the code could make nothing of."""


class _Entry:
    """What is known of one pod's status on the server."""

    __slots__ = ("answer", "attempts", "deleted", "failures", "seen", "uid", "written")

    def __init__(self, uid: str) -> None:
        self.uid = uid  # the pod's or mirror's on the server
        self.written = 0  # version of the last status the server has
        self.answer: v1.PodStatus | None = None  # what it last answered
        self.attempts: list[v1.PodStatus] = []  # sent since then, with no answer
        self.seen: v1.PodStatus | None = None  # what the source showed when that was written
        self.failures = 0
        self.deleted = False

    def may_show(self, source: v1.PodStatus) -> list[v1.PodStatus]:
        """What the server may show; first what the next status is made from: one that is over, if any is."""
        if source in self.attempts:  # that one has arrived, and replaced what was there before
            self.answer = None
            del self.attempts[: self.attempts.index(source) + 1]
        elif self.answer == source:
            self.answer = None
        known = [source] if self.answer is None else [self.answer]
        if self.answer is not None and source is not self.seen:
            known.append(source)  # told since the answer, which does not say that it is newer
            known.sort(key=lambda status: not is_terminal_phase(status.phase))
        return known + self.attempts


class StatusWriter:
    """One task for all statuses; `run` may be started again."""

    def __init__(
        self,
        *,
        client: KubeClient,
        statuses: StatusManager,
        pods: PodManager,
        may_run: Callable[[str], bool],
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        """`may_run`: the workers' `could_have_running_containers`."""
        self._client = client
        self._statuses = statuses
        self._pods = pods
        self._may_run = may_run
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._due: dict[str, None] = {}  # to be written, in this order
        self._later: dict[str, float] = {}  # Trio time at which they are due
        self._busy: set[str] = set()
        self._since: dict[str, float] = {}  # Trio time of the first change that is not written
        self._failures = 0  # requests in a row without an answer
        self._paused_until = -math.inf
        self._asked_until = -math.inf  # the server wants to be left alone until then
        self._answers = 0
        self._suspects: dict[str, int] = {}  # pods without an answer, with how many answers others had then
        self._may_try = False  # one that is no suspect need not wait for the others
        self._trying = ""  # that one
        self._wake = trio.Event()
        self._duration = status_sync_durations(registry)
        statuses.changed.listen(self._changed)

    async def run(self) -> None:
        """Writes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reconcile)
            while True:
                self._wake = trio.Event()
                with trio.move_on_at(self._start_some(nursery)):
                    await self._wake.wait()

    def hurry(self) -> None:
        """The server answers others again: try soon."""
        soon = trio.current_time() + WAKE_WITHIN * random.random()
        self._paused_until = min(self._paused_until, soon)
        self._asked_until = min(self._asked_until, soon)
        self._wake.set()

    @property
    def unwritten(self) -> int:
        """How many pods have a status that the server is not known to have."""
        return len(self._since.keys() | self._busy)

    # What is to be written

    def _changed(self, uid: str) -> None:
        self._since.setdefault(uid, trio.current_time())
        entry = self._entries.get(uid)
        if uid in self._later and entry is not None and entry.failures:
            return  # it waits after an error, and then takes the latest
        if uid not in self._due and self._goes_on(uid):
            self._later.setdefault(uid, trio.current_time() + BREATH)
            self._wake.set()
        else:
            self._mark(uid)

    def _goes_on(self, uid: str) -> bool:
        """Whether the pod's next status is on its way."""
        status = self._statuses.versioned(uid)
        if status is None:
            return False
        phase = status.status.phase
        return phase == PENDING or (is_terminal_phase(phase) and self._may_run(uid))

    def _mark(self, uid: str) -> None:
        self._later.pop(uid, None)
        self._due[uid] = None
        self._wake.set()

    async def _reconcile(self) -> None:
        """Marks what differs without a change on the node, and forgets pods that are gone."""
        while True:
            await trio.sleep(RECONCILE_PERIOD)
            known = self._statuses.all()
            for kept in (self._entries, self._due, self._later, self._since, self._suspects):
                for uid in [uid for uid in kept if uid not in known and uid not in self._busy]:
                    del kept[uid]
            for uid, status in known.items():
                if uid not in self._later and uid not in self._busy and self._differs(uid, status):
                    self._mark(uid)

    def _differs(self, uid: str, status: VersionedStatus) -> bool:
        target = self._target(uid, status)
        if target is None:
            return False
        entry = self._entries.get(uid)
        if entry is None or entry.uid != target.metadata.uid or entry.written < status.version:
            return True
        deletable = not entry.deleted and may_be_deleted(target, target.status, status.finished)
        return deletable or target.status is not entry.seen

    def _target(self, uid: str, status: VersionedStatus) -> v1.Pod | None:
        """The pod on the server whose status this is, as the source last showed it: the pod or its mirror."""
        pod = self._pods.get(uid)
        if pod is None or not is_static(pod):
            return pod
        mirror = self._pods.mirror_of(pod)
        return mirror if mirror is not None and is_mirror_of(mirror, status.pod) else None

    # Writing

    def _start_some(self, nursery: trio.Nursery) -> float:
        """Starts what may be started now; until when there is nothing to do unless something happens."""
        now = trio.current_time()
        for uid in [uid for uid, moment in self._later.items() if moment <= now]:
            self._mark(uid)
        if now < self._asked_until:
            return self._asked_until
        for uid in self._next_ones(now):
            del self._due[uid]
            self._busy.add(uid)
            nursery.start_soon(self._write, uid)
        if now < self._paused_until:
            return self._paused_until
        return min(self._later.values(), default=math.inf)

    def _next_ones(self, now: float) -> list[str]:
        """The pods to be written now."""
        waiting = [uid for uid in self._due if uid not in self._busy]
        if not self._failures:
            free = PARALLEL - len(self._busy)
            others = [*islice(filterfalse(self._is_troubled, waiting), free)]
            left = MOST_TROUBLED - sum(map(self._is_troubled, self._busy))
            room = max(0, min(left, free - len(others)))
            return [*others, *islice(filter(self._is_troubled, waiting), room)]
        unsuspected = [uid for uid in waiting if uid not in self._suspects]
        if unsuspected and self._may_try and not self._trying:
            self._trying = unsuspected[-1]
            return unsuspected[-1:]
        return (unsuspected[-1:] or waiting[:1]) if now >= self._paused_until and not self._busy else []

    def _is_troubled(self, uid: str) -> bool:
        """Whether the server has failed with it, which may take its time each time, as where a webhook of the
        pod's namespace does not answer.
        """
        entry = self._entries.get(uid)
        return entry is not None and entry.failures > 0

    async def _write(self, uid: str) -> None:
        """One pod, once; what goes wrong decides when it is tried again."""
        since = self._since.pop(uid, None)
        try:
            done = await self._sync(uid)
        except APIUnavailable as exc:
            done = False
            self._no_answer(uid, exc)
        except APIError as exc:
            done = self._is_gone(uid, exc)
            if not done:
                self._refused(uid, exc)
        except Exception as exc:  # what one pod's status makes the code raise must not keep back the others
            done = False
            log.error("Unexpected error in writing a pod's status", podUID=uid, err=exc)
            self._later[uid] = trio.current_time() + DEFECT_PAUSE
        finally:
            self._busy.discard(uid)
            if uid == self._trying:
                self._trying = ""
            self._wake.set()
        if since is None:
            return
        if done:
            self._duration.observe(trio.current_time() - since)
        else:
            self._since[uid] = since

    async def _sync(self, uid: str) -> bool:
        """Writes the latest status and deletes the pod if it is its time; whether that was all of it.

        Raises APIError and APIUnavailable.
        """
        status = self._statuses.versioned(uid)
        target = self._target(uid, status) if status is not None else None
        if status is None or target is None:
            return False
        entry = self._entries.get(uid)
        if entry is None or entry.uid != target.metadata.uid:
            entry = self._entries[uid] = _Entry(target.metadata.uid)
        if len(entry.attempts) >= MOST_ATTEMPTS:
            entry.answer = (await self._client.get(pod_path(target), v1.Pod)).status
            entry.attempts.clear()
            self._answered(uid)
        shown = await self._write_status(entry, status, target)
        if not entry.deleted and may_be_deleted(target, shown, status.finished):
            entry.deleted = await self._delete(uid, target)
        entry.failures = 0
        if is_terminal_phase(status.status.phase) and not is_terminal_phase(shown.phase):
            self._later.setdefault(uid, trio.current_time() + HELD_PAUSE)
            return False
        entry.written = status.version
        return True

    async def _write_status(self, entry: _Entry, status: VersionedStatus, target: v1.Pod) -> v1.PodStatus:
        """Patches what differs; what the server shows then."""
        known = entry.may_show(target.status)
        wanted = status_to_write(
            status.pod,
            known[0],
            status.status,
            may_run=self._may_run(status.pod.metadata.uid),
            now=rfc3339(self._clock.now_ns()),
        )
        patch = status_patch(entry.uid, known, wanted)
        if patch is not None:
            try:
                answer = await self._client.patch(f"{pod_path(target)}/status", patch, v1.Pod)
            except (APIUnavailable, APIError) as exc:
                unknown = isinstance(exc, APIUnavailable) or exc.code >= 500
                if unknown and wanted not in entry.attempts:
                    entry.attempts.append(wanted)
                raise
            entry.answer = answer.status
            entry.attempts.clear()
            self._answered(status.pod.metadata.uid)
            log.v(3).info("Status of pod written", pod=target, podUID=entry.uid, version=status.version)
        entry.seen = target.status
        return wanted

    async def _delete(self, uid: str, pod: v1.Pod) -> bool:
        """Takes the pod off the server; another of its name is not touched. Whether the server did it.

        If it says that there is no such pod (any more), the source will soon say so, too; until then this is
        repeated now and then, as a conflict can have other causes.
        """
        try:
            await self._client.delete(pod_path(pod), uid=pod.metadata.uid, grace_seconds=0)
        except APIError as exc:
            if not exc.not_found and not exc.conflict:
                raise
            self._answered(uid)
            return False
        self._answered(uid)
        log.v(3).info("Pod fully terminated and removed from the API server", pod=pod)
        return True

    # When it fails

    def _answered(self, uid: str) -> None:
        self._answers += 1
        self._suspects.pop(uid, None)
        if self._failures:
            log.info("The API server answers again, writing statuses", waiting=len(self._since))
            self._failures = 0
            self._paused_until = -math.inf

    def _no_answer(self, uid: str, exc: APIUnavailable | APIError) -> None:
        """The server is away or wants to be left alone: everything waits. Requests that were under way count
        as one. If others are answered while this pod is not, it waits alone.
        """
        now = trio.current_time()
        before = self._suspects.get(uid)
        self._suspects[uid] = self._answers
        if before is None:  # who was tried does not tell that the others would be answered
            self._may_try = False
        if before is not None and before < self._answers:
            self._hold_back(uid, exc)
            return
        self._due[uid] = None
        if now < max(self._paused_until, self._asked_until):
            return
        if not self._failures:
            log.warning("Statuses of pods wait for the API server", err=exc)
        self._failures += 1
        self._may_try = before is not None
        if isinstance(exc, APIError) and exc.retry_after is not None:
            self._asked_until = now + exc.retry_after * (1 + 0.5 * random.random())
        else:
            self._paused_until = now + PAUSES.after(self._failures, random.random())

    def _is_gone(self, uid: str, exc: APIError) -> bool:
        """Whether the pod is gone, or has a successor: the source will soon tell of it."""
        entry, status = self._entries.get(uid), self._statuses.versioned(uid)
        if not exc.not_found or entry is None or status is None:
            return False
        target = self._target(uid, status)
        if target is not None and not exc.is_about(target.metadata.name):
            return False
        self._answered(uid)
        entry.written = status.version
        entry.seen = target.status if target is not None else None
        return True

    def _refused(self, uid: str, exc: APIError) -> None:
        """An error about one pod."""
        if exc.code in BUSY or exc.code == 401:
            self._no_answer(uid, exc)
            return
        self._answered(uid)
        self._hold_back(uid, exc)

    def _hold_back(self, uid: str, exc: APIUnavailable | APIError) -> None:
        """This pod alone waits."""
        entry, status = self._entries.get(uid), self._statuses.versioned(uid)
        if entry is None or status is None:
            return
        entry.failures += 1
        code, retry_after = (exc.code, exc.retry_after) if isinstance(exc, APIError) else (None, None)
        say = log.error if entry.failures == 1 else log.v(2).error
        say("Failed to update status for pod", pod=status.pod, podUID=uid, code=code, err=exc)
        self._later[uid] = trio.current_time() + max(
            PAUSES.after(entry.failures, random.random()), retry_after or 0.0
        )
