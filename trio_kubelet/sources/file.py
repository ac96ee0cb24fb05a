"""The file source: static pods from a directory of manifests, or from one file.

The task looks at the directory when inotify says that something happened, when something that was seen has
settled, and every `period` seconds in any case, because events can be lost and some file systems have none.
What is in force is decided by `manifest_files`; this module only lists, reads and tells. Files are looked at
in a thread, which is left behind when a file system does not answer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import msgspec
import trio

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules
from trio_kubelet.common.go_words import os_words
from trio_kubelet.common.inotify import Changes, DirectoryWatch, WatchError
from trio_kubelet.common.lanes import MANIFESTS, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import read_small
from trio_kubelet.native.hashes import payload_digest
from trio_kubelet.podinfo.updates import FILE_SOURCE, PodOperation, PodUpdate
from trio_kubelet.sources.manifest_files import (
    Content,
    DirectorySnapshot,
    DirectoryState,
    FileReport,
    Signature,
    Writes,
    advance,
    to_read,
)

log = get_logger(__name__)

REARM_PERIOD: Final = 1.0
"""Seconds between attempts to watch a directory that is not there."""
GATHER: Final = 0.01
"""Seconds to wait after an event for those that belong to it."""
_NO_EVENTS: Final = Changes(
    any=False, moved_in=frozenset(), unfinished=frozenset(), deleted=frozenset(), lost=False
)


class _Look(NamedTuple):
    """What a thread brings back from the file system."""

    watch: DirectoryWatch | None
    snapshot: DirectorySnapshot
    contents: dict[str, Content]


class FileSource:
    """Delivers a SET of static pods whenever what is in force changes."""

    def __init__(
        self,
        path: str,
        node_name: str,
        period: float,
        send: trio.MemorySendChannel[PodUpdate],
        *,
        rules: PodRules = DEFAULT_RULES,
    ) -> None:
        self._path = os.path.abspath(path)
        self._given = path.rstrip("/") or "/"
        self._node_name = node_name
        self._rules = rules
        self._period = period
        self._send = send
        self._state = DirectoryState()
        self._watch: DirectoryWatch | None = None
        self._missing = False

    async def run(self) -> None:
        """Watches until cancelled. May be started again after an error; it goes on where it was."""
        changes = _NO_EVENTS
        try:
            while True:
                wake_at, later = await self._look(changes)
                changes = await self._wait(wake_at)
                changes = changes._replace(
                    moved_in=changes.moved_in | later.moved_in, deleted=changes.deleted | later.deleted
                )
        finally:
            self._disarm()

    async def _look(self, changes: Changes) -> tuple[float, Changes]:
        """One look; returns when the next one is due (Trio time) and what happened during this one."""
        began = trio.current_time()
        look = _Look(self._watch, DirectorySnapshot(error="the file system does not answer"), {})
        with contextlib.suppress(WorkHangs):
            look = await MANIFESTS.run(
                self._look_at_files,
                self._watch,
                self._state,
                owner=self._path,
                discard=partial(_forget, self._watch),
            )
        if look.watch is not self._watch:
            self._disarm()
            self._watch = look.watch
        now = trio.current_time()
        # A write that began while the files were read makes its file unfinished.
        later = self._watch.take() if self._watch is not None else _NO_EVENTS
        writes = Writes(
            moved_in=changes.moved_in | later.moved_in,
            unfinished=later.unfinished,
            deleted=changes.deleted | later.deleted,
        )
        step = advance(self._state, look.snapshot, look.contents, writes, now)
        if look.snapshot.missing != self._missing:
            self._missing = look.snapshot.missing
            words = "do not exist, so there are none" if self._missing else "exist now"
            log.info(f"Manifests of static pods {words}", path=self._path)
        if step.recovered:
            log.info("Manifests can be read again", path=self._path)
        for report in step.reports:
            self._tell(report)
        for pods in step.sets:
            await self._send.send(PodUpdate(PodOperation.SET, FILE_SOURCE, pods))
        self._state = step.state
        if later.lost:
            self._disarm()
        if later.any:
            # Look again, but leave a storm of events some time between the looks.
            return now + GATHER + 2 * (now - began), later
        return min(step.wake_at, now + self._period), later

    async def _wait(self, wake_at: float) -> Changes:
        """Waits for events or the time; returns what happened meanwhile."""
        if self._watch is None:
            await trio.sleep_until(min(wake_at, trio.current_time() + REARM_PERIOD))
            return _NO_EVENTS
        with trio.move_on_at(wake_at):
            await self._watch.wait()
            await trio.sleep(GATHER)
        changes = self._watch.take()
        if changes.lost:
            self._disarm()
        return changes

    def _disarm(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # Blocking, in a thread that may be left behind: it changes nothing of this object.

    def _look_at_files(self, watch: DirectoryWatch | None, state: DirectoryState) -> _Look:
        """What the directory holds, and the contents that may have changed; the watch comes first."""
        watch = self._armed(watch)
        snapshot = list_manifests(self._path)
        contents = {path: self._read(path, state) for path in to_read(state, snapshot)}
        return _Look(watch, snapshot, contents)

    def _armed(self, watch: DirectoryWatch | None) -> DirectoryWatch | None:
        if watch is not None and watch.is_current():
            return watch
        try:
            return DirectoryWatch(self._path)
        except (WatchError, OSError) as exc:
            log.v(4).info("Cannot watch manifests, looking now and then", path=self._path, err=exc)
            return None

    def _read(self, path: str, state: DirectoryState) -> Content:
        # Few nodes of a cluster have static pods, and with them comes all that checks a manifest.
        from trio_kubelet.sources.manifest import MAX_MANIFEST_BYTES, Origin, as_wanted, static_pod

        try:
            data = read_small(path, MAX_MANIFEST_BYTES)
        except OSError as exc:
            reason = f"cannot be read: {os_words(exc)}"
            return Content(digest=reason.encode(), error=reason, again=True)
        digest = payload_digest(data)
        known = state.files.get(path)
        if known is not None and known.content is not None and known.content.digest == digest:
            return known.content
        try:
            where = self._location(path)
            origin = Origin(self._node_name, FILE_SOURCE, where, self._rules)
            return Content(digest=digest, pod=as_wanted(static_pod(data, origin)))
        except ManifestError as exc:
            return Content(digest=digest, error=str(exc))
        except Exception as exc:  # what one manifest makes the code raise must not keep back the others
            log.error("Unexpected error in a manifest", path=path, err=exc)
            return Content(digest=digest, error=f"unexpected {type(exc).__name__}: {exc}")

    def _location(self, path: str) -> str:
        """What a pod's UID is made from: the path as the kubelet builds it from the one it was given.

        That may be relative.
        """
        if path == self._path:
            return self._given
        name = os.path.basename(path)
        return os.path.join(os.path.normpath(self._given), name) if self._given != "." else name

    def _tell(self, report: FileReport) -> None:
        if report.shadowed_by:
            log.warning(
                "Two manifests have the same pod, the first name wins",
                pod=report.pod,
                used=report.shadowed_by,
                ignored=report.path,
            )
        elif report.path:
            log.error(
                "Cannot use manifest, the last good version stays in force",
                path=report.path,
                err=report.error,
            )
        else:
            log.error("Cannot read manifests, the pods stay as they are", path=self._path, err=report.error)


def _forget(watch: DirectoryWatch | None, look: _Look) -> None:
    """Closes what a look has made beside the watch there was."""
    if look.watch is not None and look.watch is not watch:
        look.watch.close()


def list_manifests(path: str) -> DirectorySnapshot:
    """The manifests of a directory, or the one file. Blocking.

    Hidden files are left out, and so is what is neither a file nor a link to one, with a reason; a path
    that does not exist is an empty source, as with the kubelet.
    """
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return msgspec.structs.replace(_signed([path]), single=True)
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return DirectorySnapshot(missing=True)
    except OSError as exc:
        return DirectorySnapshot(error=f"cannot be read: {os_words(exc)}")
    return _signed(os.path.join(path, name) for name in names)


def _signed(paths: Iterable[str]) -> DirectorySnapshot:
    files: dict[str, Signature | None] = {}
    skipped: dict[str, str] = {}
    for path in paths:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            files[path] = None
            skipped[path] = f"cannot be read: {os_words(exc)}"
            continue
        if stat.S_ISREG(found.st_mode):
            files[path] = Signature(
                found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            )
        else:
            skipped[path] = "is no regular file"
    return DirectorySnapshot(files=files, skipped=skipped)
