"""The file source: static pods from a directory of manifests, or from one file.

The task looks at the directory when inotify says that something happened, when something that was seen has
settled, and every `period` seconds in any case, because events can be lost and some file systems have none.
What is in force is decided by `manifest_files`; this module only lists, reads and tells.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable

import trio

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.log import get_logger
from trio_kubelet.sources.inotify import DirectoryWatch, WatchError
from trio_kubelet.sources.manifest import MAX_MANIFEST_BYTES, Origin, static_pod
from trio_kubelet.sources.manifest_files import Content, Report, Signature, Snapshot, State, advance, to_read
from trio_kubelet.sources.types import FILE_SOURCE, PodOperation, PodUpdate

log = get_logger(__name__)

REARM_PERIOD = 1.0
"""Seconds between attempts to watch a directory that is not there."""
GATHER = 0.01
"""Seconds to wait after an event for those that belong to it."""


class FileSource:
    """Delivers a SET of static pods whenever what is in force changes."""

    def __init__(
        self, path: str, node_name: str, period: float, send: trio.MemorySendChannel[PodUpdate]
    ) -> None:
        self._path = os.path.abspath(path)
        self._node_name = node_name
        self._period = period
        self._send = send
        self._state = State()
        self._watch: DirectoryWatch | None = None

    async def run(self) -> None:
        """Watches until cancelled. May be started again after an error; it goes on where it was."""
        moved: Collection[str] = ()
        try:
            while True:
                self._arm()
                wake_at = await self._look(moved)
                moved = await self._wait(wake_at)
        finally:
            self._disarm()

    async def _look(self, moved: Collection[str]) -> float:
        """One look; returns when the next one is due (Trio time)."""
        snapshot = await trio.to_thread.run_sync(list_manifests, self._path)
        paths = to_read(self._state, snapshot)
        contents = await trio.to_thread.run_sync(self._read_all, paths) if paths else {}
        now = trio.current_time()
        step = advance(self._state, snapshot, contents, moved, now)
        self._state = step.state
        if step.recovered:
            log.info("Manifests can be read again", path=self._path)
        for report in step.reports:
            self._tell(report)
        if step.pods is not None:
            await self._send.send(PodUpdate(PodOperation.SET, FILE_SOURCE, step.pods))
        return min(step.wake_at, now + self._period)

    async def _wait(self, wake_at: float) -> Collection[str]:
        """Waits for events or the time; returns the files that were moved into place meanwhile."""
        if self._watch is None:
            wake_at = min(wake_at, trio.current_time() + REARM_PERIOD)
            await trio.sleep_until(wake_at)
            return ()
        with trio.move_on_at(wake_at):
            await self._watch.wait()
            await trio.sleep(GATHER)
        changes = self._watch.take()
        if changes.lost:
            self._disarm()
        return changes.moved_in

    def _arm(self) -> None:
        if self._watch is None:
            try:
                self._watch = DirectoryWatch(self._path)
            except (WatchError, OSError) as exc:
                log.v(4).info("Cannot watch manifests, looking now and then", path=self._path, err=exc)

    def _disarm(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _read_all(self, paths: Iterable[str]) -> dict[str, Content]:
        return {path: self._read(path) for path in paths}

    def _read(self, path: str) -> Content:
        try:
            data = read_manifest(path)
        except OSError as exc:
            reason = f"cannot be read: {exc.strerror or exc}"
            return Content(digest=reason.encode(), error=reason)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        try:
            return Content(digest=digest, pod=static_pod(data, Origin(self._node_name, FILE_SOURCE, path)))
        except ManifestError as exc:
            return Content(digest=digest, error=str(exc))

    def _tell(self, report: Report) -> None:
        if report.shadowed_by:
            log.warning(
                "Two manifests have the same pod, the first name wins",
                pod=report.pod,
                used=report.shadowed_by,
                ignored=report.path,
            )
        else:
            log.error(
                "Cannot use manifest, the last good version stays in force",
                path=report.path or self._path,
                err=report.error,
            )


def list_manifests(path: str) -> Snapshot:
    """The manifests of a directory in order of name, or the one file. Blocking.

    Hidden files and what is neither a file nor a link to one are left out; a path that does not exist is an
    empty source, as with the kubelet.
    """
    try:
        if not os.path.isdir(path):
            return Snapshot(files=_signed([path]))
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        return Snapshot(files=_signed(os.path.join(path, name) for name in names))
    except FileNotFoundError:
        return Snapshot()
    except OSError as exc:
        return Snapshot(error=f"cannot be read: {exc.strerror or exc}")


def _signed(paths: Iterable[str]) -> dict[str, Signature]:
    files: dict[str, Signature] = {}
    for path in paths:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            files[path] = Signature(
                found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            )
    return files


def read_manifest(path: str) -> bytes:
    """A manifest's bytes. Raises OSError, also for one that is too large. Blocking."""
    with open(path, "rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise OSError(0, f"larger than {MAX_MANIFEST_BYTES} bytes")
    return data
