"""Where the addresses of pods come from, told to the runtime: some set up the network of pods by it."""

from __future__ import annotations

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import RuntimeService

log = get_logger(__name__)

_CRI_TIMEOUT = 10.0


async def tell_pod_cidr(runtime: RuntimeService, cidr: str) -> bool:
    """Tells the runtime; whether it has taken it (kubelet: `updatePodCIDR`). A failure is logged."""
    try:
        with trio.fail_after(_CRI_TIMEOUT):
            await runtime.update_runtime_config(cidr)
    except (CRIError, trio.TooSlowError) as exc:
        log.error("Error updating pod CIDR", podCIDR=cidr, err=exc)
        return False
    return True
