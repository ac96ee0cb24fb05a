"""What the runtime is told of the addresses of pods, also when it does not listen."""

from __future__ import annotations

from typing import cast

import trio
from trio.testing import MockClock

from trio_kubelet.cri.errors import Unknown
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.node.pod_cidr import tell_pod_cidr


class Runtime:
    """One that hangs unless `error` says how it fails, or that it does not (None)."""

    def __init__(self, error: Exception | None = None, hangs: bool = False) -> None:
        self._error, self._hangs = error, hangs
        self.told = ""

    async def update_runtime_config(self, pod_cidr: str) -> None:
        if self._hangs:
            await trio.sleep_forever()
        if self._error is not None:
            raise self._error
        self.told = pod_cidr


async def told(runtime: Runtime) -> bool:
    return await tell_pod_cidr(cast(RuntimeService, runtime), "10.0.0.0/24")


async def test_a_runtime_that_listens() -> None:
    runtime = Runtime()
    assert await told(runtime)
    assert runtime.told == "10.0.0.0/24"


async def test_one_that_does_not_hold_the_agent_up(autojump_clock: MockClock) -> None:
    assert not await told(Runtime(hangs=True))
    assert trio.current_time() < 60
    assert not await told(Runtime(error=Unknown("no")))
