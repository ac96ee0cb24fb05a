"""What drivers are asked to do with a volume on this node, the same for filesystems and block devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from google.protobuf.message import Message

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.storage.csi import messages
from trio_kubelet.storage.csi.context import PREFIX, CSIContext
from trio_kubelet.storage.csi.driver import CSIDriverClient, ending_of
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import Spec
from trio_kubelet.volumes.local import fs_group_of

log = get_logger(__name__)


class _Words(NamedTuple):
    """How the kubelet's errors begin when the attachment, or the secret, of a step cannot be read."""

    attachment: str
    secret: str


_STAGE: Final = _Words("", "fetching NodeStageSecretRef {} failed: ")
_PUBLISH: Final = _Words(
    f"{PREFIX}mounter.SetUpAt failed to fetch publishContext: ", "fetching NodePublishSecretRef {} failed: "
)
_STAGE_BLOCK: Final = _Words(
    f"{PREFIX}blockMapper.SetupDevice failed to get volume attachment [id={{}}]: ",
    f"{PREFIX}failed to get NodeStageSecretRef {{}}: ",
)
_PUBLISH_BLOCK: Final = _Words(
    f"{PREFIX}blockMapper.MapPodDevice failed to get volume attachment [id={{}}]: ",
    f"{PREFIX}blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef {{}}: ",
)

Undo = Callable[[], Awaitable[None]]
"""Takes away what was made for a call that has surely failed."""


async def stage(
    context: CSIContext,
    driver: CSIDriverClient,
    spec: Spec,
    pod: v1.Pod,
    target: str,
    *,
    prepare: Callable[[], Awaitable[None]],
    undo: Undo,
) -> None:
    """Stages a volume at a path. Raises OperationError."""
    abilities = await driver.abilities()
    words = _STAGE_BLOCK if spec.block else _STAGE
    publish = await context.publish_context(spec, words.attachment)
    secrets = await context.secret(messages.stage_secret(spec), words.secret)
    await prepare()
    request = csi.NodeStageVolumeRequest(
        volume_id=spec.handle,
        publish_context=publish,
        staging_target_path=target,
        volume_capability=_capability(spec, pod, abilities),
        secrets=secrets,
        volume_context=messages.attributes(spec),
    )
    await _call(driver, spec, "NodeStageVolume", request, csi.NodeStageVolumeResponse, undo)


async def publish(
    context: CSIContext,
    driver: CSIDriverClient,
    spec: Spec,
    pod: v1.Pod,
    target: str,
    *,
    staging: str,
    prepare: Callable[[], Awaitable[None]],
    undo: Undo,
) -> None:
    """Publishes a volume to a pod at a path; `staging` is "" for one that is not staged. Raises
    OperationError.
    """
    abilities = await driver.abilities()
    words = _PUBLISH_BLOCK if spec.block else _PUBLISH
    attached = await context.publish_context(spec, words.attachment)
    secrets = await context.secret(messages.publish_secret(spec, pod), words.secret)
    shown, hidden = await context.of_pod(spec, pod)
    await prepare()
    request = csi.NodePublishVolumeRequest(
        volume_id=spec.handle,
        publish_context=attached,
        staging_target_path=staging,
        target_path=target,
        volume_capability=_capability(spec, pod, abilities),
        readonly=spec.read_only,
        secrets={**secrets, **hidden},
        volume_context={**messages.attributes(spec), **shown},
    )
    await _call(driver, spec, "NodePublishVolume", request, csi.NodePublishVolumeResponse, undo)


async def unpublish(driver: CSIDriverClient, spec: Spec, target: str, what: str) -> None:
    """Takes a volume from a pod; `what` names the step in the error. Raises OperationError."""
    request = csi.NodeUnpublishVolumeRequest(volume_id=spec.handle, target_path=target)
    await _take_back(driver, spec, "NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse, what)


async def unstage(driver: CSIDriverClient, spec: Spec, target: str, what: str) -> None:
    """Undoes `stage`. Raises OperationError."""
    request = csi.NodeUnstageVolumeRequest(volume_id=spec.handle, staging_target_path=target)
    await _take_back(driver, spec, "NodeUnstageVolume", request, csi.NodeUnstageVolumeResponse, what)


async def _call(
    driver: CSIDriverClient, spec: Spec, method: str, request: Message, response: type[Message], undo: Undo
) -> None:
    try:
        await driver.call(method, request, response, migrated=spec.migrated)
    except GrpcError as error:
        ending = ending_of(error.code)
        if ending is Ending.FINISHED:
            try:
                await undo()
            except OperationError as left:  # what the driver says is to be told
                log.error("Cannot remove what was made for a call", volume=spec.unique_name, err=left)
        raise OperationError(str(error), ending) from error


async def _take_back(
    driver: CSIDriverClient, spec: Spec, method: str, request: Message, response: type[Message], what: str
) -> None:
    try:
        await driver.call(method, request, response, migrated=spec.migrated)
    except GrpcError as error:
        raise OperationError(f"{PREFIX}{what} failed: {error}", Ending.UNCERTAIN) from error


def _capability(spec: Spec, pod: v1.Pod, abilities: frozenset[int]) -> csi.VolumeCapability:
    group = fs_group_of(pod) if messages.MOUNT_GROUP in abilities else None
    return messages.capability(spec, abilities, spec.options, group)
