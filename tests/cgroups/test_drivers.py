"""Whose word counts about the cgroup driver."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio.testing
from prometheus_client import CollectorRegistry

from trio_kubelet.cgroups.drivers import runtime_cgroup_driver
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code


class Asked:
    """A runtime that answers one call, in turn with these answers."""

    def __init__(self, *answers: cri.RuntimeConfigResponse | CRIError, config: str = "") -> None:
        self._answers = list(answers)
        self._config = config
        self._away = 1  # so many times it does not show it

    async def status(self, verbose: bool = False) -> cri.StatusResponse:
        if self._config == "broken":
            raise CRIError(Code.UNKNOWN, "broken")
        if self._away:
            self._away -= 1
            raise Unavailable("connection refused")
        return cri.StatusResponse(info={"golang": "go1.19", "config": self._config} if verbose else {})

    async def runtime_config(self) -> cri.RuntimeConfigResponse:
        answer = self._answers.pop(0)
        if isinstance(answer, CRIError):
            raise answer
        return answer


def says(driver: cri.CgroupDriver.ValueType) -> cri.RuntimeConfigResponse:
    return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=driver))


async def chosen(*answers: Any, config: str = "") -> tuple[str, float | None]:
    registry = CollectorRegistry()
    runtime: Any = Asked(*answers, config=config)
    driver = await runtime_cgroup_driver(runtime, "cgroupfs", registry)
    return driver, registry.get_sample_value("kubelet_cri_losing_support", {"version": "1.37.0"})


@pytest.mark.parametrize(("driver", "name"), [(cri.SYSTEMD, "systemd"), (cri.CGROUPFS, "cgroupfs")])
async def test_the_runtime_says_it(driver: cri.CgroupDriver.ValueType, name: str) -> None:
    assert await chosen(says(driver)) == (name, None)


async def test_a_driver_that_is_none_is_refused() -> None:
    unknown: Any = 7
    with pytest.raises(OSError, match="runtime returned an unknown cgroup driver 7"):
        await chosen(says(unknown))


async def test_a_runtime_that_does_not_know_leaves_it_to_the_configuration(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert await chosen(CRIError(Code.UNIMPLEMENTED, "unknown method")) == ("cgroupfs", 1)
    assert await chosen(cri.RuntimeConfigResponse()) == ("cgroupfs", None)


def shows(systemd: object, name: str = "runc") -> str:
    """The configuration of a containerd 1.x."""
    options = {"Root": "", "SystemdCgroup": systemd}
    runtimes = {"other": {"options": {"SystemdCgroup": not systemd}}, "runc": {"options": options}}
    return json.dumps({"containerd": {"defaultRuntimeName": name, "runtimes": runtimes}})


@pytest.mark.parametrize(
    ("config", "driver"),
    [
        (shows(True), "systemd"),
        (shows(False), "cgroupfs"),
        (shows("yes"), "cgroupfs"),  # what is configured
        (shows(True, "kata"), "cgroupfs"),
        ('{"containerd": []}', "cgroupfs"),
        ("[]", "cgroupfs"),
        ("{", "cgroupfs"),
        ("broken", "cgroupfs"),
    ],
)
async def test_a_runtime_too_old_for_the_call_shows_it_in_its_configuration(
    autojump_clock: trio.testing.MockClock, config: str, driver: str
) -> None:
    unknown = CRIError(Code.UNIMPLEMENTED, "unknown method")
    assert await chosen(unknown, config=config) == (driver, 1)


async def test_a_runtime_that_is_away_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    away = CRIError(Code.UNAVAILABLE, "connection refused")
    assert await chosen(away, away, away, away, says(cri.SYSTEMD)) == ("systemd", None)
    assert trio.current_time() >= 8
