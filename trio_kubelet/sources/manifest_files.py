"""Which manifests of a directory are in force: a pure core, given what the directory holds and the time.

A file is not always what its author means: editors move it aside and write it anew, tools write it in
pieces. What would take a running pod away has to stay as it is for a moment before it counts: a move away,
a replacement written in place, another file that brings a pod of the same name or UID, a file that cannot be
read as a manifest. A new complete manifest counts at once (unless somebody still has it open for
writing), and so does a replacement that was moved into place in one step.

A file that was deleted is gone at once: no author says so by other means, and editors move files away.
Put back at the same moment, it is another file, whose pod starts anew when the old one has ended.

A file that cannot be used leaves its last good version in force; it gets one error per content. A directory
that cannot be read changes nothing; one that is gone is an empty one, as with the kubelet.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from trio_kubelet.api.v1 import Pod

REMOVAL_SETTLES: Final = 0.5
"""Seconds a file that nobody was seen to delete has to be gone before its pod is removed."""
CONTENT_SETTLES: Final = 1.5
"""Seconds a file written in place has to stay unchanged before it replaces a version or is called bad."""
OPEN_SETTLES: Final = 10.0
"""The same for a file that somebody was seen to write and still has open: a slow upload pauses for longer."""
FIRST_SET_WITHIN: Final = 5.0
"""Seconds after which the first set is delivered even if a file of the directory never settles."""


class Signature(NamedTuple):
    """What changes when a file's content may have changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A file as read: the pod in it, or why there is none.

    again: the reading failed and not the manifest, so it is to be read again although it did not change.
    """

    digest: bytes
    pod: Pod | None = None
    error: str = ""
    again: bool = False


class DirectorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The directory now: its files by path, and paths that are no files with the reason.

    error: the directory could not be read. A path in `skipped` whose entry is `None` in `files` exists,
    but nothing is known of it, so that its pod stays.
    """

    files: Mapping[str, Signature | None] = {}
    skipped: Mapping[str, str] = {}
    error: str = ""
    single: bool = False  # the source is one file and not a directory
    missing: bool = False  # there is no such path


class Writes(NamedTuple):
    """What the events say about files: moved into place in one step, open with a write going on, deleted."""

    moved_in: Collection[str] = ()
    unfinished: Collection[str] = ()
    deleted: Collection[str] = ()


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one file."""

    signature: Signature | None = None
    present: bool = False
    content: Content | None = None  # as last read
    changed_at: float = -math.inf  # when content or existence last changed
    good: Content | None = None  # the version in force
    good_since: float = -math.inf
    moved: bool = False  # the content was moved into place in one step
    unfinished: bool = False  # somebody is writing it
    told: bytes = b""  # digest of the content whose error was reported


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something to log about a file; `shadowed_by` names the file whose pod has the same name or UID."""

    path: str
    error: str = ""
    shadowed_by: str = ""
    pod: str = ""


class DirectoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of the source."""

    files: Mapping[str, _File] = {}
    began_at: float = math.inf  # the first look
    delivered: bool = False  # a first set of pods was delivered
    pods: tuple[Pod, ...] = ()
    owners: Mapping[str, str] = {}  # names and UIDs of pods to the file they come from
    told: frozenset[tuple[str, str]] = frozenset()  # (file, reason or shadowing file) already reported
    error: str = ""  # of the directory, as last told


class SettlingStep(msgspec.Struct, frozen=True, kw_only=True):
    """The new state, the sets of pods to be delivered in turn, what to log, when to look again by itself."""

    state: DirectoryState
    sets: tuple[tuple[Pod, ...], ...] = ()
    reports: tuple[FileReport, ...] = ()
    wake_at: float = math.inf
    recovered: bool = False  # the directory can be read again


def to_read(state: DirectoryState, snapshot: DirectorySnapshot) -> list[str]:
    """The files whose content has to be read because they may have changed."""
    return [
        path
        for path, signature in snapshot.files.items()
        if signature is not None
        and (
            (known := state.files.get(path)) is None
            or known.signature != signature
            or (known.content is not None and known.content.again)
        )
    ]


def advance(
    state: DirectoryState,
    snapshot: DirectorySnapshot,
    contents: Mapping[str, Content],
    writes: Writes,
    now: float,
) -> SettlingStep:
    """Takes a snapshot, the contents of the files `to_read` named, and what events said meanwhile.

    A file that was deleted and has come back makes two steps of it: first it is gone, then it is new.
    """
    if snapshot.error:
        return _advance(state, snapshot, contents, writes, now)
    back = {
        path: known
        for path, known in state.files.items()
        if path in writes.deleted
        and known.good is not None
        # What has the signature that was seen last is what came after the deletion.
        and (signature := snapshot.files.get(path)) is not None
        and known.signature != signature
    }
    first = SettlingStep(state=state)
    if back and state.delivered:
        # Nothing but the deletions: what else there is to be seen belongs to the second step.
        left = {path: known for path, known in state.files.items() if path not in back}
        owners, _ = _owners(left, state.owners, now)
        pods = tuple(_pod(left[path]) for path in sorted({*owners.values()}))
        state = msgspec.structs.replace(state, files=left, owners=owners, pods=pods)
        first = SettlingStep(state=state, sets=(pods,) if pods != first.state.pods else ())
    second = _advance(state, snapshot, contents, writes, now)
    return msgspec.structs.replace(second, sets=first.sets + second.sets)


def _advance(
    state: DirectoryState,
    snapshot: DirectorySnapshot,
    contents: Mapping[str, Content],
    writes: Writes,
    now: float,
) -> SettlingStep:
    """One step; of a file that was deleted the snapshot's is the successor, or there is none."""
    if snapshot.error:
        told = () if state.error == snapshot.error else (FileReport(path="", error=snapshot.error),)
        return SettlingStep(state=msgspec.structs.replace(state, error=snapshot.error), reports=told)
    files: dict[str, _File] = {}
    reports: list[FileReport] = []
    wake_at, undecided = math.inf, False
    for path in sorted(set(state.files) | set(snapshot.files)):
        file = _see(state.files.get(path, _File()), path, snapshot, contents.get(path), writes, now)
        file, settles_at = _decide(file, now)
        if settles_at > now:
            wake_at = min(wake_at, settles_at)
            undecided = undecided or file.good is None
        elif file.content is not None and file.content.error and file.told != file.content.digest:
            reports.append(FileReport(path=path, error=file.content.error))
            file = msgspec.structs.replace(file, told=file.content.digest)
        if file.present or file.good is not None:
            files[path] = file
    owners, takes_over_at = _owners(files, state.owners, now)
    pods = tuple(_pod(files[path]) for path in sorted({*owners.values()}))
    standing = {
        (path, reason): FileReport(path=path, error=reason) for path, reason in snapshot.skipped.items()
    }
    standing.update(_shadows(files, owners, now))
    began_at = min(state.began_at, now)
    # Before the first delivery a file that may yet become a manifest is waited for: leaving its pod out
    # would end the containers that an earlier agent started from it.
    ready = state.delivered or not undecided or now >= began_at + FIRST_SET_WITHIN
    if snapshot.single and not pods:
        ready = state.delivered  # of a source that is one bad file nothing is known, as with the kubelet
    deliver = ready and (not state.delivered or pods != state.pods)
    return SettlingStep(
        state=DirectoryState(
            files=files,
            began_at=began_at,
            delivered=state.delivered or deliver,
            pods=pods,
            owners=owners,
            told=frozenset(standing),
        ),
        sets=(pods,) if deliver else (),
        reports=(*reports, *(report for key, report in standing.items() if key not in state.told)),
        wake_at=min(wake_at, takes_over_at),
        recovered=bool(state.error),
    )


def _see(
    file: _File, path: str, snapshot: DirectorySnapshot, content: Content | None, writes: Writes, now: float
) -> _File:
    """The file with what was observed of it just now."""
    if path not in snapshot.files:
        deleted = path in writes.deleted
        if not file.present and not deleted:
            return file
        gone_at = -math.inf if deleted else now
        return msgspec.structs.replace(
            file, present=False, signature=None, content=None, changed_at=gone_at, moved=False
        )
    file = msgspec.structs.replace(file, present=True, unfinished=path in writes.unfinished)
    if content is None:  # unchanged, or nothing to be known of it
        return file
    signature, moved = snapshot.files[path], path in writes.moved_in
    if file.content is not None and file.content.digest == content.digest:
        return msgspec.structs.replace(file, signature=signature, moved=file.moved or moved)
    return msgspec.structs.replace(file, signature=signature, content=content, changed_at=now, moved=moved)


def _decide(file: _File, now: float) -> tuple[_File, float]:
    """The file with the version that is in force now, and when what was seen settles (≤ now: it has)."""
    if not file.present:
        settles_at = file.changed_at + REMOVAL_SETTLES if file.good is not None else now
        return (msgspec.structs.replace(file, good=None), now) if settles_at <= now else (file, settles_at)
    content = file.content
    if content is None or content is file.good:
        return file, now
    settles_at = file.changed_at + (OPEN_SETTLES if file.unfinished else CONTENT_SETTLES)
    if file.moved:
        settles_at = now
    if content.pod is None:
        return file, settles_at
    new = file.good is None and not file.unfinished
    same = file.good is not None and content.digest == file.good.digest
    if not (new or same or settles_at <= now):
        return file, settles_at
    since = file.good_since if same else now
    return msgspec.structs.replace(file, good=content, good_since=since), now


def _pod(file: _File) -> Pod:
    assert file.good is not None
    assert file.good.pod is not None
    return file.good.pod


def _claims(pod: Pod) -> tuple[str, str]:
    """What a pod has to itself: its name and its UID, which is a manifest's own if it names one."""
    metadata = pod.metadata
    return f"{metadata.namespace}/{metadata.name}", metadata.uid


def _owners(
    files: Mapping[str, _File], before: Mapping[str, str], now: float
) -> tuple[dict[str, str], float]:
    """Which file each pod comes from, and when that may change by itself.

    Of two files with a pod of one name or UID the first counts, but it takes over from another one only after
    it has settled: an editor's copy may be gone in a moment.
    """
    owners: dict[str, str] = {}
    contested_until = math.inf
    for path, file in files.items():  # in order of path
        if file.good is None:
            continue
        claims = _claims(_pod(file))
        settles_at = file.good_since + CONTENT_SETTLES
        rivals = {before[claim] for claim in claims if claim in before} - {path}
        if settles_at > now and any(_has_any(files.get(rival), claims) for rival in rivals):
            contested_until = min(contested_until, settles_at)
        elif owners.keys().isdisjoint(claims):
            owners.update(dict.fromkeys(claims, path))
    return owners, contested_until


def _has_any(file: _File | None, claims: Collection[str]) -> bool:
    return file is not None and file.good is not None and not set(_claims(_pod(file))).isdisjoint(claims)


def _shadows(
    files: Mapping[str, _File], owners: Mapping[str, str], now: float
) -> dict[tuple[str, str], FileReport]:
    """Files whose pod is left out because another file brings it, too, once that is settled."""
    shadows: dict[tuple[str, str], FileReport] = {}
    for path, file in files.items():
        if file.good is None or not file.present or file.good_since + CONTENT_SETTLES > now:
            continue
        for claim in _claims(_pod(file)):
            if (owner := owners.get(claim, path)) != path:
                shadows[path, owner] = FileReport(path=path, shadowed_by=owner, pod=claim)
                break
    return shadows
