"""The relist table in C, seen from Python: bytes go in, only what changed comes out as objects.

cffi releases the GIL around every call, so a relist may also run in a worker thread; the table itself is
for one thread at a time, and a second one is refused instead of being let in. All meaning is documented in
`trio_kubelet.native.types`, all memory is the table's own (`csrc/table.h`).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from trio_kubelet.native.library import core
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

if core is None:
    raise ImportError("the C extension is not built")
_ffi, _lib = core.ffi, core.lib

# By the numbers of csrc/out.h and csrc/entry.h.
_EVENT_TYPES = (
    PodLifecycleEventType.CONTAINER_STARTED,
    PodLifecycleEventType.CONTAINER_DIED,
    PodLifecycleEventType.CONTAINER_REMOVED,
    PodLifecycleEventType.CONTAINER_CHANGED,
)
_STATES = {
    1: ContainerState.CREATED,
    2: ContainerState.RUNNING,
    3: ContainerState.EXITED,
    4: ContainerState.UNKNOWN,
}

_MANY_OBJECTS = 5_000
_IN_USE = "the relist table is in use by another thread"


class TableSize(NamedTuple):
    """What a table takes up, for benchmarks and the agent's own metrics."""

    entries: int  # containers and sandboxes in the last relist
    bytes: int  # of C memory
    allocations: int  # of C memory since the table was made


class CRelistTable:
    """See `trio_kubelet.native.doors.RelistTableLike`."""

    def __init__(self) -> None:
        table = _lib.tk_table_new(int.from_bytes(os.urandom(8), "little"))
        if table == _ffi.NULL:
            raise MemoryError
        self._table = _ffi.gc(table, _lib.tk_table_free)
        self._fault = _ffi.new("tk_fault *")
        self._answer = _ffi.new("tk_answer *")
        self._totals = _ffi.new("tk_totals *")
        self._lock = threading.Lock()
        self._committed: list[bytes] = []

    def relist(self, sandboxes: ListAnswer, containers: ListAnswer) -> list[PodChange]:
        first, second = _Messages(sandboxes), _Messages(containers)
        with self._use() as table:
            self._check(
                _lib.tk_relist(
                    table,
                    first.messages,
                    first.count,
                    second.messages,
                    second.count,
                    self._fault,
                    self._answer,
                )
            )
            if self._answer.text_count == 0:
                return []
            texts, numbers = self._read_answer()
        changes = _changes(texts, numbers)
        changes.sort(key=itemgetter(0))
        return changes

    def relist_pod(self, uid: str, sandboxes: ListAnswer, containers: ListAnswer) -> PodChange | None:
        first, second, key = _Messages(sandboxes), _Messages(containers), uid.encode()
        with self._use() as table:
            self._check(
                _lib.tk_relist_pod(
                    table,
                    key,
                    len(key),
                    first.messages,
                    first.count,
                    second.messages,
                    second.count,
                    self._fault,
                    self._answer,
                )
            )
            texts, numbers = self._read_answer()
        return next(iter(_changes(texts, numbers)), None)

    def commit(self, uid: str) -> None:
        if self._lock.locked():
            raise RuntimeError(_IN_USE)
        self._committed.append(uid.encode())

    def pod(self, uid: str) -> PodView | None:
        key = uid.encode()
        with self._use() as table:
            self._check(_lib.tk_view_pod(table, key, len(key), self._answer))
            texts, numbers = self._read_answer()
        return _view(uid, iter(texts), iter(numbers)) if numbers else None

    def pods(self) -> Iterator[str]:
        return iter(self._list_pods(running=False))

    def running_pods(self) -> Iterator[str]:
        return iter(self._list_pods(running=True))

    def counts(self) -> RelistCounts:
        with self._use() as table:
            _lib.tk_count(table, self._totals)
            by_state = {state: int(self._totals.containers[i]) for i, state in _STATES.items()}
            return RelistCounts(by_state, int(self._totals.running_pods))

    def size(self) -> TableSize:
        """Entries, bytes and allocations of the table."""
        with self._use() as table:
            _lib.tk_count(table, self._totals)
            totals = self._totals
            return TableSize(int(totals.entries), int(totals.bytes), int(totals.allocations))

    def fail_allocations_after(self, count: int) -> None:
        """After `count` more allocations all fail (MemoryError); negative: none does. In a checked build."""
        with self._use() as table:
            _lib.tk_fail_after(table, count)

    def _list_pods(self, *, running: bool) -> list[str]:
        with self._use() as table:
            self._check(_lib.tk_list_pods(table, running, self._answer))
            return self._read_answer()[0]

    @contextmanager
    def _use(self) -> Iterator[Any]:
        """The C table, up to date with what was committed, for one thread: it would not survive a second.

        Commits wait until here, to be one call for all: every call lets go of the GIL, and where other
        threads compute, getting it back can take a switch interval (5 ms).
        """
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(_IN_USE)
        try:
            if self._committed:
                uids, self._committed = self._committed, []
                ends = _ffi.new("uint64_t[]", list(accumulate(map(len, uids))))
                _lib.tk_commit(self._table, b"".join(uids), ends, len(uids))
            yield self._table
        finally:
            self._lock.release()

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code == _lib.TK_NOMEM:
            raise MemoryError
        fault = self._fault
        name: ListName = "containers" if fault.kind == _lib.TK_CONTAINER else "sandboxes"
        reason = _ffi.string(_lib.tk_reason(code)).decode()
        raise MalformedList(name, int(fault.message), int(fault.offset), reason)

    def _read_answer(self) -> tuple[list[str], list[int]]:
        """Texts and numbers of the answer, see `csrc/out.h`."""
        answer = self._answer
        texts: list[str] = []
        if answer.text_count:
            ends = _ffi.unpack(answer.ends, answer.text_count)
            text = _ffi.buffer(answer.text, ends[-1])[:] if ends[-1] else b""
            texts = [str(text[a:b], "utf-8") for a, b in pairwise([0, *ends])]
        numbers = _ffi.unpack(answer.numbers, answer.number_count) if answer.number_count else []
        return texts, numbers


class _Messages:
    """A list answer as C takes it; keeps the bytes alive."""

    __slots__ = ("_views", "count", "messages")

    def __init__(self, answer: ListAnswer) -> None:
        answers = [answer] if isinstance(answer, bytes) else list(answer)
        self._views: list[Any] = [_ffi.from_buffer("uint8_t[]", message) for message in answers]
        self.count = len(answers)
        self.messages = _ffi.new("tk_text[]", [(view, len(view)) for view in self._views])


def _changes(texts: list[str], numbers: list[int]) -> list[PodChange]:
    with _NoCollection(len(numbers)):
        changes: list[PodChange] = []
        text = number = 0
        while number < len(numbers):
            uid, count = texts[text], numbers[number]
            text, number = text + 1, number + 1
            types = map(_EVENT_TYPES.__getitem__, numbers[number : number + count])
            fields = zip(repeat(uid), types, texts[text : text + count], strict=False)
            # What PodLifecycleEvent._make does, without a call of Python code per event.
            events = tuple(map(tuple.__new__, repeat(PodLifecycleEvent), fields))
            changes.append(PodChange(uid, events))
            text, number = text + count, number + count
        return changes


class _NoCollection:
    """Keeps the garbage collector from running while very many events are made.

    They hold no cycles, but their number makes it look through all of the agent's objects again and
    again: without this, 100,000 events take twice their time.
    """

    __slots__ = ("_pause",)

    def __init__(self, objects: int) -> None:
        self._pause = objects > _MANY_OBJECTS and gc.isenabled()

    def __enter__(self) -> None:
        if self._pause:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._pause:
            gc.enable()


def _view(uid: str, texts: Iterator[str], numbers: Iterator[int]) -> PodView:
    name, namespace = next(texts), next(texts)
    created_at_ns, containers, sandboxes = next(numbers), next(numbers), next(numbers)
    return PodView(
        uid,
        name,
        namespace,
        created_at_ns,
        tuple(_container(texts, numbers) for _ in range(containers)),
        tuple(
            SandboxView(next(texts), _STATES[next(numbers)], next(numbers), next(numbers))
            for _ in range(sandboxes)
        ),
    )


def _container(texts: Iterator[str], numbers: Iterator[int]) -> ListedContainer:
    entry_id, sandbox_id, name, image, image_ref, image_id, spec_hash = (next(texts) for _ in range(7))
    return ListedContainer(
        id=entry_id,
        name=name,
        state=_STATES[next(numbers)],
        created_at_ns=next(numbers),
        sandbox_id=sandbox_id,
        image=image,
        image_ref=image_ref,
        image_id=image_id,
        hash=spec_hash,
    )
