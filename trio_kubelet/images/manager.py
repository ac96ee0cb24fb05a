"""Removes images that nothing uses: each five minutes when the disk is filling up, or at once under disk
pressure (kubelet: `images.ImageGCManager`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded, NotFound
from trio_kubelet.cri.info import sandbox_image
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.images.selection import (
    FoundImage,
    ImagePolicy,
    ImageRecord,
    Records,
    is_young,
    recorded,
    removable,
    shown_size,
    to_free,
    too_old,
)
from trio_kubelet.observed.types import POD_UID
from trio_kubelet.podinfo.doors import NodeRecorderDoor

log = get_logger(__name__)

PERIOD: Final = 300.0
"""Seconds between collections (kubelet: `ImageGCPeriod`)."""

TIMEOUT: Final = 120.0
"""Seconds for a call to the runtime: removing a large image takes its time."""

MOST_HANGS: Final = 2
"""Removals in a row that may hang, each for that long: then the runtime removes nothing at the moment, and
who waits for space has to look for it elsewhere.
"""

AGE, SPACE = "age", "space"


class ImageGCError(Exception):
    """Not enough was freed, or nothing could be; the text is the kubelet's."""


class ImageGarbage:
    """Owns the records of images; `run` and `delete_unused` take turns."""

    def __init__(
        self,
        policy: ImagePolicy,
        *,
        runtime: RuntimeService,
        images: ImageService,
        filesystem: Callable[[], tuple[int, int] | None],
        pods: Callable[[], Iterable[v1.Pod]],
        events: NodeRecorderDoor,
        registry: CollectorRegistry,
        span: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`filesystem` tells capacity and available bytes of that with the images; `pods` are those that are
        wanted, as far as is known, whose image volumes are in use.
        """
        self._policy = policy
        self._runtime = runtime
        self._images = images
        self._filesystem = filesystem
        self._pods = pods
        self._events = events
        self._span = span
        self._records: Records = {}
        self._began = trio.current_time()
        self._hung: set[str] = set()  # IDs of images whose removal hung the last time
        self._turn = trio.Lock()
        self._removed = MetricMaker(registry).counter(
            "kubelet_image_garbage_collected_total",
            "Images removed because of their age, or for space.",
            ["reason"],
        )

    async def run(self) -> None:
        """Collects each period until cancelled; the second failure in a row is told as an event."""
        failed = False
        task: Callable[[], Awaitable[object]] = self._look  # at the start, so that ages count from there
        while True:
            try:
                async with self._turn:
                    await task()
            except (CRIError, ImageGCError, trio.TooSlowError) as error:
                if failed:
                    log.error("Image garbage collection failed multiple times in a row", err=error)
                    self._events.record_node("Warning", "ImageGCFailed", error_words(error))
                else:
                    log.error("Image garbage collection failed once", err=error)
                failed = True
            else:
                failed = False
            await trio.sleep(PERIOD)
            task = self._look if self._policy.off else self._collect_seen

    async def delete_unused(self) -> None:
        """Removes everything that nothing uses and is not brand new. Raises ImageGCError, CRIError and
        TooSlowError.
        """
        log.info("Attempting to delete unused images")
        async with self._turn:
            order = await self._look()
            await self._free_space(order, None)

    async def _collect_seen(self) -> None:
        with self._span("Images/GarbageCollect"):
            await self._collect()

    async def _collect(self) -> None:
        order = await self._look()
        order = await self._free_old(order)
        found = self._filesystem()
        if found is None or found[0] == 0:
            text = "invalid capacity 0 on image filesystem"
            self._events.record_node("Warning", "InvalidDiskCapacity", text)
            raise ImageGCError(text)
        capacity, available = found
        usage, amount = to_free(self._policy, capacity, available)
        if usage < self._policy.high:
            return
        log.info(
            "Disk usage on image filesystem is over the high threshold", usage=usage, amountToFree=amount
        )
        freed = await self._free_space(order, amount)
        if freed < amount:
            message = (
                f"Insufficient free disk space on the node's image filesystem ({usage}% of "
                f"{shown_size(capacity)} used). Failed to free sufficient space by deleting unused images "
                f"(freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, "
                "volumes, or other data."
            )
            self._events.record_node("Warning", "FreeDiskSpaceFailed", message)
            raise ImageGCError(message)

    async def _look(self) -> list[ImageRecord]:
        """Brings the records up to date; what could be removed, in order. Raises CRIError, TooSlowError."""
        with trio.fail_after(TIMEOUT):
            found = [_found(image) for image in await self._images.list_images()]
            containers = await self._runtime.list_containers()
            in_use = _images_of(containers)
            volumes = self._volumes() | await self._volumes_of_unwanted(containers)
            in_use |= await self._named(found, volumes | await self._sandboxes())
        in_use = {image.id for image in found if _is_any_of(image, in_use)}
        self._records = recorded(self._records, found, in_use, trio.current_time())
        self._hung &= self._records.keys()
        return removable(self._records, in_use)

    async def _has_come_into_use(self, record: ImageRecord) -> bool:
        """Whether a container has got the image since the last look: others may have taken minutes to remove.
        A kubelet removes it (kubernetes/kubernetes 123631). Raises CRIError, TooSlowError.
        """
        with trio.fail_after(TIMEOUT):
            return _is_any_of(record.image, _images_of(await self._runtime.list_containers()))

    def _volumes(self) -> set[str]:
        """Images that pods have as volumes, as these name them."""
        return {
            volume.image.reference
            for pod in self._pods()
            for volume in pod.spec.volumes or ()
            if volume.image is not None and volume.image.reference
        }

    async def _volumes_of_unwanted(self, containers: Iterable[cri.Container]) -> set[str]:
        """Images that containers have as volumes whose pods end, or whose source has not told of them yet.
        Raises CRIError.
        """
        wanted, found = {pod.metadata.uid for pod in self._pods()}, set[str]()
        for each in containers:
            if each.labels.get(POD_UID) in wanted or each.state == cri.CONTAINER_EXITED:
                continue
            with suppress(NotFound):
                answer = await self._runtime.container_status(each.id)
                found.update(mount.image.image for mount in answer.status.mounts)
        return found - {""}

    async def _sandboxes(self) -> set[str]:
        """The image of sandboxes: it stands in no container, and without it no pod starts. Not every runtime
        pins it (containerd before 1.6.22).
        """
        return {sandbox_image((await self._runtime.status(verbose=True)).info)} - {""}

    async def _named(self, found: Sequence[FoundImage], wanted: set[str]) -> set[str]:
        """Those of the images that the runtime has, by a name or ID."""
        named = {name for image in found for name in (image.id, *image.names)}
        there = wanted & named
        for reference in wanted - named:  # a short name: the runtime knows what it stands for
            answer = await self._images.image_status(cri.ImageSpec(image=reference))
            if answer.HasField("image"):
                there.add(answer.image.id)
        return there

    async def _free_old(self, order: list[ImageRecord]) -> list[ImageRecord]:
        old = too_old(order, self._policy, trio.current_time(), self._began)
        _, failures = await self._remove_all(old, AGE, None)
        if failures:
            age = format_duration(self._policy.max_age)
            raise ImageGCError(
                f"wanted to free images older than {age}, encountered errors in image deletion: "
                f"{aggregate_errors(failures)}"
            )
        return [each for each in order if each not in old]

    async def _free_space(self, order: Iterable[ImageRecord], amount: int | None) -> int:
        """Removes images until so many bytes are freed (None: all of them). Raises ImageGCError."""
        now = trio.current_time()
        grown = [each for each in order if not is_young(each, self._policy, now)]
        freed, failures = await self._remove_all(grown, SPACE, amount)
        if failures:
            wanted = 2**63 - 1 if amount is None else amount
            raise ImageGCError(
                f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image "
                f"deletion: {aggregate_errors(failures)}"
            )
        return freed

    async def _remove_all(
        self, records: Iterable[ImageRecord], reason: str, amount: int | None
    ) -> tuple[int, list[str]]:
        """Removes those that nobody uses meanwhile, until so many bytes are freed or the runtime hangs; what
        was freed, and why others are still there. Those that hung the last time have their turn last.
        """
        freed, failures, hangs = 0, list[str](), 0
        for each in sorted(records, key=lambda record: record.image.id in self._hung):
            if await self._has_come_into_use(each):
                continue
            if failure := await self._remove(each, reason):
                failures.append(failure)
            else:
                freed += each.image.size
            hangs = hangs + 1 if each.image.id in self._hung else 0
            if hangs >= MOST_HANGS or (amount is not None and freed >= amount):
                break
        return freed, failures

    async def _remove(self, record: ImageRecord, reason: str) -> str:
        """Removes an image; why it is still there, "" if it is gone, whatever the runtime said of that."""
        spec = cri.ImageSpec(image=record.image.id, runtime_handler=record.image.handler)
        log.info("Removing image to free bytes", imageID=record.image.id, size=record.image.size)
        self._hung.discard(record.image.id)
        try:
            with trio.fail_after(TIMEOUT):
                await self._images.remove_image(spec)
        except (CRIError, trio.TooSlowError) as error:
            if await self._is_there(spec):
                if isinstance(error, DeadlineExceeded | trio.TooSlowError):
                    self._hung.add(record.image.id)
                return str(error) or "the runtime did not remove it in time"
        self._records = {id: each for id, each in self._records.items() if id != record.image.id}
        self._removed.labels(reason).inc()
        return ""

    async def _is_there(self, spec: cri.ImageSpec) -> bool:
        try:
            with trio.fail_after(TIMEOUT):
                return (await self._images.image_status(spec)).HasField("image")
        except (CRIError, trio.TooSlowError):
            return True


def _images_of(containers: Iterable[cri.Container]) -> set[str]:
    """Images of containers, as the runtime says it."""
    return {name for each in containers for name in (each.image_id, each.image_ref)}


def _is_any_of(image: FoundImage, named: set[str]) -> bool:
    """Whether it is named: a runtime may say which image it is by any of its names."""
    return image.id in named or not named.isdisjoint(image.names)


def _found(image: cri.Image) -> FoundImage:
    return FoundImage(
        id=image.id,
        size=image.size,
        pinned=image.pinned,
        handler=image.spec.runtime_handler,
        names=(*image.repo_tags, *image.repo_digests),
    )
