"""The manager of dynamic resources: claims are prepared before a pod's sandbox is made and given back when
its containers have stopped (kubelet: `cm/dra`).

A claim that several pods use is prepared for the first and given back after the last of them. Work on one
claim is done by one pod at a time. What is written down says that a driver may have been asked: after a crash
it is asked again, which drivers have to stand.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.each import ASIDE, for_each
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.state_file import StateFile
from trio_kubelet.dra.checkpoint import FILE_NAME, decode, encode
from trio_kubelet.dra.claims import ClaimError, PodClaims, check
from trio_kubelet.dra.doors import ClaimObjects, ClaimPods, DriverError
from trio_kubelet.dra.drivers import DraDrivers
from trio_kubelet.dra.health import STATE_FILE, HealthState, Key, decode_reports, encode_reports
from trio_kubelet.dra.metrics import DraMetrics
from trio_kubelet.dra.states import Claim, PreparedDevice, in_use
from trio_kubelet.grpc.loop import AsyncioLoop

log = get_logger(__name__)

RECONCILE_PERIOD: Final = 60.0
"""Seconds between looks for claims of pods that are over (kubelet: `defaultReconcilePeriod`)."""
_AT_ONCE: Final = 16  # pods whose claims are given back

_Name = tuple[str, str]  # namespace and name


class DraManager:
    """Claims in use on the node. `objects` None: there is no API server, and so there are no claims.

    `extended`: gate DRAExtendedResource; `of_groups`: gate DRAWorkloadResourceClaims; `messages`: gate
    ResourceHealthStatusMessage. `health_changed` is told of pods whose devices' health is another one; None:
    nobody is to hear of it.
    """

    def __init__(
        self,
        *,
        root_dir: str,
        loop: AsyncioLoop,
        objects: ClaimObjects | None,
        pods: ClaimPods,
        registry: CollectorRegistry,
        extended: bool,
        of_groups: bool,
        messages: bool,
        health_changed: Callable[[Collection[str]], None] | None,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._pods = pods
        self._extended = extended
        self._of_groups = of_groups
        self._messages = messages
        self._health_changed = health_changed
        self._claims: dict[_Name, Claim] = {}
        self._locks: dict[_Name, trio.Lock] = {}
        self._last: PodClaims | None = None
        self._metrics = DraMetrics(registry, lambda: in_use(self._claims.values()))
        self._file = StateFile(
            os.path.join(root_dir, FILE_NAME), lambda: tuple(self._claims.values()), encode
        )
        self._clock = clock
        self._health_file = StateFile(os.path.join(root_dir, STATE_FILE), self._health_state, encode_reports)
        self.drivers = DraDrivers(
            loop=loop,
            metrics=self._metrics,
            objects=objects,
            health_changed=self._tell_pods if health_changed is not None else None,
        )

    async def load(self) -> None:
        """Takes over what an earlier agent, or a kubelet, left; before `run`. Raises ClaimCheckpointError or
        OSError: what drivers have prepared is not known then, and has to be looked after by hand.
        """
        content = await NODE_FILES.run(self._file.read)
        for claim in decode(content) if content is not None else ():
            self._claims[claim.namespace, claim.name] = claim
        if self._health_changed is not None:
            await self._load_health()

    async def _load_health(self) -> None:
        """What drivers told an earlier agent; without it their devices' health is unknown for a while."""
        now, now_ns = trio.current_time(), self._clock.now_ns()
        try:
            if (content := await NODE_FILES.run(self._health_file.read)) is not None:
                self.drivers.take_over_health(decode_reports(content, now=now, now_ns=now_ns))
        except (OSError, ValueError) as exc:
            log.error("Failed to load health checkpoint, proceeding with empty cache", err=exc)

    def _health_state(self) -> HealthState:
        return HealthState(self.drivers.known_health(), trio.current_time(), self._clock.now_ns())

    async def run(self) -> None:
        """Keeps the files, and gives back claims of pods that are over, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._file.run)
            nursery.start_soon(self._health_file.run)
            while True:
                await trio.sleep(RECONCILE_PERIOD)
                await self._reconcile()

    # Before a sandbox is made

    async def prepare(self, pod: v1.Pod) -> None:
        """Prepares the claims of a pod; one without counts in the metrics, too. Raises ClaimError."""
        began, failed = trio.current_time(), True
        try:
            if _claims_something(pod):
                await self._prepare(pod)
            failed = False
        except (ClaimError, DriverError) as exc:
            raise ClaimError(f"prepare dynamic resources: {exc}") from exc
        finally:
            self._observe("PrepareResources", failed, began)

    async def _prepare(self, pod: v1.Pod) -> None:
        """Nothing is noted down before everything is known to be there: a pod whose driver is not may go."""
        namespace = pod.metadata.namespace
        names = PodClaims(pod).names(extended=self._extended)
        if names and self._objects is None:
            raise ClaimError("there is no API server to read ResourceClaims from")
        async with self._alone([(namespace, name.name) for name in names]):
            fresh = []
            for name in names:
                assert self._objects is not None
                found = await self._objects.claim(namespace, name.name)
                claim = check(pod, name, found, of_groups=self._of_groups)
                for driver in claim.drivers:
                    self.drivers.get(driver)
                fresh.append(claim)
            for claim in fresh:
                self._note(claim, pod.metadata.uid)
            await self._file.written()
            outstanding = [self._claims[namespace, claim.name] for claim in fresh]
            await self._ask([claim for claim in outstanding if not claim.prepared])
            await self._file.written()

    def _note(self, claim: Claim, pod: str) -> None:
        """The pod uses the claim from here on, whatever its driver says."""
        key = claim.namespace, claim.name
        known = self._claims.get(key, claim)
        if known.uid != claim.uid:
            raise ClaimError(
                f"old ResourceClaim with same name {claim.name} and different UID {known.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        self._claims[key] = known.used_by(pod)
        self._file.write_soon()

    async def _ask(self, claims: Sequence[Claim]) -> None:
        """Has the drivers prepare, each all claims it has a part in at once."""
        found: dict[str, dict[str, tuple[PreparedDevice, ...]]] = {claim.uid: {} for claim in claims}
        for driver in sorted({name for claim in claims for name in claim.drivers}):
            mine = {claim.uid: claim for claim in claims if driver in claim.drivers}
            answer = await self.drivers.get(driver).prepare(tuple(mine.values()))
            failed = {uid: said for uid, said in answer.items() if isinstance(said, str)}
            _check_answer("NodePrepareResources", mine, answer, failed)
            for uid, devices in answer.items():
                if not isinstance(devices, str):
                    found[uid][driver] = devices
        for claim in claims:
            key = claim.namespace, claim.name
            drivers = {**claim.drivers, **found[claim.uid]}
            self._claims[key] = msgspec.structs.replace(self._claims[key], drivers=drivers, prepared=True)
            self._file.write_soon()

    # When its containers have stopped

    async def unprepare(self, pod: v1.Pod) -> None:
        """Gives back the claims of a pod: those noted down for it. Raises ClaimError; may be called again.

        How the pod calls them is not asked: its status may not tell any more. A kubelet never ends it then
        (kubernetes/kubernetes 139772).
        """
        began, failed = trio.current_time(), True
        try:
            uid = pod.metadata.uid
            if names := [claim.name for claim in self._claims.values() if uid in claim.pods]:
                await self._unprepare(uid, pod.metadata.namespace, names)
            failed = False
        except (ClaimError, DriverError) as exc:
            raise ClaimError(f"unprepare dynamic resources: {exc}") from exc
        finally:
            self._observe("UnprepareResources", failed, began)

    async def _unprepare(self, pod: str, namespace: str, names: Collection[str]) -> None:
        async with self._alone([(namespace, name) for name in names]):
            last: list[Claim] = []
            for name in names:
                claim = self._claims.get((namespace, name))
                if claim is None or pod not in claim.pods:
                    continue
                if len(claim.pods) > 1:
                    self._claims[namespace, name] = claim.left_by(pod)
                    self._file.write_soon()
                else:
                    # One driver may do it and another fail: whoever uses the claim next has both asked again.
                    self._claims[namespace, name] = msgspec.structs.replace(claim, prepared=False)
                    last.append(claim)
            for driver in sorted({each for claim in last for each in claim.drivers}):
                mine = {claim.uid: claim for claim in last if driver in claim.drivers}
                answer = await self.drivers.get(driver).unprepare(tuple(mine.values()))
                failed = {uid: error for uid, error in answer.items() if error}
                _check_answer("NodeUnprepareResources", mine, answer, failed)
            for claim in last:
                del self._claims[claim.namespace, claim.name]
                self._file.write_soon()
            await self._file.written()

    async def _reconcile(self) -> None:
        """Claims of pods that are over, and of which nobody has heard otherwise."""
        if not self._pods.all_known():
            return
        active = {pod.metadata.uid for pod in self._pods.active()}.union(self._pods.ending())
        over: dict[_Name, list[str]] = {}
        for claim in self._claims.values():
            for uid in claim.pods - active:
                over.setdefault((uid, claim.namespace), []).append(claim.name)

        async def give_back(pod: tuple[str, str]) -> None:
            uid, namespace = pod
            try:
                await self._unprepare(uid, namespace, over[pod])
            except DriverError as exc:
                log.info(
                    "Unpreparing pod resources in reconcile loop failed, will retry", podUID=uid, err=exc
                )

        await for_each(over, give_back, _AT_ONCE, ASIDE)

    # What others ask

    def cdi_ids(self, pod: v1.Pod, container: v1.Container) -> tuple[str, ...]:
        """CDI devices of a container. Raises ClaimError."""
        found: list[str] = []
        for name, request, _ in self._of(pod).requests(container, extended=self._extended):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                raise ClaimError(
                    f"internal error: unable to get claim info for ResourceClaim {name} "
                    f"in namespace {pod.metadata.namespace}"
                )
            found += claim.cdi_ids(request)
        return tuple(found)

    def of_container(self, pod: v1.Pod, container: v1.Container) -> list[Claim]:
        """The claims a container uses. Raises ClaimError for one that is not known."""
        found: dict[str, Claim] = {}
        for name, _, _ in self._of(pod).requests(container, extended=self._extended):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                raise ClaimError(f"unable to get information for ResourceClaim {name}")
            found[name] = claim
        return list(found.values())

    def health(self, pod: v1.Pod, container: str) -> list[v1.ResourceStatus]:
        """What a pod's status says of a container's claimed devices."""
        claims, found = self._of(pod), []
        if (claimant := claims.claimant(container)) is None:
            return []
        try:
            requests = list(claims.requests(claimant, extended=False))
        except ClaimError:
            return []
        for name, request, label in requests:
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                continue
            resources: dict[str, v1.ResourceHealth] = {}
            for driver, devices in sorted(claim.drivers.items()):
                for device in devices:
                    if not device.serves(request):
                        continue
                    report = self.drivers.health(driver, (device.pool, device.name))
                    id = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.name}"
                    shown = v1.ResourceHealth(
                        resource_id=id,
                        health=report.health,
                        message=(self._messages and report.message) or None,
                    )
                    resources.setdefault(id, shown)
            if resources:
                found.append(v1.ResourceStatus(name=label, resources=list(resources.values())))
        return found

    def _of(self, pod: v1.Pod) -> PodClaims:
        """Kept for the pod that was asked about last: its containers are asked about one after the other."""
        if self._last is None or self._last.pod is not pod:
            self._last = PodClaims(pod)
        return self._last

    def _tell_pods(self, driver: str, keys: frozenset[Key]) -> None:
        self._health_file.write_soon()
        uids = {
            uid
            for claim in self._claims.values()
            if any((device.pool, device.name) in keys for device in claim.drivers.get(driver, ()))
            for uid in claim.pods
        }
        if uids and self._health_changed is not None:
            self._health_changed(uids)

    def _observe(self, operation: str, failed: bool, began: float) -> None:
        seconds = trio.current_time() - began
        self._metrics.operations.labels(operation, str(failed).lower()).observe(seconds)

    @asynccontextmanager
    async def _alone(self, names: Collection[_Name]) -> AsyncIterator[None]:
        """Nobody else works on these claims. In one order, so that two pods cannot wait for each other."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._locks.setdefault(name, trio.Lock()))
            try:
                yield
            finally:
                for name in names:
                    lock = self._locks.get(name)
                    if lock is not None and not lock.statistics().tasks_waiting and name not in self._claims:
                        self._locks.pop(name, None)


def _claims_something(pod: v1.Pod) -> bool:
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def _check_answer(
    call: str, asked: Mapping[str, Claim], answered: Collection[str], failed: Mapping[str, str]
) -> None:
    """Raises DriverError unless a driver has answered for these claims, by UID, and no others, all well."""
    for uid in answered:
        if uid not in asked:
            raise DriverError(f"{call} returned result for unknown claim UID {uid}")
        if uid in failed:
            raise DriverError(f"{call} failed for ResourceClaim {asked[uid].name}: {failed[uid]}")
    if skipped := len(asked) - len(answered):
        raise DriverError(f"{call} skipped {skipped} ResourceClaims")
