"""Which manifests of a directory are in force: a pure core, given what the directory holds and the time.

A file is not always what its author means: editors move it aside and write it anew, tools write it in
pieces. What would take a running pod away has to stay as it is for a moment before it counts: a removal, a
replacement written in place, a file that cannot be read as a manifest. A new complete manifest counts at
once, and so does a replacement that was moved into place in one step.

A file that cannot be used leaves its last good version in force; it gets one error per content. A directory
that cannot be read changes nothing; one that is gone is an empty one, as with the kubelet.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from trio_kubelet.api.v1 import Pod

REMOVAL_SETTLES = 0.5
"""Seconds a file has to be gone before its pod is removed."""
CONTENT_SETTLES = 1.5
"""Seconds a file written in place has to stay unchanged before it replaces a good one or is called bad."""


class Signature(NamedTuple):
    """What changes when a file's content may have changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A file as read: the pod in it, or why there is none."""

    digest: bytes
    pod: Pod | None = None
    error: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The directory now: its files in order of name. `error`: it could not be read."""

    files: Mapping[str, Signature] = {}
    error: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one file."""

    signature: Signature | None = None  # None: gone
    content: Content | None = None  # as last read
    changed_at: float = -math.inf  # when content or existence last changed
    good: Content | None = None  # the version in force
    moved: bool = False  # the content was moved into place in one step
    told: bytes = b""  # digest of the content whose error was reported


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Something to log about a file; `shadowed_by` names the file whose pod has the same name."""

    path: str
    error: str = ""
    shadowed_by: str = ""
    pod: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of the source."""

    files: Mapping[str, _File] = {}
    delivered: bool = False  # a first set of pods was delivered
    pods: tuple[Pod, ...] = ()
    shadows: frozenset[tuple[str, str]] = frozenset()
    error: str = ""  # of the directory, as last told


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The new state, the pods if they are to be delivered, what to log, when to look again by itself."""

    state: State
    pods: tuple[Pod, ...] | None = None
    reports: tuple[Report, ...] = ()
    wake_at: float = math.inf
    recovered: bool = False  # the directory can be read again


def to_read(state: State, snapshot: Snapshot) -> list[str]:
    """The files whose content has to be read because they may have changed."""
    return [
        path
        for path, signature in snapshot.files.items()
        if (known := state.files.get(path)) is None or known.signature != signature
    ]


def advance(
    state: State, snapshot: Snapshot, contents: Mapping[str, Content], moved: Collection[str], now: float
) -> Step:
    """Takes a snapshot, the contents of the files `to_read` named, and the paths just moved into place."""
    if snapshot.error:
        told = () if state.error == snapshot.error else (Report(path="", error=snapshot.error),)
        return Step(state=msgspec.structs.replace(state, error=snapshot.error), reports=told)
    files: dict[str, _File] = {}
    reports: list[Report] = []
    wake_at, undecided = math.inf, False
    for path in sorted(set(state.files) | set(snapshot.files)):
        seen = _see(state.files.get(path), snapshot.files.get(path), contents.get(path), path in moved, now)
        file, settles_at = _decide(seen, now)
        content = file.content
        if content is not None and content.error and settles_at <= now and file.told != content.digest:
            reports.append(Report(path=path, error=content.error))
            file = msgspec.structs.replace(file, told=content.digest)
        if settles_at > now:
            wake_at = min(wake_at, settles_at)
            undecided = undecided or file.good is None
        if file.signature is not None or file.good is not None:
            files[path] = file
    pods, shadows = _in_force(files)
    reports += [
        Report(path=path, shadowed_by=by, pod=pod)
        for (path, by), pod in shadows.items()
        if (path, by) not in state.shadows
    ]
    # Before the first delivery a file that may yet become a manifest is waited for: leaving its pod out
    # would end the containers that an earlier agent started from it.
    deliver = (not state.delivered and not undecided) or (state.delivered and pods != state.pods)
    return Step(
        state=State(
            files=files,
            delivered=state.delivered or deliver,
            pods=pods,
            shadows=frozenset(shadows),
        ),
        pods=pods if deliver else None,
        reports=tuple(reports),
        wake_at=wake_at,
        recovered=bool(state.error),
    )


def _see(
    known: _File | None, signature: Signature | None, content: Content | None, moved: bool, now: float
) -> _File:
    """The file with what was observed of it just now."""
    file = known or _File()
    if signature is None:
        if file.signature is None:
            return file
        return msgspec.structs.replace(file, signature=None, content=None, changed_at=now, moved=False)
    if content is None:  # unchanged
        return file
    if file.content is not None and file.content.digest == content.digest:
        return msgspec.structs.replace(file, signature=signature, moved=file.moved or moved)
    return msgspec.structs.replace(file, signature=signature, content=content, changed_at=now, moved=moved)


def _decide(file: _File, now: float) -> tuple[_File, float]:
    """The file with the version that is in force now, and when what was seen settles (≤ now: it has)."""
    if file.signature is None:
        settles_at = file.changed_at + REMOVAL_SETTLES if file.good is not None else now
        return (msgspec.structs.replace(file, good=None), now) if settles_at <= now else (file, settles_at)
    content = file.content
    if content is None or content is file.good:
        return file, now
    settles_at = now if file.moved else file.changed_at + CONTENT_SETTLES
    if content.pod is None:
        return file, settles_at
    if file.good is None or settles_at <= now or content.digest == file.good.digest:
        return msgspec.structs.replace(file, good=content), now
    return file, settles_at


def _in_force(files: Mapping[str, _File]) -> tuple[tuple[Pod, ...], dict[tuple[str, str], str]]:
    """The pods in order of their files; of two with one name the first file's. And (file, winner) → name."""
    first: dict[str, tuple[str, Pod]] = {}
    shadows: dict[tuple[str, str], str] = {}
    for path, file in files.items():
        if file.good is None or file.good.pod is None:
            continue
        pod = file.good.pod
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        winner = first.setdefault(name, (path, pod))[0]
        if winner != path:
            shadows[path, winner] = name
    return tuple(pod for _, pod in first.values()), shadows
