"""Whose word counts about the cgroup driver."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from prometheus_client import CollectorRegistry

from trio_kubelet.cgroups.drivers import runtime_cgroup_driver
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code


class Asked:
    """A runtime that answers one call, in turn with these answers."""

    def __init__(self, *answers: cri.RuntimeConfigResponse | CRIError) -> None:
        self._answers = list(answers)

    async def runtime_config(self) -> cri.RuntimeConfigResponse:
        answer = self._answers.pop(0)
        if isinstance(answer, CRIError):
            raise answer
        return answer


def says(driver: cri.CgroupDriver.ValueType) -> cri.RuntimeConfigResponse:
    return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=driver))


async def chosen(*answers: Any) -> tuple[str, float | None]:
    registry = CollectorRegistry()
    runtime: Any = Asked(*answers)
    driver = await runtime_cgroup_driver(runtime, "cgroupfs", registry)
    return driver, registry.get_sample_value("kubelet_cri_losing_support", {"version": "1.37.0"})


@pytest.mark.parametrize(("driver", "name"), [(cri.SYSTEMD, "systemd"), (cri.CGROUPFS, "cgroupfs")])
async def test_the_runtime_says_it(driver: cri.CgroupDriver.ValueType, name: str) -> None:
    assert await chosen(says(driver)) == (name, None)


async def test_a_runtime_that_does_not_know_leaves_it_to_the_configuration() -> None:
    assert await chosen(CRIError(Code.UNIMPLEMENTED, "unknown method")) == ("cgroupfs", 1)
    assert await chosen(cri.RuntimeConfigResponse()) == ("cgroupfs", None)


async def test_a_runtime_that_is_away_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    away = CRIError(Code.UNAVAILABLE, "connection refused")
    assert await chosen(away, away, away, away, says(cri.SYSTEMD)) == ("systemd", None)
    assert trio.current_time() >= 8
