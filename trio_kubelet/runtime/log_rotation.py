"""Rotates the logs of running containers (kubelet: `ContainerLogManager`).

A log that has grown too large is renamed with a time stamp and the runtime opens a new one; at the
next rotation the renamed one is compressed, so that a log collector has had the time to read it to
its end. What a crash may leave behind (temporary files, a file beside its own archive) is cleaned
up before the next rotation of that log.

Which logs there are is known from the last look at each pod; the runtime is asked only about a log that has
grown too large. (The kubelet asks for the status of every container in every round, which on a node with
thousands of containers costs more than everything else it does.)
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import trio

from trio_kubelet.common.clock import NANOSECONDS, Clock, sleep_with_others
from trio_kubelet.common.each import ASIDE, LENT
from trio_kubelet.common.lanes import LOGS, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.places import Places
from trio_kubelet.cri.errors import CRIError, NotFound, Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, PodStatus

log = get_logger(__name__)

_ARCHIVE = ".gz"
_TEMPORARY = ".tmp"
_FASTEST = 1  # of gzip's levels; the highest takes several times as long for a few percent
_MOST_COMPRESSED = 2 << 30
"""Bytes of a rotated file, or twice what a log may have, if that is more. A larger one, from a container
that writes faster than can be compressed in the time that a thread has, is removed.
"""

_SIZES = "sizes of logs"

Observed = Callable[[], Iterable[PodStatus]]
"""Tells what is known of all pods."""


class RotationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration `containerLogMaxSize` (bytes; negative: no rotation), `containerLogMaxFiles`
    (at least 2), `containerLogMaxWorkers`, `containerLogMonitorInterval` (seconds).
    """

    max_size: int = 10 << 20
    max_files: int = 5
    workers: int = 1
    interval: float = 10.0


class RotationPlan(msgspec.Struct, frozen=True):
    """What to do with the rotated files of a log before it is rotated itself."""

    remove: tuple[str, ...]
    compress: tuple[str, ...]


def plan_rotation(rotated: Iterable[str], max_files: int) -> RotationPlan:
    """Sorts out the rotated files of one log. Pure.

    Temporary files and files that have been compressed go; then the oldest, so that with the log
    itself and the file it is about to become there are no more than `max_files`.
    """
    names = set(rotated)
    useless = {n for n in names if n.endswith(_TEMPORARY) or n + _ARCHIVE in names}
    kept = sorted(names - useless)
    excess = kept[: max(0, len(kept) - max(0, max_files - 2))]
    rest = kept[len(excess) :]
    return RotationPlan(
        (*sorted(useless), *excess), tuple(name for name in rest if not name.endswith(_ARCHIVE))
    )


class LogRotator:
    """Keeps the logs of running containers small."""

    def __init__(self, runtime: RuntimeService, clock: Clock, settings: RotationSettings) -> None:
        self._runtime = runtime
        self._clock = clock
        self._settings = settings
        self._places = Places(settings.workers, lent=LENT, aside=ASIDE)
        self._under_way: set[str] = set()  # IDs of containers

    async def run(self, observed: Observed) -> None:
        """Rotates for ever; failures are logged and tried again in the next round, which waits for none."""
        if self._settings.max_size < 0:
            return
        async with trio.open_nursery() as nursery:
            while True:
                await self._begin(nursery, observed())
                await sleep_with_others(self._settings.interval)

    async def _begin(self, nursery: trio.Nursery, pods: Iterable[PodStatus]) -> None:
        """One round over the running containers of these pods, a few at a time."""
        logs = {
            container.id: container.log_path
            for pod in pods
            for container in pod.containers
            if container.state is ContainerState.RUNNING and container.log_path
        }
        try:
            due = await LOGS.run(too_large, logs, self._settings.max_size, owner=_SIZES)
        except WorkHangs as error:
            log.error("The sizes of logs cannot be had", err=error)
            return
        for container_id in due:
            if container_id not in self._under_way:
                self._under_way.add(container_id)
                nursery.start_soon(self._one, container_id, logs[container_id])

    async def _one(self, container_id: str, path: str) -> None:
        try:
            async with self._places:
                await self._rotate(container_id, path)
        except NotFound:
            return
        except Unavailable as error:  # which is said elsewhere
            log.v(4).info("No log rotation without the runtime", err=error)
        except Exception as error:  # CRIError, OSError; whatever it is, the others are rotated
            log.error("Failed to rotate log for container", containerID=container_id, err=error)
        finally:
            self._under_way.discard(container_id)

    async def _rotate(self, container_id: str, path: str) -> None:
        """Rotates one log if it is too large and still written to. Raises CRIError, OSError."""
        status = (await self._runtime.container_status(container_id)).status
        if status.state != cri.CONTAINER_RUNNING:
            return
        most = self._settings.max_size
        try:
            large = await LOGS.run(_is_large, path, most, owner=path)
        except FileNotFoundError:
            # The last rotation was cut short between renaming and opening anew.
            await self._runtime.reopen_container_log(container_id)
            large = await LOGS.run(_is_large, path, most, owner=path)
        if not large:
            return
        await LOGS.run(tidy_rotated, path, self._settings, owner=path)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._clock.now_ns() // NANOSECONDS))
        rotated = f"{path}.{stamp}"
        await LOGS.run(os.rename, path, rotated, owner=path)
        try:
            await self._runtime.reopen_container_log(container_id)
        except CRIError:
            await LOGS.run(_rename_back, rotated, path, owner=path)
            raise


def _is_large(path: str, limit: int) -> bool:
    """Blocking. Raises OSError."""
    return os.stat(path).st_size >= limit


def _rename_back(rotated: str, path: str) -> None:
    """After a reopening that failed: if nothing was opened, the container still writes into the
    renamed file. It gets its name back, and the next round tries again. Blocking. Raises OSError.
    """
    if not os.path.exists(path):
        os.rename(rotated, path)


def too_large(logs: Mapping[str, str], limit: int) -> list[str]:
    """The containers whose log has reached the limit or is missing. Blocking."""
    found = []
    for container_id, path in logs.items():
        try:
            large = _is_large(path, limit)
        except OSError:
            large = True  # what is wrong shows when it is rotated
        if large:
            found.append(container_id)
    return found


def tidy_rotated(path: str, settings: RotationSettings) -> None:
    """Removes and compresses rotated files of the log at `path`. Blocking. Raises OSError."""
    directory, name = os.path.split(path)
    rotated = [other for other in os.listdir(directory) if other.startswith(name + ".")]
    plan = plan_rotation(rotated, settings.max_files)
    for other in plan.remove:
        os.unlink(os.path.join(directory, other))
    most = max(_MOST_COMPRESSED, 2 * settings.max_size)
    for other in plan.compress:
        full = os.path.join(directory, other)
        if (size := os.stat(full).st_size) > most:
            log.warning("A rotated log is too large to be compressed and is removed", path=full, size=size)
            os.unlink(full)
        else:
            compress(full)


def compress(path: str) -> None:
    """Replaces a file by its gzip archive, whole or not at all. Blocking. Raises OSError."""
    temporary = path + _TEMPORARY
    try:
        with open(path, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode & 0o7777
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with (
                os.fdopen(descriptor, "wb") as raw,
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_FASTEST) as archive,
            ):
                shutil.copyfileobj(source, archive, 1 << 20)
        os.rename(temporary, path + _ARCHIVE)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    os.unlink(path)
