"""Makes images present: pull policies, credentials, back-off per pod.

Follows the kubelet's `images` package; the pulls themselves are in `image_pulls`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.images import InvalidImageName, parse_image_name, with_default_tag
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.log import get_logger, shortened
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.credential_providers.keyring import Credential
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.podinfo.context import ImageUser
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.runtime.backoff import BackOff, image_pull_back_off
from trio_kubelet.runtime.doors import AccessCheck
from trio_kubelet.runtime.image_access import IntentNotWritten, OpenToAll
from trio_kubelet.runtime.image_pulls import (
    ImagePulls,
    ImagePullSettings,
    Pulled,
    PullLimitExceeded,
    pull_error_text,
)
from trio_kubelet.runtime.metrics import RuntimeMetrics, size_label
from trio_kubelet.runtime.results import LONGEST_MESSAGE, Reason, StartError

log = get_logger(__name__)

_MOST_CREDENTIALS: Final = 100
"""Of those that fit an image: secrets may hold tens of thousands, and each is tried in turn."""
_FOUND_LASTS: Final = 1.0
"""Seconds. Of a hundred pods that come together most have the image of the one before."""

PullListener = Callable[[str, int, int], None]
"""Hears that a pod (its UID) has an image that was pulled for it, from the first try to the one that went
well, back-offs between them included (ns); must not wait.
"""


def nobody_listens(uid: str, began_ns: int, ended_ns: int) -> None:
    """Nobody measures pulls."""


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a pod needs."""

    pod: v1.Pod
    image: str
    pull_policy: str
    field_path: str = ""  # of the container, for events
    runtime_handler: str = ""
    sandbox_config: cri.PodSandboxConfig | None = None
    pull_secrets: Sequence[PullSecret] = ()


class _Found(NamedTuple):
    """An image that was there, at that time by Trio's clock."""

    image: cri.Image
    at: float


class PresentImage(msgspec.Struct, frozen=True):
    """An image that the runtime has: its reference, the user it runs as, and the runtime handler it was asked
    for by, if it was.
    """

    ref: str
    user: ImageUser = ImageUser()
    handler: str = ""


def _back_off_key(uid: str, image: str) -> str:
    return f"{uid}_{image}"


class ImageManager:
    """Makes images present for pods (kubelet: `images.ImageManager`)."""

    def __init__(
        self,
        *,
        service: ImageService,
        recorder: PodRecorderDoor,
        clock: Clock,
        settings: ImagePullSettings,
        metrics: RuntimeMetrics,
        pulled: PullListener = nobody_listens,
        access: AccessCheck | None = OpenToAll(),
    ) -> None:
        """`access` None: whether a pod may use an image is not even a question (a gate is off)."""
        self._service = service
        self._recorder = recorder
        self._clock = clock
        self._metrics = metrics
        self._pulled = pulled
        self._access = access
        self._by_handler = settings.by_handler
        self._pulls = ImagePulls(service, settings)
        self._back_off: BackOff = image_pull_back_off()
        self._last_failure: dict[str, str] = {}  # back-off key → why the last pull failed
        self._tried_since: dict[str, int] = {}  # back-off key → when the first pull that failed began
        self._found: dict[tuple[str, str], _Found] = {}  # by name and runtime handler

    async def ensure(self, request: ImageRequest) -> PresentImage:
        """Makes the image present as its pull policy says. Raises StartError."""
        try:
            image = with_default_tag(request.image)
        except InvalidImageName as error:
            self._count(request, "unknown", "unknown")
            message = f'Failed to apply default image tag "{request.image}": {error}'
            self._event(request, "Warning", "InspectFailed", message)
            raise StartError(Reason.INVALID_IMAGE_NAME, message) from error
        spec = cri.ImageSpec(
            image=image,
            annotations=request.pod.metadata.annotations or {},
            runtime_handler=request.runtime_handler if self._by_handler else "",
        )
        lookup = _Lookup(request)
        present: cri.Image | None = None
        if request.pull_policy in ("IfNotPresent", "Never"):
            present = await self._find(request, spec)
            if present is not None and await self._may_use(request, present, lookup):
                return PresentImage(present.id, image_user(present), spec.runtime_handler)
        shown = "unknown" if request.pull_policy == "Always" else str(present is not None).lower()
        if request.pull_policy == "Never":
            # An image the pod may not use is, to the pod, not there.
            self._count(request, shown, "true" if present is not None else "unknown")
            message = f'Container image "{request.image}" is not present with pull policy of Never'
            self._event(request, "Warning", "ErrImageNeverPull", message)
            raise StartError(Reason.ERR_IMAGE_NEVER_PULL, message)
        self._count(request, shown, "true")
        return await self._pull(request, spec, lookup)

    async def _may_use(self, request: ImageRequest, present: cri.Image, lookup: _Lookup) -> bool:
        """Whether the pod may use an image that is there, without pulling it."""
        message = f'Container image "{request.image}" already present on machine'
        if self._access is not None:
            if not await self._access.may_use(request.image, present.id, lookup.credentials):
                return False
            message += " and can be accessed by the pod"
        self._count(request, "true", "false")
        self._event(request, "Normal", "Pulled", message)
        self._has_image(request)
        return True

    def doubt(self) -> None:
        """A container was not created: an image that was found may be gone."""
        self._found.clear()

    def held_until_ns(self, uid: str, image: str) -> int:
        """When the image is pulled again for a pod for which that failed; 0 if it did not."""
        return self._back_off.ends_at_ns(_back_off_key(uid, image))

    def collect_back_offs(self) -> None:
        """Forgets back-off entries that are long over."""
        for key in self._back_off.collect(self._clock.now_ns()):
            self._last_failure.pop(key, None)
            self._tried_since.pop(key, None)

    def _has_image(self, request: ImageRequest, began_ns: int | None = None) -> None:
        """A pod has its image, after a pull that began then or by that of another."""
        uid = request.pod.metadata.uid
        began_ns = self._tried_since.pop(_back_off_key(uid, request.image), began_ns)
        if began_ns is not None:
            self._pulled(uid, began_ns, self._clock.now_ns())

    async def _find(self, request: ImageRequest, spec: cri.ImageSpec) -> cri.Image | None:
        """The image if it is there. One that was a moment ago, for whatever pod, is not asked for again:
        should it be gone, the container is not created, and who comes next asks anew (`doubt`).
        """
        key, now = (spec.image, spec.runtime_handler), trio.current_time()
        if (known := self._found.get(key)) is not None and now - known.at < _FOUND_LASTS:
            return known.image
        try:
            answer = await self._service.image_status(spec)
        except CRIError as error:
            self._count(request, "unknown", "unknown")
            # The kubelet names the reference that it was looking for, which it does not have.
            message = f'Failed to inspect image "": {error}'
            self._event(request, "Warning", "InspectFailed", message)
            raise StartError(Reason.IMAGE_INSPECT_ERROR, message) from error
        if not answer.HasField("image") or not answer.image.id:
            return None
        self._found = {name: each for name, each in self._found.items() if now - each.at < _FOUND_LASTS}
        self._found[key] = _Found(answer.image, now)
        return answer.image

    async def _pull(self, request: ImageRequest, spec: cri.ImageSpec, lookup: _Lookup) -> PresentImage:
        key = _back_off_key(request.pod.metadata.uid, request.image)
        if self._back_off.waits_since_update(key, self._clock.now_ns()):
            message = f'Back-off pulling image "{request.image}"'
            self._event(request, "Normal", "BackOff", message)
            if key in self._last_failure:
                message = f"{message}: {self._last_failure[key]}"
            raise StartError(Reason.IMAGE_PULL_BACK_OFF, message, self._back_off.ends_at_ns(key))
        self._last_failure.pop(key, None)
        self._found.pop((spec.image, spec.runtime_handler), None)  # it may mean another one after that
        self._event(request, "Normal", "Pulling", f'Pulling image "{request.image}"')
        started, began_ns = trio.current_time(), self._clock.now_ns()
        try:
            pulled = await self._pull_recorded(request, spec, await lookup.credentials())
        except (CRIError, PullLimitExceeded) as error:
            text = pull_error_text(error)
            self._event(request, "Warning", "Failed", f'Failed to pull image "{request.image}": {text}')
            now_ns = self._clock.now_ns()
            self._back_off.next(key, now_ns, now_ns)
            self._tried_since.setdefault(key, began_ns)
            reason, message = pull_failure(request.image, text)
            self._last_failure[key] = shortened(f"{reason}: {message}", LONGEST_MESSAGE)
            raise StartError(reason, message) from error
        self._has_image(request, began_ns)
        waited = trio.current_time() - started
        image = await self._inspect_quietly(spec)
        self._metrics.image_pull_duration.labels(size_label(image.size)).observe(waited)
        self._event(
            request,
            "Normal",
            "Pulled",
            f'Successfully pulled image "{request.image}" in {_milliseconds(pulled.seconds)} '
            f"({_milliseconds(waited)} including waiting). Image size: {image.size} bytes.",
        )
        return PresentImage(pulled.ref, image_user(image), spec.runtime_handler)

    async def _pull_recorded(
        self, request: ImageRequest, spec: cri.ImageSpec, credentials: Sequence[Credential]
    ) -> Pulled:
        """Pulls, and writes down with which credentials that went."""
        auths = [cri.AuthConfig(username=c.login.username, password=c.login.password) for c in credentials]
        access = self._access
        if access is None:
            return await self._pulls.pull(spec, auths, request.sandbox_config)
        try:
            async with access.pulling(request.image) as record:
                pulled = await self._pulls.pull(spec, auths, request.sandbox_config)
                record(pulled.ref, None if pulled.used is None else credentials[pulled.used])
        except IntentNotWritten as error:
            raise StartError(
                Reason.ERR_IMAGE_PULL,
                f'Failed to record image pull intent for container image "{request.image}": {error}',
            ) from error
        return pulled

    async def _inspect_quietly(self, spec: cri.ImageSpec) -> cri.Image:
        """What the runtime says of an image just pulled; an empty answer if it cannot say."""
        try:
            return (await self._service.image_status(spec)).image
        except CRIError as error:
            log.warning("Image was pulled but its status cannot be read", image=spec.image, err=error)
            return cri.Image()

    def _count(self, request: ImageRequest, present: str, pull_required: str) -> None:
        self._metrics.ensure_image_requests.labels(request.pull_policy.lower(), present, pull_required).inc()

    def _event(self, request: ImageRequest, type: str, reason: str, message: str) -> None:
        self._recorder.record(request.pod, type, reason, message, request.field_path)


def image_user(image: cri.Image) -> ImageUser:
    """The user the image names: a number, else a name, else root (kubelet: `getImageUser`)."""
    if image.HasField("uid"):
        return ImageUser(uid=image.uid.value)
    return ImageUser(uid=None, name=image.username) if image.username else ImageUser(uid=0)


def pull_failure(image: str, text: str) -> tuple[Reason, str]:
    """Reason and message of a failed pull; runtimes mark two causes by the start of their text."""
    for reason, cause in (
        (Reason.REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (Reason.SIGNATURE_VALIDATION_FAILED, "the signature validation failed"),
    ):
        if text.startswith(reason):
            return reason, f"image pull failed for {image} because {cause}{text.removeprefix(reason)}"
    return Reason.ERR_IMAGE_PULL, text


class _Lookup:
    """The credentials of a request, looked up once and not before they are needed."""

    def __init__(self, request: ImageRequest) -> None:
        self._request = request
        self._found: list[Credential] | None = None

    async def credentials(self) -> Sequence[Credential]:
        """What to try, best first."""
        if self._found is None:
            repository = parse_image_name(self._request.image).repository
            secrets = self._request.pull_secrets
            found = [found for secret in secrets for found in await secret.credentials(repository)]
            self._found = found[:_MOST_CREDENTIALS]
        return self._found


def _milliseconds(seconds: float) -> str:
    return format_duration(int(seconds * 1000) / 1000)
