"""Registers the node and keeps the status of its Node object.

One task: it registers until it has succeeded, then writes the status whenever it says something new, and
now and then in any case. It never gives up: with the API server away it tries on, and a Node that
somebody deletes is registered again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses, generator
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIFailure
from trio_kubelet.kube.reflector import LOGGED_FAILURES
from trio_kubelet.node.conditions import is_ready
from trio_kubelet.node.events import NodeEvent, record_all
from trio_kubelet.node.metrics import NodeMetrics
from trio_kubelet.node.own_node import NODES, OwnNode
from trio_kubelet.node.patch import node_patch
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.registration import initial_node, reconcile
from trio_kubelet.node.status import NodeObservation, differs, with_status
from trio_kubelet.podinfo.doors import NodeRecorderDoor

log = get_logger(__name__)

TRIES = 5
JITTER = 0.04
PAUSES = Pauses(0.1, 7.0, jitter=JITTER)
STARTUP_POLL = 0.02
STARTUP_GRACE = 120.0
SETTLING = 10.0
WAKE_GAP = 1.0


class ReportTimes(msgspec.Struct, frozen=True):
    """How often the status is computed (`update`) and written even if nothing changed (`report`); seconds."""

    update: float = 10.0
    report: float = 300.0


def report_times(config: KubeletConfiguration) -> ReportTimes:
    """The periods of a configuration."""
    return ReportTimes(config.node_status_update_frequency, config.node_status_report_frequency)


def heartbeat_timeout(config: KubeletConfiguration) -> float:
    """Deadline of a request of the node's status and lease, in seconds: none may outlast its period."""
    return min(config.node_status_update_frequency, float(config.node_lease_duration_seconds))


class NodeReporter:
    """Implements what the module says.

    `look` sees how the node is, `is_well` tells without waiting whether it could be ready; `pod_cidr` is told
    the Node's pod addresses when they change, and says whether that worked. `reset_extended`: no device
    plugin was ever known here.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        own: OwnNode,
        profile: NodeProfile,
        look: Callable[[], Awaitable[NodeObservation]],
        is_well: Callable[[], bool],
        events: NodeRecorderDoor,
        metrics: NodeMetrics,
        pod_cidr: Callable[[str], Awaitable[bool]],
        times: ReportTimes = ReportTimes(),
        reset_extended: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._own = own
        self._profile = profile
        self._look = look
        self._is_well = is_well
        self._events = events
        self._metrics = metrics
        self._tell_pod_cidr = pod_cidr
        self._times = times
        self._reset_extended = reset_extended
        self.registered = trio.Event()
        self._random = generator(rng).random
        self._is_registered = not profile.register
        self._reported_at: float | None = None
        self._delay = 0.0
        self._pod_cidr = ""
        self._unschedulable = False
        self._was_well = False
        self._woken = trio.Event()
        self._failures = 0
        if not profile.register:
            self.registered.set()

    def wake(self) -> None:
        """Something about the node has changed: its status is looked at soon."""
        self._woken.set()

    async def run(self) -> None:
        """Registers and reports until cancelled."""
        self._metrics.named(self._profile.name)
        grace_ends = trio.current_time() + STARTUP_GRACE
        if not self._is_registered:
            await self._register()
        await self._settle()
        while True:
            if not self._is_registered:
                await self._register()
            self._woken = trio.Event()
            await self._update()
            if self._is_registered:
                await self._wait(grace_ends)

    # When

    async def _settle(self) -> None:
        """A node that is ready by its object is not called otherwise while the agent starts."""
        with trio.move_on_after(SETTLING):
            await self._own.synced.wait()
            if self._own.node is None or not is_ready(self._own.node):
                return
            while not self._is_well():  # noqa: ASYNC110 - nobody tells of it, one has to ask
                await trio.sleep(STARTUP_POLL)
        self._was_well = self._is_well()

    async def _wait(self, grace_ends: float) -> None:
        """Until the next status is due: after a period or a change, and once as soon as all is well."""
        with trio.move_on_after(self._times.update * (1 + JITTER * self._random())):
            gap_ends = trio.current_time() + WAKE_GAP
            while not self._was_well and trio.current_time() < grace_ends:
                await trio.sleep(STARTUP_POLL)
                if self._is_well():
                    self._was_well = True
                    return
                if self._woken.is_set() and trio.current_time() >= gap_ends:
                    return
            await trio.sleep_until(gap_ends)
            await self._woken.wait()

    # Registration

    async def _register(self) -> None:
        """Tries until the node is registered."""
        failures = 0
        self._metrics.attempting()
        while True:
            try:
                await self._try_register()
            except APIFailure as exc:
                self._failed("Unable to register node with API server", exc)
            else:
                break
            failures += 1
            await trio.sleep(PAUSES.after(failures, self._random()))
        log.info("Successfully registered node", node=self._profile.name)
        self._worked()
        self._is_registered = True
        self.registered.set()

    async def _try_register(self) -> None:
        log.v(2 if self._failures else 0).info("Attempting to register node", node=self._profile.name)
        initial, events = initial_node(self._profile, await self._look())
        try:
            node = await self._client.create(NODES, initial, v1.Node)
        except APIError as exc:
            # Who may not create a Node may still be the one that was made for it.
            forbidden = exc.code == 403 and self._profile.adopts_if_forbidden
            if exc.reason != "AlreadyExists" and not forbidden:
                raise
        else:
            self._metrics.registered_new()
            self._wrote(node, events)
            return
        existing = await self._client.get(self._own.path, v1.Node)
        log.info("Node was previously registered", node=self._profile.name)
        wanted = reconcile(existing, initial, reset_extended=self._reset_extended)
        patch = node_patch(existing, wanted)
        if patch:
            existing = await self._patch(patch)
        self._wrote(existing, events)

    # Status

    async def _update(self) -> None:
        """Brings the status up to date, with several tries; failing that, the next period comes."""
        for attempt in range(TRIES):
            try:
                await self._try_update(fresh=attempt > 0)
            except APIFailure as exc:
                if exc.not_found and self._profile.register:
                    log.warning(
                        "Node is gone from the API server, registering again", node=self._profile.name
                    )
                    self._is_registered = False
                    return
                self._failed("Error updating node status, will retry", exc)
            else:
                self._worked()
                return
        log.v(2).error("Unable to update node status, tries used up", node=self._profile.name)

    async def _try_update(self, fresh: bool) -> None:
        """One try, on what the watch told or, `fresh`, on what the API server says when asked."""
        known = None if fresh else self._own.node
        old = known if known is not None else await self._client.get(self._own.path, v1.Node)
        cidr_changed = await self._take_pod_cidr(old)
        new, events = with_status(old, self._profile, await self._look())
        changed = cidr_changed or differs(old, new)
        now = trio.current_time()
        due = self._reported_at is None or now - self._reported_at >= self._times.report + self._delay
        if changed or due:
            if changed or self._reported_at is None:
                # Spread, so that nodes that were told the same do not come back together.
                self._delay = self._times.report * (self._random() - 0.5)
            else:
                self._delay = 0.0
            new = await self._patch(node_patch(old, new))
            self._reported_at = now
            self._wrote(new, events)
        self._tell_schedulable(new)

    async def _patch(self, patch: object) -> v1.Node:
        return await self._client.patch(f"{self._own.path}/status", msgspec.json.encode(patch), v1.Node)

    def _wrote(self, node: v1.Node, events: list[NodeEvent]) -> None:
        """The API server has taken what we wrote: now it is true, and can be told."""
        woken, self._woken = self._woken, trio.Event()
        self._own.wrote(node)
        self._woken = woken  # our own write is no news
        record_all(self._events, events)
        if is_ready(node):
            self._was_well = True
            self._metrics.ready()

    async def _take_pod_cidr(self, node: v1.Node) -> bool:
        """Hands on the Node's pod addresses; whether they are new."""
        cidr = ",".join(node.spec.pod_cidrs or ())
        if not cidr or cidr == self._pod_cidr:
            return False
        if await self._tell_pod_cidr(cidr):
            log.info("Updating Pod CIDR", originalPodCIDR=self._pod_cidr, newPodCIDR=cidr)
            self._pod_cidr = cidr
        return True

    def _tell_schedulable(self, node: v1.Node) -> None:
        if node.spec.unschedulable == self._unschedulable:
            return
        self._unschedulable = node.spec.unschedulable
        reason = "NodeNotSchedulable" if self._unschedulable else "NodeSchedulable"
        name = self._profile.name
        self._events.record_node("Normal", reason, f"Node {name} status is now: {reason}")

    # Log

    def _failed(self, what: str, exc: APIFailure) -> None:
        self._failures += 1
        level = log if self._failures <= LOGGED_FAILURES else log.v(4)
        level.error(what, node=self._profile.name, err=exc)

    def _worked(self) -> None:
        if self._failures > LOGGED_FAILURES:
            log.info("The API server takes the node's status again", node=self._profile.name)
        self._failures = 0
