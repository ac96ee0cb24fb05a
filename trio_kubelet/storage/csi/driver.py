"""Calls to a CSI driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from trio_kubelet.common.caching import SingleFlight
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.storage.doors import DriverCalls, NodeInfo
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.proto import csi_pb2 as csi

M = TypeVar("M", bound=Message)

TIMEOUT: Final = 120.0
_NODE: Final = "/csi.v1.Node/"
# After these something may still go on.
_NOT_FINAL: Final = frozenset(
    {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.UNAVAILABLE}
)
INFEASIBLE: Final = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.OUT_OF_RANGE})


def ending_of(code: Code) -> Ending:
    """What a call's status says of what it was to do."""
    return Ending.UNCERTAIN if code in _NOT_FINAL else Ending.FINISHED


class CSIDriverClient:
    """A driver behind its socket. What it can do is asked once."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        calls: DriverCalls,
        called: Callable[[str, str, Code, float, bool], None] = lambda *_: None,
    ) -> None:
        """`called` hears of each call: driver, method, gRPC code, seconds, whether for a migrated volume."""
        self.name = name
        self.endpoint = endpoint
        self._calls = calls
        self._called = called
        self._abilities: frozenset[int] | None = None
        self._asked: SingleFlight[None, frozenset[int]] = SingleFlight()

    async def call(self, method: str, request: Message, response: type[M], *, migrated: bool = False) -> M:
        """One call of the Node service. Raises GrpcError."""
        began, code = trio.current_time(), Code.OK
        full = _NODE + method
        try:
            return await self._calls.call(self.endpoint, full, request, response, TIMEOUT)
        except GrpcError as error:
            code = error.code
            raise
        finally:
            self._called(self.name, full, code, trio.current_time() - began, migrated)

    async def abilities(self, what: str = "") -> frozenset[int]:
        """The capabilities of the Node service. Raises OperationError, whose text begins with `what`."""
        if self._abilities is None:
            try:  # once for a crowd of volumes
                self._abilities = await self._asked.ask(None, self._ask_abilities)
            except GrpcError as error:
                raise OperationError(f"{what}{error}", ending_of(error.code)) from error
        return self._abilities

    async def _ask_abilities(self) -> frozenset[int]:
        answer = await self.call(
            "NodeGetCapabilities", csi.NodeGetCapabilitiesRequest(), csi.NodeGetCapabilitiesResponse
        )
        return frozenset(each.rpc.type for each in answer.capabilities)

    async def info(self) -> NodeInfo:
        """What the driver says of the node. Raises GrpcError."""
        answer = await self.call("NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse)
        return NodeInfo(
            answer.node_id, answer.max_volumes_per_node, dict(answer.accessible_topology.segments)
        )
