"""State files that are nested deeper than a decoder goes have the same one error as other damaged ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trio_kubelet.devices import checkpoint as devices
from trio_kubelet.devices.checkpoint import DeviceCheckpointError
from trio_kubelet.dra import checkpoint as claims
from trio_kubelet.dra.checkpoint import ClaimCheckpointError
from trio_kubelet.dra.health import decode_reports
from trio_kubelet.placement import checkpoint as cpus
from trio_kubelet.placement import memory_checkpoint as memory
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.pods.resize import checkpoint as allocations
from trio_kubelet.pods.resize.checkpoint import AllocationFileError

DEEP = b'{"a":' + b"[" * 2_000_000  # Python 3.14 goes as far as the stack


@pytest.mark.parametrize(
    ("decode", "error"),
    [
        (devices.decode, DeviceCheckpointError),
        (claims.decode, ClaimCheckpointError),
        (lambda content: decode_reports(b'{"a":' + content, now=0.0, now_ns=0), ValueError),
        (lambda content: cpus.decode(content, "static"), PlacementStateError),
        (lambda content: memory.decode(content, "Static"), PlacementStateError),
        (allocations.decode, AllocationFileError),
    ],
    ids=["devices", "claims", "health", "cpus", "memory", "allocations"],
)
def test_a_checkpoint(decode: Callable[[bytes], object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"recursion|Stack overflow"):
        decode(DEEP)
