"""Making CSI volumes larger while they are used."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.storage.csi import messages
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.driver import INFEASIBLE, ending_of
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.errors import ExpansionRefused, NotSupported, OperationError
from trio_kubelet.storage.names import (
    csi_block_dir,
    csi_block_staging,
    csi_global_mount,
    csi_pod_mount,
)
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import Spec

T = TypeVar("T")


class CSIExpansion:
    """Implements `doors.Expanding`."""

    def __init__(self, *, root_dir: str, drivers: CSIDrivers, context: CSIContext) -> None:
        self._root_dir = root_dir
        self._drivers = drivers
        self._context = context

    async def expand(self, spec: Spec, uid: str, size: int) -> None:
        driver = self._drivers.get(spec.driver)
        what = "Expander.NodeExpand failed to check if node supports expansion : "
        abilities = await _needed(driver.abilities(what))
        if messages.EXPAND not in abilities:
            raise NotSupported(f"NodeExpand is not supported by the CSI driver {spec.driver}")
        what = "expander.NodeExpand failed to get NodeExpandSecretRef {}: "
        secrets = await _needed(self._context.secret(messages.expand_secret(spec), what))
        if spec.block:
            path = f"{csi_block_dir(self._root_dir, spec.name)}/dev/{uid}"
            staging = csi_block_staging(self._root_dir, spec.name)
        else:
            path = csi_pod_mount(self._root_dir, uid, spec.name)
            staging = csi_global_mount(self._root_dir, spec.driver, spec.handle)
        request = csi.NodeExpandVolumeRequest(
            volume_id=spec.handle,
            volume_path=path,
            capacity_range=csi.CapacityRange(required_bytes=size),
            staging_target_path=staging if messages.STAGE in abilities else "",
            volume_capability=messages.capability(spec, abilities, spec.options),
            secrets=secrets,
        )
        try:
            await driver.call(
                "NodeExpandVolume", request, csi.NodeExpandVolumeResponse, migrated=spec.migrated
            )
        except GrpcError as error:
            raise _refusal(error) from error


async def _needed(step: Awaitable[T]) -> T:
    """What has to be known before the driver is asked. Without it nothing was begun: that is the end of this
    attempt, which the claim's status tells.
    """
    try:
        return await step
    except OperationError as error:
        raise OperationError(str(error)) from error


def _refusal(error: GrpcError) -> OperationError:
    prefix = "Expander.NodeExpand failed to expand the volume"
    if error.code is Code.FAILED_PRECONDITION:
        return ExpansionRefused(f"{prefix} : {error}", infeasible=False)
    if error.code in INFEASIBLE:
        return ExpansionRefused(f"{prefix} {error}", infeasible=True)
    return OperationError(f"{prefix} : {error}", ending_of(error.code))
