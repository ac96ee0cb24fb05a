"""The relist table in plain Python: what the C table must agree with, and its stand-in without a compiler.

Follows the kubelet's generic PLEG (`pleg/generic.go`) and `GetPods`: a pod's old record is what was
last committed, its current record what the last relist showed; events come from the difference of the
two. A record is kept per (pod uid, id), as one id can stand under two pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from trio_kubelet.native import pure_wire as wire
from trio_kubelet.native.pure_wire import ListEntry, WireError
from trio_kubelet.native.types import (
    ListAnswer,
    ListedContainer,
    ListName,
    MalformedList,
    PodChange,
    PodView,
    RelistCounts,
    SandboxView,
)
from trio_kubelet.observed.types import ContainerState, PodLifecycleEvent, PodLifecycleEventType

_STARTED = PodLifecycleEventType.CONTAINER_STARTED
_DIED = PodLifecycleEventType.CONTAINER_DIED
_REMOVED = PodLifecycleEventType.CONTAINER_REMOVED
_CHANGED = PodLifecycleEventType.CONTAINER_CHANGED


def pleg_state(state: ContainerState) -> ContainerState:
    """The state events are made from: created counts as unknown."""
    return ContainerState.UNKNOWN if state is ContainerState.CREATED else state


def event_types(old: ContainerState | None, new: ContainerState | None) -> tuple[PodLifecycleEventType, ...]:
    """What happened between two states, None being non-existent (kubelet: `generateEvents`)."""
    if old is new:
        return ()
    if new is ContainerState.RUNNING:
        return (_STARTED,)
    if new is ContainerState.EXITED:
        return (_DIED,)
    if new is not None:
        return (_CHANGED,)
    return (_REMOVED,) if old is ContainerState.EXITED else (_DIED, _REMOVED)


def rank(entry: ListEntry) -> tuple[bool, int, int, bytes]:
    """Sort key: containers before sandboxes, then the newest first, then by id (kubelet's order)."""
    return (not entry.is_container, -entry.attempt, -entry.created_at, entry.id)


@dataclass(slots=True)
class _Record:
    """One container or sandbox of a pod."""

    seen: ListEntry  # as last listed, kept when it vanishes until that is committed
    present: bool = True  # in the last relist
    old: ContainerState | None = None  # committed state for events
    old_is_container: bool = False

    @property
    def new(self) -> ContainerState | None:
        return pleg_state(self.seen.state) if self.present else None

    def event_rank(self) -> tuple[bool, bool, int, int, bytes]:
        is_container = self.seen.is_container if self.old is None else self.old_is_container
        return (self.old is None, not is_container, *rank(self.seen)[1:])


@dataclass(slots=True)
class _Pod:
    records: dict[bytes, _Record] = field(default_factory=dict)

    def present(self) -> list[ListEntry]:
        return sorted((r.seen for r in self.records.values() if r.present), key=rank)


def _same_life(a: ListEntry, b: ListEntry) -> bool:
    return (a.is_container, a.created_at, a.attempt) == (b.is_container, b.created_at, b.attempt)


class PureRelistTable:
    """See `trio_kubelet.native.doors.RelistTableLike`."""

    def __init__(self) -> None:
        self._pods: dict[bytes, _Pod] = {}

    def relist(self, sandboxes: ListAnswer, containers: ListAnswer) -> list[PodChange]:
        found: dict[bytes, dict[bytes, ListEntry]] = {}
        for entry in _entries(sandboxes, containers):
            _take(found.setdefault(entry.uid, {}), entry)
        for uid in self._pods.keys() | found.keys():
            self._set_current(uid, found.get(uid, {}))
        changes = (self._change(uid) for uid in sorted(self._pods))
        return [change for change in changes if change is not None]

    def relist_pod(self, uid: str, sandboxes: ListAnswer, containers: ListAnswer) -> PodChange | None:
        key = uid.encode()
        found: dict[bytes, ListEntry] = {}
        for entry in _entries(sandboxes, containers):
            if entry.uid == key:
                _take(found, entry)
        self._set_current(key, found)
        return self._change(key)

    def commit(self, uid: str) -> None:
        key = uid.encode()
        pod = self._pods.get(key)
        if pod is None:
            return
        for entry_id, record in list(pod.records.items()):
            record.old = record.new
            record.old_is_container = record.seen.is_container
            if not record.present:
                del pod.records[entry_id]
        if not pod.records:
            del self._pods[key]

    def pod(self, uid: str) -> PodView | None:
        pod = self._pods.get(uid.encode())
        entries = pod.present() if pod is not None else []
        return _view(uid, entries) if entries else None

    def pods(self) -> Iterator[str]:
        return iter([uid.decode() for uid, pod in self._pods.items() if pod.present()])

    def running_pods(self) -> Iterator[str]:
        running = ContainerState.RUNNING
        return iter(
            [
                uid.decode()
                for uid, pod in self._pods.items()
                if any(e.state is running for e in pod.present())
            ]
        )

    def counts(self) -> RelistCounts:
        states: Counter[ContainerState] = Counter(dict.fromkeys(ContainerState, 0))
        running_pods = 0
        for pod in self._pods.values():
            entries = pod.present()
            states.update(e.state for e in entries if e.is_container)
            running_pods += any(e.state is ContainerState.RUNNING for e in entries if not e.is_container)
        return RelistCounts(dict(states), running_pods)

    def _set_current(self, uid: bytes, found: dict[bytes, ListEntry]) -> None:
        pod = self._pods.setdefault(uid, _Pod())
        for record in pod.records.values():
            record.present = False
        for entry in found.values():
            record = pod.records.setdefault(entry.id, _Record(entry))
            record.present = True
            if _same_life(record.seen, entry) and not entry.replaces_another:
                record.seen.state = entry.state
            else:
                record.seen = entry
        # What appeared and vanished without a commit in between leaves nothing behind.
        for entry_id in [i for i, r in pod.records.items() if not r.present and r.old is None]:
            del pod.records[entry_id]
        if not pod.records:
            del self._pods[uid]

    def _change(self, uid: bytes) -> PodChange | None:
        pod = self._pods.get(uid)
        if pod is None:
            return None
        name = uid.decode()
        events = tuple(
            PodLifecycleEvent(name, event, record.seen.id.decode())
            for record in sorted(pod.records.values(), key=_Record.event_rank)
            for event in event_types(record.old, record.new)
        )
        return PodChange(name, events) if events else None


def _entries(sandboxes: ListAnswer, containers: ListAnswer) -> list[ListEntry]:
    """All entries of both lists, or MalformedList."""
    found: list[ListEntry] = []
    answers: tuple[tuple[ListName, ListAnswer], ...] = (("sandboxes", sandboxes), ("containers", containers))
    for name, answer in answers:
        for index, message in enumerate([answer] if isinstance(answer, bytes) else answer):
            try:
                found.extend(wire.read_list(message, containers=name == "containers"))
            except WireError as err:
                raise MalformedList(name, index, err.offset, err.reason) from None
    return found


def _take(found: dict[bytes, ListEntry], entry: ListEntry) -> None:
    """Of several entries with one id the kubelet finds the first in its order, of equals any: the first."""
    best = found.get(entry.id)
    if best is None:
        found[entry.id] = entry
    elif rank(entry) < rank(best):
        entry.replaces_another = True
        found[entry.id] = entry


def _view(uid: str, entries: list[ListEntry]) -> PodView:
    """The pod of these entries, which stand in the kubelet's order."""
    sandboxes = [e for e in entries if not e.is_container]
    named = sandboxes[0] if sandboxes else entries[0]
    return PodView(
        uid=uid,
        name=named.pod_name.decode(),
        namespace=named.pod_namespace.decode(),
        created_at_ns=sandboxes[-1].created_at if sandboxes else 0,
        containers=tuple(
            ListedContainer(
                id=e.id.decode(),
                name=e.name.decode(),
                state=e.state,
                created_at_ns=e.created_at,
                sandbox_id=e.sandbox_id.decode(),
                image=e.image.decode(),
                image_ref=e.image_ref.decode(),
                image_id=(e.image_id or e.image_ref).decode(),
                hash=e.hash.decode(),
            )
            for e in entries
            if e.is_container
        ),
        sandboxes=tuple(SandboxView(e.id.decode(), e.state, e.created_at, e.attempt) for e in sandboxes),
    )
