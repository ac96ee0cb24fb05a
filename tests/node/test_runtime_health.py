"""The runtime's health: what is said when, in the kubelet's words."""

from __future__ import annotations

import io
from typing import cast

import pytest
import trio
import trio.testing

from trio_kubelet.common import log as logging
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.node.runtime_health import RuntimeHealth, condition_error, version_text
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Kind
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

Clock = trio.testing.MockClock


def test_a_condition_that_does_not_hold_is_told() -> None:
    bad = cri.RuntimeCondition(type="NetworkReady", status=False, reason="R", message="no cni")
    status = cri.RuntimeStatus(conditions=[bad, cri.RuntimeCondition(type="RuntimeReady", status=True)])
    assert condition_error(status, "NetworkReady") == "NetworkReady=false reason:R message:no cni"
    assert condition_error(status, "RuntimeReady") is None
    assert condition_error(cri.RuntimeStatus(), "RuntimeReady") == "<nil>"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("v2.1.4", "2.1.4"),
        ("1.7.24", "1.7.24"),
        ("1.7.24+unknown", "1.7.24+unknown"),
        ("v2.0.0-rc.1+build.5", "2.0.0-rc.1+build.5"),
        ("1.7.24~ds1", "1.7.24"),
        (" 1.31.0 ", "1.31.0"),
        ("1.2", "1.2"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.02.3-rc1", "1.2.3"),
        ("1.2.3-01", "1.2.3"),
        ("1.2.3.", "1.2.3"),
        ("01.2.3", "Unknown"),
        ("5", "Unknown"),
        ("", "Unknown"),
        ("latest", "Unknown"),
        ("1." + "9" * 5000, "Unknown"),
    ],
)
def test_the_version_is_shown_as_a_version(said: str, shown: str) -> None:
    assert version_text(said) == shown


async def test_down_and_up_again_is_said_once_each(autojump_clock: Clock) -> None:
    service = SimService(SimRuntime(), TrioClock(1_700_000_000 * NANOSECONDS))
    health = RuntimeHealth(sim_services(service).runtime)
    said = io.StringIO()
    logging.configure(stream=said, verbosity=2)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            assert health.runtime_error() is not None  # not asked yet
            await nursery.start(health.run)
            assert health.runtime_error() is None
            assert health.network_error() is None
            told = health.shown
            assert told is not None
            nursery.start_soon(service.restart, 40.0)
            await trio.sleep(24)
            assert health.runtime_error() is None  # half a minute is allowed
            assert health.shown == told.partition("://")[0] + "://Unknown"
            await trio.sleep(10)
            assert health.runtime_error() == "container runtime is down"
            await trio.sleep(10)
            assert health.runtime_error() is None
            assert health.shown == told
            health.watch_pleg(lambda: "slow")
            assert health.runtime_error() == "PLEG is not healthy: slow"
            nursery.cancel_scope.cancel()
        logging.flush()
    finally:
        logging.configure()
    lines = said.getvalue().splitlines()
    assert sum("is not ready" in line for line in lines) == 1
    assert sum("runtime is ready" in line for line in lines) == 1


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.FAIL])
async def test_a_runtime_that_never_answered_is_not_worked_with(autojump_clock: Clock, kind: Kind) -> None:
    service = SimService(SimRuntime(), TrioClock(1_700_000_000 * NANOSECONDS))
    service.faults.add(Fault(kind, "Status"))
    health = RuntimeHealth(sim_services(service).runtime)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(health.run)
        assert health.runtime_error() == "container runtime status check may not have completed yet"
        nursery.cancel_scope.cancel()


class Told:
    """A runtime that says of itself what it is given."""

    def __init__(self) -> None:
        self.answer = cri.StatusResponse()

    async def version(self) -> cri.VersionResponse:
        return cri.VersionResponse(runtime_name="r", runtime_version="v1.2.3")

    async def status(self) -> cri.StatusResponse:
        return self.answer


def said_of(*, ready: bool = True, handler: str = "", network: bool = True) -> cri.StatusResponse:
    conditions = [
        cri.RuntimeCondition(type="RuntimeReady", status=ready),
        cri.RuntimeCondition(type="NetworkReady", status=network),
    ]
    return cri.StatusResponse(
        status=cri.RuntimeStatus(conditions=conditions), runtime_handlers=[cri.RuntimeHandler(name=handler)]
    )


async def test_a_runtime_that_is_not_ready_does_not_say_what_it_can_do() -> None:
    runtime = Told()
    health = RuntimeHealth(cast(RuntimeService, runtime))
    await health.ask()
    assert health.node_errors() == [
        "container runtime status check may not have completed yet",
        "network state unknown",
    ]
    runtime.answer = said_of(ready=True, handler="first")
    await health.ask()
    assert (health.node_errors(), list(health.handlers), health.shown) == ([], ["first"], "r://1.2.3")
    runtime.answer = said_of(ready=False, handler="second")
    await health.ask()
    assert health.node_errors() == ["container runtime not ready: RuntimeReady=false reason: message:"]
    assert list(health.handlers) == ["first"]
    runtime.answer = cri.StatusResponse(status=cri.RuntimeStatus())
    await health.ask()
    assert health.node_errors() == [
        "container runtime not ready: <nil>",
        "container runtime network not ready: <nil>",
    ]


async def test_a_network_that_comes_up_is_seen_within_a_second(autojump_clock: Clock) -> None:
    runtime = Told()
    health = RuntimeHealth(cast(RuntimeService, runtime))
    runtime.answer = said_of(network=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(health.run)
        await trio.sleep(20)
        assert health.network_error() is not None
        runtime.answer = said_of()
        await trio.sleep(1.1)
        assert health.network_error() is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.FAIL])
async def test_one_failed_status_call_stops_nothing_half_a_minute_does(
    autojump_clock: Clock, kind: Kind
) -> None:
    service = SimService(SimRuntime(), TrioClock(1_700_000_000 * NANOSECONDS))
    health = RuntimeHealth(sim_services(service).runtime)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(health.run)
        service.faults.add(Fault(kind, "Status"))
        await trio.sleep(29)
        assert health.runtime_error() is None
        await trio.sleep(2)
        assert health.runtime_error() == "container runtime is down"
        assert health.node_errors() == ["container runtime is down"]
        nursery.cancel_scope.cancel()
