"""A day in the life of dynamic resources: pods share claims, drivers fail, the agent is killed. By seed, in
simulated time.

Drivers keep what they have prepared, as real ones do over restarts of the agent: that and the pods that run
are the truth the agent is judged by.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.dra.claims import ClaimError, ResourceClaim
from trio_kubelet.dra.doors import DriverError
from trio_kubelet.dra.drivers import DraDrivers
from trio_kubelet.dra.health import DeviceHealth, Key
from trio_kubelet.dra.manager import RECONCILE_PERIOD, DraManager
from trio_kubelet.dra.states import Claim, PreparedDevice
from trio_kubelet.grpc.loop import AsyncioLoop

DRIVERS = ("gpu.example.com", "nic.example.com")
CLAIMS = tuple(f"claim-{number}" for number in range(5))
STEPS = 50


class FlakyDriver:
    """Implements `DraDriver`: slow, and now and then it fails, before or after it has done its work."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self._rng = rng
        self.prepared: set[str] = set()  # by claim UID

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        await self._call()
        answer: dict[str, tuple[PreparedDevice, ...] | str] = {}
        for claim in claims:
            if self._rng.random() < 0.1:
                answer[claim.uid] = "no such device"
            elif self._rng.random() > 0.05:
                self.prepared.add(claim.uid)
                device = PreparedDevice(pool="p", name=claim.name, cdi_ids=(f"{self.name}/x={claim.name}",))
                answer[claim.uid] = (device,)
        await self._call()
        return answer

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        await self._call()
        self.prepared -= {claim.uid for claim in claims}
        await self._call()
        return {claim.uid: "" for claim in claims}

    async def _call(self) -> None:
        await trio.sleep(self._rng.random() * 2)
        if self._rng.random() < 0.07:
            raise DriverError("rpc error: code = Unavailable desc = gone")


class FlakyDrivers:
    """In place of `DraDrivers`: which of them are registered changes."""

    def __init__(self, drivers: Mapping[str, FlakyDriver]) -> None:
        self._drivers = drivers
        self.away: set[str] = set()

    def get(self, name: str) -> FlakyDriver:
        if name in self.away:
            raise DriverError(f"DRA driver {name} is not registered")
        return self._drivers[name]

    def known_health(self) -> Mapping[str, Mapping[Key, DeviceHealth]]:
        return {}


class DraDay:
    """The world, and the agent in it."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.directory = str(directory)
        self.drivers = {name: FlakyDriver(name, self.rng) for name in DRIVERS}
        self.registered = FlakyDrivers(self.drivers)
        self.pods: dict[str, v1.Pod] = {}
        self.stopped: set[str] = set()
        self.running: dict[str, tuple[str, ...]] = {}  # claims of pods whose containers run
        self.uses = {name: self.rng.sample(DRIVERS, self.rng.randrange(1, 3)) for name in CLAIMS}
        self.manager: DraManager | None = None
        self.started = self.kills = 0

    # The API server and the pods, as the manager sees them

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        await trio.sleep(self.rng.random() / 10)
        if self.rng.random() < 0.05:
            raise ClaimError(f"fetch ResourceClaim {name}: no answer")
        results = [{"driver": driver} for driver in self.uses[name]]
        plain = {
            "metadata": {"uid": f"uid-{name}", "name": name, "namespace": namespace},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"uid": uid} for uid in self.pods],
            },
        }
        return msgspec.convert(plain, ResourceClaim)

    async def delete_slices(self, driver: str) -> None:
        await trio.lowlevel.checkpoint()

    def active(self) -> Collection[v1.Pod]:
        return [pod for uid, pod in self.pods.items() if uid not in self.stopped]

    def all_known(self) -> bool:
        return True

    def ending(self) -> Collection[str]:
        return ()

    # The day

    async def run(self) -> None:
        while self.kills < 5:
            with trio.CancelScope() as life:
                async with trio.open_nursery() as nursery:
                    await self._wake_up(nursery)
                    for _ in range(self.rng.randrange(STEPS)):
                        await trio.sleep(self.rng.random() * 4)
                        self._step(nursery)
                        self._check()
                    life.cancel()
            self.kills += 1
            self._check()
            if self.rng.random() < 0.2:  # the machine starts anew
                self.running.clear()
        await self._evening()

    async def _wake_up(self, nursery: trio.Nursery) -> None:
        self.manager = DraManager(
            root_dir=self.directory,
            loop=cast(AsyncioLoop, None),
            objects=self,
            pods=self,
            registry=CollectorRegistry(),
            extended=True,
            of_groups=False,
            messages=True,
            health_changed=None,
            clock=TrioClock(0),
        )
        self.manager.drivers = cast(DraDrivers, cast(Any, self.registered))
        await self.manager.load()
        nursery.start_soon(self.manager.run)
        for uid, pod in self.pods.items():
            nursery.start_soon(self._stop if uid in self.stopped else self._begin, pod)

    def _step(self, nursery: trio.Nursery) -> None:
        match self.rng.randrange(6):
            case 0 | 1 | 2:
                pod = self._new_pod()
                self.pods[pod.metadata.uid] = pod
                nursery.start_soon(self._begin, pod)
            case 3 | 4 if self.pods:
                uid = self.rng.choice(sorted(self.pods))
                if uid not in self.stopped:
                    self.stopped.add(uid)
                    self.running.pop(uid, None)  # its containers have stopped before anything is given back
                    nursery.start_soon(self._stop, self.pods[uid])
            case 5:
                self.registered.away ^= {self.rng.choice(DRIVERS)}

    def _new_pod(self) -> v1.Pod:
        name = f"pod-{self.rng.randrange(10**9)}"
        claims = self.rng.sample(CLAIMS, self.rng.randrange(1, 4))
        named = [v1.PodResourceClaim(name=each, resource_claim_name=each) for each in claims]
        asked = [v1.ResourceClaim(name=each) for each in claims]
        main = v1.Container(name="main", resources=v1.ResourceRequirements(claims=asked))
        return make_pod(name, containers=[main], spec={"resource_claims": named})

    async def _begin(self, pod: v1.Pod) -> None:
        """As a pod's worker: claims are prepared again and again until they are, then containers start."""
        assert self.manager is not None
        uid, manager = pod.metadata.uid, self.manager
        while uid in self.pods and uid not in self.stopped:
            try:
                await manager.prepare(pod)
            except ClaimError:
                await trio.sleep(self.rng.random() * 5)
                continue
            if uid in self.stopped:
                return
            main = (pod.spec.containers or [])[0]
            claims = [claim.name for claim in pod.spec.resource_claims or ()]
            expected = {f"{driver}/x={name}" for name in claims for driver in self.uses[name]}
            assert set(manager.cdi_ids(pod, main)) == expected
            self.running[uid] = tuple(claims)
            self.started += 1
            return

    async def _stop(self, pod: v1.Pod) -> None:
        assert self.manager is not None
        while True:
            try:
                await self.manager.unprepare(pod)
                break
            except ClaimError:
                await trio.sleep(self.rng.random() * 5)
        self.pods.pop(pod.metadata.uid, None)
        self.stopped.discard(pod.metadata.uid)

    def _check(self) -> None:
        """What a running pod uses is prepared, by every driver that has a part in it."""
        for uid, claims in self.running.items():
            for name in claims:
                for driver in self.uses[name]:
                    assert f"uid-{name}" in self.drivers[driver].prepared, f"{name} was taken from {uid}"

    async def _evening(self) -> None:
        """All pods are over: sooner or later nothing is prepared any more."""
        self.pods.clear()
        self.stopped.clear()
        self.running.clear()
        self.registered.away.clear()
        async with trio.open_nursery() as nursery:
            await self._wake_up(nursery)
            assert self.manager is not None
            for _ in range(100):
                await trio.sleep(RECONCILE_PERIOD)
                if not any(driver.prepared for driver in self.drivers.values()):
                    break
            nursery.cancel_scope.cancel()
        for driver in self.drivers.values():
            assert not driver.prepared, "what nobody uses is given back"


def live(seed: int, directory: Path) -> DraDay:
    """One day; raises AssertionError when a claim in use is given back, or one is never given back."""
    day = DraDay(seed, directory)
    trio._core._run._r.seed(seed)
    trio.run(day.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return day
