"""Keeps the records of who may use the images on the node: in memory, and in files under `image_manager`.

The files are read when the first image is asked about; those of an older version of the API are written anew
in the present one. An intent that is left from a crash becomes a record
without credentials: the image may be one of ours, so nobody gets it without pulling. Records of images that
are gone go, too.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter as Count
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api.images import InvalidImageName
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.config.types import API_VERSION
from trio_kubelet.credential_providers.keyring import Credential
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import ImageService
from trio_kubelet.runtime.doors import Lookup, RecordPulled
from trio_kubelet.runtime.pull_records import (
    Check,
    Policy,
    PulledRecord,
    Pullers,
    PullIntent,
    bare_name,
    check,
    fits,
    pullers_of,
    with_pullers,
)

log = get_logger(__name__)

PRUNE_PERIOD: Final = 3600.0
_WRITE_DEADLINE: Final = 10.0
_PREFIX, _TEMPORARY = "sha256-", ".tmp"
_VERSIONS: Final = (API_VERSION, "kubelet.config.k8s.io/v1alpha1")

R = TypeVar("R", PulledRecord, PullIntent)


class IntentNotWritten(Exception):
    """What is about to be pulled cannot be written down, so it is not pulled."""


def _nobody_keeps(ref: str, used: Credential | None) -> None:
    """Nothing is written down."""


class OpenToAll:
    """Every pod may use every image that is there (policy `NeverVerify`, without records)."""

    async def may_use(self, image: str, ref: str, lookup: Lookup) -> bool:
        """Yes."""
        return True

    @asynccontextmanager
    async def pulling(self, image: str) -> AsyncIterator[RecordPulled]:
        """Keeps nothing."""
        yield _nobody_keeps


class AccessMetrics:
    """Metrics by the kubelet's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.checks = make.counter(
            "kubelet_imagemanager_image_mustpull_checks",
            "Checks of whether a pod may use an image that is there.",
            ["result"],
        )
        self.records = make.gauge("kubelet_imagemanager_ondisk_pulledrecords", "Records of pulled images.")
        self.intents = make.gauge("kubelet_imagemanager_ondisk_pullintents", "Images being pulled, on disk.")


class ImageAccess:
    """Implements `AccessCheck` with records below `root_dir`."""

    def __init__(
        self, root_dir: str, service: ImageService, clock: Clock, policy: Policy, metrics: AccessMetrics
    ) -> None:
        self._pulling_dir = os.path.join(root_dir, "image_manager", "pulling")
        self._pulled_dir = os.path.join(root_dir, "image_manager", "pulled")
        self._service = service
        self._clock = clock
        self._policy = policy
        self._metrics = metrics
        self._lock = trio.Lock()  # of the files
        self._loaded = False
        self._records: dict[str, PulledRecord] = {}
        self._damaged: set[str] = set()  # names of files with records and intents that cannot be read
        self._intents: Count[str] = Count()
        self._pruned_at = float("-inf")

    async def may_use(self, image: str, ref: str, lookup: Lookup) -> bool:
        """See `AccessCheck`."""
        try:
            result = await self._check(image, ref, lookup)
        except OSError as error:
            log.error("Unable to access cache records about image pulls", image=image, err=error)
            result = Check.ERROR
        self._metrics.checks.labels(result.value).inc()
        return result.allowed

    @asynccontextmanager
    async def pulling(self, image: str) -> AsyncIterator[RecordPulled]:
        """See `AccessCheck`."""
        pulled: list[tuple[str, Credential | None]] = []
        try:
            await self._intend(image)
        except OSError as error:
            raise IntentNotWritten(error_words(error)) from error
        kept = True
        try:
            yield lambda ref, used: pulled.append((ref, used))
        finally:
            with trio.move_on_after(_WRITE_DEADLINE, shield=True):
                for ref, used in pulled:
                    kept = await self._record(image, ref, pullers_of(used))
                # Without a record the intent stays on disk, so that the image still counts as ours.
                await self._forget_intent(image, keep_file=not kept)
        if pulled and trio.current_time() - self._pruned_at >= PRUNE_PERIOD:
            self._pruned_at = trio.current_time()
            await self._prune()

    async def _check(self, image: str, ref: str, lookup: Lookup) -> Check:
        """Raises OSError."""
        if self._lock.locked() or not self._loaded:
            async with self._lock:
                await self._load()
        record = self._records.get(ref)
        if record is None and not self._damaged.isdisjoint((_file_name(ref), _file_name(image))):
            return Check.ERROR
        pulled_here = record is not None or image in self._intents
        found = check(self._policy, image, record, pulled_here)
        if isinstance(found, Check):
            return found
        result, news = fits(found, await lookup())
        if news is not None:
            await self._record(image, ref, news)
        return result

    async def _intend(self, image: str) -> None:
        async with self._lock:
            await self._load()
            if image not in self._intents:
                await NODE_FILES.run(_write, self._pulling_dir, image, PullIntent(image=image))
                self._damaged.discard(_file_name(image))
            self._intents[image] += 1
            self._metrics.intents.set(len(self._intents))

    async def _forget_intent(self, image: str, *, keep_file: bool) -> None:
        async with self._lock:
            self._intents[image] -= 1
            if self._intents[image] > 0 or keep_file:
                return
            try:
                await NODE_FILES.run(_remove, self._pulling_dir, image)
                del self._intents[image]
            except OSError as error:
                log.error("Failed to remove image pull intent", image=image, err=error)
            self._metrics.intents.set(len(self._intents))

    async def _record(self, image: str, ref: str, pullers: Pullers) -> bool:
        """Adds to the record of an image; whether it is written."""
        async with self._lock:
            try:
                await self._add(image, ref, pullers)
            except (OSError, InvalidImageName) as error:
                log.error("Failed to write image pulled record", image=image, imageRef=ref, err=error)
                return False
        return True

    async def _add(self, image: str, ref: str, pullers: Pullers) -> None:
        """Raises OSError, InvalidImageName."""
        now = rfc3339(self._clock.now_ns())
        old = self._records.get(ref)
        record = old or PulledRecord(last_updated_time=now, image_ref=ref)
        record = with_pullers(record, bare_name(image), pullers, now)
        if record is not old:
            await NODE_FILES.run(_write, self._pulled_dir, ref, record)
            self._records[ref] = record
            self._damaged.discard(_file_name(ref))
            self._metrics.records.set(len(self._records))

    async def _load(self) -> None:
        """Reads the files, once. Raises OSError."""
        if self._loaded:
            return
        for directory in (self._pulling_dir, self._pulled_dir):
            await NODE_FILES.run(_make, directory)
        records, self._damaged = await NODE_FILES.run(_read_all, self._pulled_dir, PulledRecord)
        intents, damaged = await NODE_FILES.run(_read_all, self._pulling_dir, PullIntent)
        self._damaged |= damaged
        self._records = {record.image_ref: record for record in records}
        left = {intent.image for intent in intents}
        self._intents = Count(dict.fromkeys(left, 0))
        self._loaded = True
        self._metrics.records.set(len(self._records))
        self._metrics.intents.set(len(self._intents))
        if left:
            await self._settle(left)

    async def _settle(self, left: set[str]) -> None:
        """Turns intents of an earlier agent into records, where their images are there."""
        try:
            images = await self._service.list_images()
        except CRIError as error:
            log.error("Failed to list images", err=error)
            return
        for image in images:
            for name in left.intersection((*image.repo_tags, *image.repo_digests)):
                try:
                    await self._add(name, image.id, Pullers())  # nobody knows how it came
                    await NODE_FILES.run(_remove, self._pulling_dir, name)
                except (OSError, InvalidImageName) as error:
                    log.error("Failed to write image pulled record", image=name, err=error)
                else:
                    del self._intents[name]
                    left.discard(name)

    async def _prune(self) -> None:
        """Removes records of images that are gone; those written meanwhile stay."""
        began_ns = self._clock.now_ns()
        try:
            present = {image.id for image in await self._service.list_images()}
        except CRIError as error:
            log.error("Failed to list images", err=error)
            return
        async with self._lock:
            gone = [
                ref
                for ref, record in self._records.items()
                if ref not in present and _updated_ns(record) + 1_000_000_000 <= began_ns
            ]
            for ref in gone:
                try:
                    await NODE_FILES.run(_remove, self._pulled_dir, ref)
                    del self._records[ref]
                except OSError as error:
                    log.error("Failed to remove an ImagePulledRecord", imageRef=ref, err=error)
            self._metrics.records.set(len(self._records))


def _updated_ns(record: PulledRecord) -> int:
    try:
        return parse_rfc3339(record.last_updated_time)
    except ValueError:
        return 0


def _file_name(key: str) -> str:
    return _PREFIX + hashlib.sha256(key.encode()).hexdigest()


def _make(directory: str) -> None:
    os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)


def _write(directory: str, key: str, thing: PulledRecord | PullIntent) -> None:
    """Writes whole or not at all. Raises OSError."""
    _make(directory)
    _write_file(os.path.join(directory, _file_name(key)), thing)


def _write_file(path: str, thing: PulledRecord | PullIntent) -> None:
    with open(os.open(path + _TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(thing) + b"\n")
    os.replace(path + _TEMPORARY, path)


def _remove(directory: str, key: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(os.path.join(directory, _file_name(key)))


def _read_all(directory: str, kind: type[R]) -> tuple[list[R], set[str]]:
    """What can be read in a directory, and the names of files that cannot. Raises OSError."""
    found: list[R] = []
    damaged = set()
    for name in os.listdir(directory):
        if not name.startswith(_PREFIX) or name.endswith(_TEMPORARY):
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                thing = msgspec.json.decode(file.read(), type=kind)
            if thing.kind != f"Image{kind.__name__}" or thing.api_version not in _VERSIONS:
                raise ValueError(f"{thing.kind} of {thing.api_version}")
        except (OSError, ValueError, msgspec.DecodeError) as error:
            log.error("A record of image pulls cannot be read", path=path, err=error)
            damaged.add(name)
            continue
        found.append(_in_present_version(path, thing))
    return found, damaged


def _in_present_version(path: str, thing: R) -> R:
    """`thing`, written anew if it is of an older version; as it was if that fails."""
    if thing.api_version == API_VERSION:
        return thing
    try:
        _write_file(path, present := msgspec.structs.replace(thing, api_version=API_VERSION))
    except OSError as error:
        log.error("A record of image pulls stays in an older version", path=path, err=error)
        return thing
    return present
