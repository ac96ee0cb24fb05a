"""Which cgroup driver: the runtime's, for both have to use the same (gate KubeletCgroupDriverFromCRI)."""

from __future__ import annotations

from typing import Final

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.errors import Code

log = get_logger(__name__)

_NAMES: Final = {cri.SYSTEMD: "systemd", cri.CGROUPFS: "cgroupfs"}
_RETRY_SECONDS = 2.0


async def runtime_cgroup_driver(runtime: RuntimeService, configured: str, registry: CollectorRegistry) -> str:
    """The runtime's cgroup driver, or `configured` if it does not say.

    A runtime that is away is waited for: a guess could put pods into cgroups of the wrong kind.
    """
    while True:
        try:
            answer = await runtime.runtime_config()
        except CRIError as error:
            if error.code is Code.UNIMPLEMENTED:
                MetricMaker(registry).gauge(
                    "kubelet_cri_losing_support",
                    "The Kubernetes version from which on this version of the runtime is not supported.",
                    ["version"],
                ).labels("1.37.0").inc()
                log.info(
                    "CRI implementation should be updated to support RuntimeConfig. "
                    "Falling back to using cgroupDriver from kubelet config."
                )
                return configured
            log.warning("The runtime does not say which cgroup driver it uses", err=error)
            await trio.sleep(_RETRY_SECONDS)
            continue
        if not answer.HasField("linux"):
            return configured
        driver = _NAMES[answer.linux.cgroup_driver]
        log.info("Using cgroup driver setting received from the CRI runtime", cgroupDriver=driver)
        return driver
