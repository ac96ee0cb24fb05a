"""Pulls of images: one at a time or several, each for all who ask for the same.

Two things are different from the kubelet on purpose: requests of several pods for the same image with the
same credentials share one pull, and a pull belongs to the task that waits for it (if that task is cancelled,
the next one that waits takes over), so no pull outlives those who want it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.grpc.errors import Code

log = get_logger(__name__)

_Key: TypeAlias = tuple[str | bytes, ...]


class ImagePullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How pulls are bounded (configuration: `serializeImagePulls`, `maxParallelImagePulls`,
    `registryPullQPS`, `registryBurst`). `qps` 0: no limit; `max_parallel` None: no limit.
    """

    serialize: bool = True
    max_parallel: int | None = None
    qps: float = 5.0
    burst: int = 10
    by_handler: bool = False  # gate RuntimeClassInImageCriApi: images are asked for by runtime handler


class PullLimitExceeded(Exception):
    """More pulls were asked for than `registryPullQPS` allows."""

    def __init__(self) -> None:
        super().__init__("pull QPS exceeded")


class Pulled(msgspec.Struct, frozen=True):
    """An image that was pulled."""

    ref: str
    seconds: float  # of the pull itself, without waiting for a turn
    used: int | None  # which of the credentials


class _Pull:
    """A pull that is under way; those who came later wait for `done`."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.outcome: Pulled | CRIError | PullLimitExceeded | None = None  # None: given up before its end


class ImagePulls:
    """The pulls of the node."""

    def __init__(self, service: ImageService, settings: ImagePullSettings) -> None:
        self._service = service
        self._bucket = TokenBucket(settings.qps, settings.burst) if settings.qps > 0 else None
        turns = 1 if settings.serialize else settings.max_parallel
        self._turns = trio.CapacityLimiter(turns) if turns else None
        self._under_way: dict[_Key, _Pull] = {}

    async def pull(
        self, spec: cri.ImageSpec, credentials: Sequence[cri.AuthConfig], sandbox: cri.PodSandboxConfig | None
    ) -> Pulled:
        """Joins a pull of the same image with the same credentials that is under way, or does it. Raises
        CRIError, PullLimitExceeded.
        """
        key: _Key = (
            spec.image,
            spec.runtime_handler,
            *(auth.SerializeToString(deterministic=True) for auth in credentials),
        )
        while (pull := self._under_way.get(key)) is not None:
            await pull.done.wait()
            if pull.outcome is not None:
                return _unwrap(pull.outcome)
        pull = self._under_way[key] = _Pull()
        try:
            try:
                pull.outcome = await self._pull_with_each(spec, credentials, sandbox)
            except (CRIError, PullLimitExceeded) as error:
                pull.outcome = error
        finally:
            del self._under_way[key]
            pull.done.set()
        return _unwrap(pull.outcome)

    async def _pull_with_each(
        self, spec: cri.ImageSpec, credentials: Sequence[cri.AuthConfig], sandbox: cri.PodSandboxConfig | None
    ) -> Pulled:
        """Pulls with each of the credentials until one works. Each is a turn of its own, so that those of one
        pod do not hold up the images of others.
        """
        seconds = 0.0
        failures: list[CRIError] = []
        for used, auth in enumerate(credentials or (None,)):
            async with self._turns or contextlib.nullcontext():
                started = trio.current_time()
                if not used and self._bucket is not None and not self._bucket.try_take(started):
                    raise PullLimitExceeded
                try:
                    ref = await self._service.pull_image(spec, auth, sandbox)
                except CRIError as error:
                    log.error("Failed to pull image", image=spec.image, err=error)
                    failures.append(error)
                    continue
                finally:
                    seconds += trio.current_time() - started
            return Pulled(ref, seconds, None if auth is None else used)
        raise _aggregate(failures)


def _unwrap(outcome: Pulled | CRIError | PullLimitExceeded) -> Pulled:
    if isinstance(outcome, Pulled):
        return outcome
    raise outcome


def _aggregate(failures: Sequence[CRIError]) -> CRIError:
    """One error for all attempts; its text lists each different one, as Go's aggregates do."""
    texts = list(dict.fromkeys(pull_error_text(error) for error in failures))
    if len(failures) == 1:
        return failures[0]
    return CRIError(Code.UNKNOWN, texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]", "PullImage")


def pull_error_text(error: Exception) -> str:
    """The error's text; the gRPC frame is left out where the code says nothing (kubelet: `Unknown`)."""
    if isinstance(error, CRIError) and error.code is Code.UNKNOWN:
        return error.message
    return str(error)
